"""The privacy ledger of a client: what studies on one source may spend together, and have spent.

Where records enter one release each, a study costs a record the same however long it runs: that is
charged with its first release. Else each release is charged, and they compose. Studies on the same
source compose, too, with what was spent on it elsewhere. A refusal names the limit that would do,
and the flags that raise it.
"""

from __future__ import annotations

import functools
import hashlib
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pipeline.errors import BudgetExceeded, ConfigError, LocalStoreError, PrivacyError
from pipeline.privacy.accounting import Unit, total_epsilon
from pipeline.privacy.events import Event, NonPrivate, compose, decode, encode, worse
from pipeline.release.task import Task
from pipeline.words import counted
from producers.database import Database

#: Deltas that an advice to raise one looks through: the first, if there was none, and the last.
LEAST_DELTA, LARGEST_DELTA = 1e-6, 1e-2
_OR_STOP = " if the data owner agrees, or stop this study"


def beyond(events: Sequence[Event], epsilon: float, delta: float, unit: Unit, limit: float) -> str:
    """Say what events would cost beyond a limit, and how a data owner would allow it.

    epsilon: What they cost together at `delta`; infinite if none holds, as delta is too small.
    """
    at = f"at delta {delta:g} for {unit_in_words(unit)}"
    if math.isfinite(epsilon):
        return (
            f"would reach epsilon {epsilon:.4g} {at}, the limit is {limit:g}; raise it with "
            f"--epsilon-limit{_OR_STOP}"
        )
    larger, reached = delta or LEAST_DELTA / 2, math.inf
    while math.isinf(reached) and larger < LARGEST_DELTA:
        larger *= 2
        reached = total_epsilon(events, larger)
    if math.isinf(reached):
        return f"have no epsilon {at} or at any delta below {LARGEST_DELTA:g}: stop this study"
    raised = f"--delta-limit {larger:.3g}"
    if reached > limit:
        raised += f" and --epsilon-limit {reached * 1.01:.3g}"
    return f"have no epsilon {at}: delta is used up; raise it with {raised}{_OR_STOP}"


def unit_in_words(unit: Unit) -> str:
    """Return a unit in words."""
    who = "one record" if unit.records == 1 else f"a user's {unit.records} records"
    return f"{who} ({unit.neighbours})"


#: Asks a client's database.
Rows = Callable[..., list[tuple[Any, ...]]]

_OWN = "SELECT event, count(*) FROM spends WHERE study = ? GROUP BY event"
_INHERITED = """
    SELECT inherited.ledger = identity.ledger, study, event, neighbours, noise_per_record
    FROM inherited, identity WHERE source = ? AND counts = 1"""


@dataclass(frozen=True, slots=True)
class Charge:
    """What one study has cost a record.

    event: All of its releases together.
    neighbours: The change that this is for; None where nobody is protected.
    noise_per_record: As `Budget` has it.
    own: Whether this very ledger has made the releases.
    """

    study: str
    event: Event
    neighbours: str | None
    noise_per_record: bool
    own: bool

    def of(self, unit: Unit) -> Event:
        """Return what it costs a unit."""
        return unit.convert(
            self.event, self.neighbours or "", noise_per_record=self.noise_per_record
        )


def spent_by(rows: Rows, study: str) -> Event | None:
    """Return what the releases of a study have cost a record together; None before the first.

    Raises LocalStoreError if an event is of a kind or version that this program does not know.
    """
    found = Counter({known(text): times for text, times in rows(_OWN, study)})
    return compose(found) if found else None


def charges(rows: Rows, source: str) -> list[Charge]:
    """Return all that has been charged to a source.

    What was told of a study of this ledger counts where it is more than the ledger knows itself.
    Raises LocalStoreError as `spent_by`.
    """
    studies = rows(
        "SELECT study, neighbours, noise_per_record FROM charged WHERE source = ?", source
    )
    found = []
    for study, neighbours, noise_per_record in studies:
        event = spent_by(rows, study)
        if event is not None:
            found.append(Charge(study, event, neighbours, bool(noise_per_record), own=True))
    own = {charge.study: charge.event for charge in found}
    for mine, study, text, neighbours, noise_per_record in rows(_INHERITED, source):
        event = known(text)
        if not (mine and study in own and worse(own[study], event) == own[study]):
            found.append(Charge(study, event, neighbours, bool(noise_per_record), own=bool(mine)))
    return found


