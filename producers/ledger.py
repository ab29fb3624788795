"""The privacy ledger of a client: what studies on one source may spend together, and have spent.

Records of one study enter one release each, so a study costs a record the same however long it
runs: its cost is charged with its first release. Studies on the same source compose.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pipeline.errors import BudgetExceeded, ConfigError
from pipeline.privacy.accounting import Cost, Unit, total_epsilon
from pipeline.release.task import Task
from producers.database import Database

#: Calibration pays a hair for discrete noise; a limit that equals the budget must allow it.
HAIR = 1e-6


@dataclass(frozen=True, slots=True)
class Limit:
    """What the data owner allows on one source, by flags; None where none was given.

    Attributes
    ----------
    epsilon, delta
        What all studies together may spend on one unit.
    """

    epsilon: float | None = None
    delta: float | None = None


@dataclass(frozen=True, slots=True)
class Budget:
    """The limit of one source as it stands; epsilon None: opened to studies without privacy."""

    epsilon: float | None
    delta: float
    unit: Unit


class Ledger:
    """Budgets and spends in a client's database; its callers hold the transaction."""

    def __init__(self, database: Database) -> None:
        self._db = database

    def open_source(self, task: Task, source: str, location: str | None, limit: Limit) -> None:
        """Register a source on first sight, and take over a new limit.

        Raises
        ------
        ConfigError
            If the limit is below what is spent, or the file is known under another name.
        """
        privacy = task.study.privacy
        self._name_once(source, location)
        private = task.study.private
        own = (limit.epsilon or task.epsilons[task.ceiling], limit.delta or privacy.delta or 0.0)
        wanted = own if private else (None, 0.0)
        unit = (privacy.records or 1, privacy.neighbours)
        self._db.write(
            "INSERT INTO sources VALUES (?, ?, ?, ?, ?) ON CONFLICT (source) DO NOTHING",
            source, *wanted, *unit,
        )  # fmt: skip
        released_without_privacy = self._db.row(
            "SELECT 1 FROM spends WHERE source = ? AND mu IS NULL", source
        )
        if private and released_without_privacy is None:
            # a study without privacy that never released anything lifts no limit
            self._db.write(
                "UPDATE sources SET epsilon = ?, delta = ?, unit_records = ?, neighbours = ? "
                "WHERE source = ? AND epsilon IS NULL",
                *wanted, *unit, source,
            )  # fmt: skip
        if limit == Limit():
            return
        if released_without_privacy is not None:
            raise ConfigError(
                f"--epsilon-limit: a study without privacy has released source {source!r}; "
                "no limit holds for it any more"
            )
        self._db.write(
            "UPDATE sources SET epsilon = coalesce(?, epsilon), delta = coalesce(?, delta) "
            "WHERE source = ? AND epsilon IS NOT NULL",
            limit.epsilon, limit.delta, source,
        )  # fmt: skip
        self._check_limit(source)

    def charge(self, task: Task, source: str, *, refuse: bool = True) -> None:
        """Charge a study's cost with its first release; later ones cost nothing more.

        A client whose records may have a looser level of privacy than before pays what that costs.

        Parameters
        ----------
        refuse
            Whether to refuse what is beyond the limit; releases that have left already are charged
            in any case.

        Raises
        ------
        BudgetExceeded
            If the source's limit does not allow it.
        """
        study, privacy = task.study, task.study.privacy
        # nobody knows the levels of releases that this database has lost
        epsilon = task.epsilons[task.ceiling] if refuse else privacy.epsilon
        cost = None
        if study.private:
            cost = task.cost if refuse else task.largest_cost
        charged = self._db.row("SELECT mu FROM spends WHERE study = ?", study.name)
        if charged is not None and (cost is None or cost.mu <= charged[0]):
            return
        if refuse:
            self._check_budget(task, source)
        self._db.write(
            "INSERT INTO spends VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (study) "
            "DO UPDATE SET epsilon = excluded.epsilon, mu = excluded.mu, pure = excluded.pure",
            study.name, source, privacy.mechanism, epsilon, privacy.delta,
            (privacy.records or 1) if cost else None, privacy.neighbours if cost else None,
            cost.mu if cost else None, cost.epsilon if cost else None, task.slots,
            bool(cost and cost.apart),
        )  # fmt: skip

    def released(self, source: str) -> bool:
        """Whether any study of this ledger has released a source."""
        return self._db.row("SELECT 1 FROM spends WHERE source = ?", source) is not None

    def released_without_privacy(self, source: str) -> bool:
        """Whether a study without privacy has released a source, here or elsewhere."""
        query = "SELECT 1 FROM charges WHERE source = ? AND mu IS NULL"
        return self._db.row(query, source) is not None

    def budget(self, source: str) -> Budget:
        """Return the limit of a source."""
        row = self._db.row(
            "SELECT epsilon, delta, unit_records, neighbours FROM sources WHERE source = ?", source
        )
        if row is None:
            raise ConfigError(f"this client has no source {source!r}")
        return Budget(row[0], row[1], Unit(row[2], row[3]))

    def _name_once(self, source: str, location: str | None) -> None:
        """Refuse a second name for a file: its budget would be counted apart."""
        if location is None:
            return
        row = self._db.row("SELECT source FROM locations WHERE location = ?", location)
        if row is None:
            self._db.write("INSERT INTO locations VALUES (?, ?)", location, source)
        elif row[0] != source:
            raise ConfigError(
                f"--source-name: this client knows the file as source {row[0]!r}; one file has one "
                "budget, so use that name"
            )

    def _check_budget(self, task: Task, source: str) -> None:
        budget = self.budget(source)
        if not task.study.private:
            if budget.epsilon is not None:
                raise BudgetExceeded(
                    f"source {source!r} has a privacy limit; a study without privacy cannot read it"
                )
            return
        if budget.epsilon is None:
            # the source was opened to a study without privacy: no limit holds any more
            return
        if budget.unit.neighbours == "zero-out" and task.shows_absence:
            raise BudgetExceeded(
                f"source {source!r} has a limit for the absence of a record, which the noise of "
                "this study shows (privacy.personal.column): give --level with the strictest "
                "level, or let the study be the first that reads a source"
            )
        others = self._db.rows(f"{SPENT} AND NOT (own AND study = ?)", source, task.study.name)
        spent = costs(others, budget.unit)
        own = budget.unit.convert(task.cost, task.study.privacy.neighbours)
        epsilon = total_epsilon([*spent, own], budget.delta)
        if epsilon > budget.epsilon * (1 + HAIR):
            raise BudgetExceeded(
                f"source {source!r}: {len(spent)} other studies and this one would reach epsilon "
                f"{epsilon:.4g} at delta {budget.delta:g} for {worded(budget.unit)}, the limit is "
                f"{budget.epsilon:g}; raise it with --epsilon-limit"
                + (" and --delta-limit" if budget.delta == 0 else "")
                + " if the data owner agrees, or stop this study"
            )

    def _check_limit(self, source: str) -> None:
        """Refuse a limit below what has been spent on the source."""
        budget = self.budget(source)
        spent = costs(self._db.rows(SPENT, source), budget.unit)
        if budget.epsilon is None or not spent:
            return
        reached = total_epsilon(spent, budget.delta)
        if reached > budget.epsilon * (1 + HAIR):
            raise ConfigError(
                f"--epsilon-limit: {budget.epsilon:g} at delta {budget.delta:g} is below the "
                f"{reached:.4g} that studies have spent on source {source!r}"
            )


#: Costs of the studies that have released a source, here or elsewhere.
SPENT = "SELECT mu, pure, apart, neighbours FROM charges WHERE source = ? AND mu IS NOT NULL"


def costs(rows: Iterable[tuple[float, float | None, int, str]], unit: Unit) -> list[Cost]:
    """Return rows of `SPENT` as costs of a source's unit."""
    return [
        unit.convert(Cost(mu, pure, apart=bool(apart)), neighbours)
        for mu, pure, apart, neighbours in rows
    ]


def worded(unit: Unit) -> str:
    """Return a unit in words."""
    who = "one record" if unit.records == 1 else f"a user's {unit.records} records"
    return f"{who} ({unit.neighbours})"