def as_known(found: Iterable[Charge], task: Task) -> list[Charge]:
    """Return the charges, a study's own as it knows best what its releases cost together."""
    return [
        replace(one, event=task.budget.together(one.event))
        if one.own and one.study == task.study.name and one.event != NonPrivate()
        else one
        for one in found
    ]


def protecting(found: Iterable[Charge], unit: Unit) -> list[Event]:
    """Return the charges that protect anybody, as costs of a source's unit."""
    return [charge.of(unit) for charge in found if charge.event != NonPrivate()]


def spent(rows: Rows, source: str, unit: Unit) -> list[Event]:
    """Return what a source's unit has paid, as events that add up; LocalStoreError as `charges`."""
    return protecting(charges(rows, source), unit)


def known(text: str) -> Event:
    """Return a stored event.

    Raises LocalStoreError if it is of a kind or version that this program does not know.
    """
    try:
        return decode(text)
    except PrivacyError as error:
        raise LocalStoreError(f"the client database: {error}; nothing was spent") from None


#: Calibration pays a hair for discrete noise; a limit that equals the budget must allow it.
HAIR = 1e-6


@dataclass(frozen=True, slots=True)
class Limit:
    """What the data owner allows on one source, by flags; None where none was given.

    epsilon, delta: What all studies together may spend on one unit.
    """

    epsilon: float | None = None
    delta: float | None = None


@dataclass(frozen=True, slots=True)
class Allowed:
    """The limit of one source as it stands; epsilon None: opened to studies without privacy."""

    epsilon: float | None
    delta: float
    unit: Unit


class Ledger:
    """Budgets and spends in a client's database; its callers hold the transaction."""

    def __init__(self, database: Database) -> None:
        self._db = database
        #: Where the sources are that were opened since the start, by name.
        self._locations: dict[str, str] = {}

    def open_source(self, task: Task, source: str, location: str | None, limit: Limit) -> None:
        """Register a source on first sight, and take over a new limit.

        Raises ConfigError if the limit is below what is spent, or the file is known under another
        name.
        """
        privacy = task.study.privacy
        self._name_once(source, location)
        private = task.study.private
        if private:
            self._check_scope(task, source)
        own = (
            limit.epsilon or task.budget.epsilons[task.budget.ceiling],
            limit.delta or privacy.delta or 0.0,
        )
        wanted = own if private else (None, 0.0)
        unit = (privacy.records or 1, privacy.neighbours)
        self._db.write(
            "INSERT INTO sources VALUES (?, ?, ?, ?, ?) ON CONFLICT (source) DO NOTHING",
            source, *wanted, *unit,
        )  # fmt: skip
        exposed = any(
            charge.own and charge.event == NonPrivate() for charge in charges(self._db.rows, source)
        )
        if private and not exposed:
            # a study without privacy that never released anything lifts no limit
            self._db.write(
                "UPDATE sources SET epsilon = ?, delta = ?, unit_records = ?, neighbours = ? "
                "WHERE source = ? AND epsilon IS NULL",
                *wanted, *unit, source,
            )  # fmt: skip
        if limit == Limit():
            return
        if exposed:
            raise ConfigError(
                f"--epsilon-limit: a study without privacy has released source {source!r}; "
                "no limit holds for it any more"
            )
        self._db.write(
            "UPDATE sources SET epsilon = coalesce(?, epsilon), delta = coalesce(?, delta) "
            "WHERE source = ? AND epsilon IS NOT NULL",
            limit.epsilon, limit.delta, source,
        )  # fmt: skip
        self._check_limit(task, source, limit)

    def charge(
        self, task: Task, source: str, events: Mapping[int, Event], *, refuse: bool = True
    ) -> None:
        """Charge releases: each of them, or the worst one once where they share no record.

        A client whose records may have a looser level of privacy than before pays what that costs.

        events: What each release costs a record, by its number.
        refuse: Whether to refuse what is beyond the limit; releases that have left already are
            charged in any case.

        Raises BudgetExceeded if the source's limit, or the study's own promise, does not allow it;
        ConfigError if it and another study of the source mean different things by a record;
        LocalStoreError if one of them has been charged, or the ledger has an event that nobody here
        knows.
        """
        study, privacy, budget = task.study, task.study.privacy, task.budget
        before = spent_by(self._db.rows, study.name)
        earlier = [] if before is None else [before]
        each = budget.scope != "record"
        if not events:
            return
        if (location := self._locations.get(source)) is not None:
            # not before: a file whose first release is refused may have another name
            self._db.write("INSERT OR IGNORE INTO locations VALUES (?, ?)", location, source)
        if each:
            total = compose([*events.values(), *earlier])
        else:
            total = functools.reduce(worse, {*events.values(), *earlier})
        if total == before and not each:
            return
        if refuse:
            if study.private:
                self._check_scope(task, source)
            self._check_budget(task, source, total)
        private = total != NonPrivate()
        # nobody knows the levels of releases that this database has lost
        epsilon = budget.epsilons[budget.ceiling] if refuse else privacy.epsilon
        self._db.write(
            "INSERT INTO charged VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (study) "
            "DO UPDATE SET epsilon = excluded.epsilon",
            study.name, source, privacy.mechanism, epsilon, privacy.delta,
            (privacy.records or 1) if private else None, privacy.neighbours if private else None,
            task.slots, private and budget.noise_per_record,
        )  # fmt: skip
        rows = events if each else {min(events): total}
        if not each:
            self._db.write("DELETE FROM spends WHERE study = ?", study.name)
        self._db.write_many(
            "INSERT INTO spends VALUES (?, ?, ?, ?)",
            [(study.name, seq, budget.scope, encode(event)) for seq, event in rows.items()],
        )
        for name, event in self._unpaid(task, source).items():
            self._db.write(
                "INSERT INTO charged VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                name, source, "before any release", total_epsilon([event], 0.0), 0.0,
                privacy.records or 1, privacy.neighbours, task.slots, False,
            )  # fmt: skip
            self._db.write(
                "INSERT INTO spends VALUES (?, 0, ?, ?)", name, budget.scope, encode(event)
            )

    def _unpaid(self, task: Task, source: str) -> dict[str, Event]:
        """Return what a study's making has cost and no study has paid for on this source yet.

        Its name stands among those of studies, with a mark of the source: each source pays.
        """
        found: dict[str, Event] = {}
        if not task.budget.beforehand:
            return found
        paid = {charge.study: charge.event for charge in charges(self._db.rows, source)}
        for name, event in task.budget.beforehand.items():
            mark = hashlib.sha256(f"{self._db.client}/{source}".encode()).hexdigest()[:12]
            named = f"{name} of {mark}"
            if named not in paid or worse(paid[named], event) != paid[named]:
                found[named] = event
        return found

    def released_without_privacy(self, source: str) -> bool:
        """Whether a study without privacy has released a source, here or elsewhere."""
        return any(charge.event == NonPrivate() for charge in charges(self._db.rows, source))

    def allowed(self, source: str) -> Allowed:
        """Return the limit of a source."""
        row = self._db.row(
            "SELECT epsilon, delta, unit_records, neighbours FROM sources WHERE source = ?", source
        )
        if row is None:
            raise ConfigError(f"this client has no source {source!r}")
        return Allowed(row[0], row[1], Unit(row[2], row[3]))

    def _name_once(self, source: str, location: str | None) -> None:
        """Refuse a second name for a file that was released: its budget would be counted apart."""
        if location is None:
            return
        self._locations[source] = location
        row = self._db.row("SELECT source FROM locations WHERE location = ?", location)
        if row is not None and row[0] != source:
            raise ConfigError(
                f"--source-name: this client knows the file as source {row[0]!r}; one file has one "
                "budget, so use that name"
            )

    def _check_budget(self, task: Task, source: str, total: Event) -> None:
        """Refuse a study that would have cost so much beyond its own promise or the limit."""
        study, privacy, budget = task.study, task.study.privacy, task.budget
        limit, unit = (allowed := self.allowed(source)).epsilon, allowed.unit
        if not study.private:
            if limit is not None:
                raise BudgetExceeded(
                    f"source {source!r} has a privacy limit; a study without privacy cannot read it"
                )
            return
        total = budget.together(total)
        mine = [budget.of_unit(event) for event in (total, *budget.beforehand.values())]
        own = total_epsilon(mine, privacy.delta or 0.0)
        if task.budget.scope != "record" and own > (privacy.epsilon or 0.0) * (1 + HAIR):
            raise BudgetExceeded(
                f"study {study.name!r}: with one more release its releases would reach epsilon "
                f"{own:.4g}, and it promises {privacy.epsilon:g}: the study is over for this "
                "client. A study with a new name may continue, if the limit of the source allows "
                "it"
            )
        if limit is None:
            # the source was opened to a study without privacy: no limit holds any more
            return
        if unit.neighbours == "zero-out" and task.budget.shows_absence:
            raise BudgetExceeded(
                f"source {source!r} has a limit that protects whether a record is there "
                '(neighbours = "zero-out"), and with privacy.personal.column the noise of '
                "this study shows empty slots; give --level with the strictest level, or let "
                "this study read a source that no other has read"
            )
        found = charges(self._db.rows, source)
        others = [one for one in found if not (one.own and one.study == study.name)]
        spent = protecting(others, unit)
        this = [
            unit.convert(event, privacy.neighbours, noise_per_record=budget.noise_per_record)
            for event in (total, *self._unpaid(task, source).values())
        ]
        epsilon = total_epsilon([*spent, *this], allowed.delta)
        if epsilon > limit * (1 + HAIR):
            raise BudgetExceeded(
                f"source {source!r}: {counted(len(spent), 'other study', 'other studies')} "
                "and this one "
                f"{beyond([*spent, *this], epsilon, allowed.delta, unit, limit)}"
            )

    def _check_scope(self, task: Task, source: str) -> None:
        """Refuse two studies of which one takes rows for records, the other individuals in slots.

        Of such costs there is no sum: one individual has a row in each slot.
        """
        individuals = task.budget.scope == "individual"
        others = self._db.rows(
            "SELECT DISTINCT study FROM charged JOIN spends USING (study) WHERE source = ? "
            "AND (scope = 'individual') != ? AND neighbours IS NOT NULL ORDER BY study",
            source, individuals,
        )  # fmt: skip
        if others:
            rows, slots = "takes each row for a record", "takes an individual's rows for one record"
            mine, its = (slots, rows) if individuals else (rows, slots)
            raise ConfigError(
                f"--source: study {others[0][0]!r} has released source {source!r}; it {its}, "
                f"and study {task.study.name!r} {mine}: their costs cannot be added, so that no "
                "limit of the source would hold. Nothing was spent. The data owner must choose "
                "one of them for these records; another --source-name would only hide it"
            )

    def _check_limit(self, task: Task, source: str, limit: Limit) -> None:
        """Refuse a limit below what has been spent on the source."""
        allowed = self.allowed(source)
        spent = protecting(as_known(charges(self._db.rows, source), task), allowed.unit)
        if allowed.epsilon is None or not spent:
            return
        reached = total_epsilon(spent, allowed.delta)
        if reached > allowed.epsilon * (1 + HAIR):
            if math.isinf(reached) and limit.delta:
                raise ConfigError(
                    f"--delta-limit: at delta {allowed.delta:g}, what studies have spent on "
                    f"source {source!r} has no epsilon; give a larger one"
                )
            raise ConfigError(
                f"--epsilon-limit: {allowed.epsilon:g} at delta {allowed.delta:g} is below the "
                f"{reached:.4g} that studies have spent on source {source!r}"
            )
