"""A study that follows another: a client goes on behind the records it has released for that one.

From the transaction on that begins the later study, the earlier one is over for this client, so no
record enters releases of both, and one record is paid for once, by the dearer of the two (adaptive
parallel composition, as within a study: docs/privacy/composition.md).
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Sequence

from pipeline.errors import ConfigError, LedgerBehind
from pipeline.privacy.accounting import Unit
from pipeline.privacy.events import Event, compose, worse
from pipeline.release.task import Task
from producers.charges import Charge, Rows, charges, protecting
from producers.database import Database

#: Whether no record can be in releases of a study and the one that it follows: none of either was
#: lost, so the positions are true, and a record of the earlier one enters a single release.
_APART = """
    SELECT 1 FROM charged WHERE study = ?2 AND source = ?3 AND unit_records = 1
    AND NOT EXISTS (SELECT 1 FROM charged WHERE study = ?1 AND unit_records != 1)
    AND NOT EXISTS (SELECT 1 FROM ledger WHERE study IN (?1, ?2) AND lost)
    AND NOT EXISTS (
      SELECT 1 FROM spends WHERE study IN (?1, ?2) AND scope != 'record')
    AND NOT EXISTS (
      SELECT 1 FROM inherited, identity WHERE inherited.ledger = identity.ledger
      AND inherited.source = ?3 AND inherited.study IN (?1, ?2))"""


class Following:
    """What studies of a client follow; callers hold the transaction."""

    def __init__(self, database: Database) -> None:
        self._db = database

    def begin(self, study: str, source: str, before: str | None, missing: Collection[str]) -> None:
        """Place a study that has released nothing behind the one that it follows.

        before: The study that it follows, if any.
        missing: Studies of which this folder remembers releases that the database lacks.

        Raises LedgerBehind if `before` is among these; ConfigError if some of its releases have not
        been sent.
        """
        row = self._db.row("SELECT follows FROM streams WHERE study = ?", study)
        found = self._db.row(
            "SELECT position, owed, waiting FROM streams WHERE study = ? AND source = ?",
            before, source,
        )  # fmt: skip
        if before in missing:
            raise LedgerBehind(
                f"study.follows: this client's database has lost releases of study {before!r}: put "
                "the newest database back; if it is gone, start that study once with --skip-lost"
            )
        wanted = before if found else None
        if row is None or row[0] == wanted:
            return
        position, owed, waiting = found or (None, 0, 0)
        if waiting:
            raise ConfigError(
                f"study.follows: {waiting} releases of study {before!r} have not been sent: start "
                "its producer once more, until it says that none is left; nothing was spent"
            )
        self._db.write(
            "UPDATE streams SET follows = ?, position = ?, owed = ? WHERE study = ?",
            wanted, position, owed, study,
        )  # fmt: skip

    def check(self, study: str) -> None:
        """Refuse a study that another one follows: it is over for this client; ConfigError."""
        if row := self._db.row("SELECT study FROM streams WHERE follows = ?", study):
            raise ConfigError(
                f"study {study!r} is over for this client, which goes on with study {row[0]!r} "
                "behind its records: start its producer with the file of that one"
            )

    def first(self, study: str) -> str:
        """Return the first study of those that follow each other up to this one."""
        while row := self._db.row(
            "SELECT follows FROM streams WHERE study = ? AND follows IS NOT NULL", study
        ):
            study = str(row[0])
        return study


def apart(rows: Rows, study: str) -> list[str]:
    """Return the studies before this one whose records are in no release of it, newest first."""
    found: list[str] = []
    while link := rows("SELECT follows, source FROM streams WHERE study = ?", study):
        before, source = link[0]
        if before is None or not are_apart(rows, study, before, source):
            break
        found.append(study := str(before))
    return found


def are_apart(rows: Rows, study: str, before: str, source: str) -> bool:
    """Whether no record of a source is in releases of both a study and the one that it follows."""
    return bool(rows(_APART, study, before, source))


def spent(rows: Rows, source: str, unit: Unit, but: Collection[str] = ()) -> list[Event]:
    """Return what a source's unit has paid, as events that add up.

    but: Studies of this ledger that are left out.

    Raises LocalStoreError as `charges`.
    """
    return added(rows, [c for c in charges(rows, source) if not (c.own and c.study in but)], unit)


def added(rows: Rows, found: Sequence[Charge], unit: Unit) -> list[Event]:
    """Return what charges cost a unit, as events that add up."""
    if unit.records > 1:
        return protecting(found, unit)
    chains = [[study, *apart(rows, study)] for study in {c.study for c in found if c.own}]
    followed = {study for chain in chains for study in chain[1:]}
    events = protecting([charge for charge in found if not charge.own], unit)
    for chain in chains:
        if chain[0] not in followed:
            each = protecting([c for c in found if c.own and c.study in chain], unit)
            events += [functools.reduce(worse, each)] if len(chain) > 1 and each else each
    return events


def forecast(rows: Rows, task: Task, source: str, unit: Unit) -> list[Event]:
    """Return what a source's unit will have paid when a study is added, as `spent`.

    A study whose releases each pay is taken at all that it may spend.
    """
    name, before, budget = task.study.name, task.study.study.follows, task.budget
    paid = spent(rows, source, unit)
    if any(charge.own and charge.study == name for charge in charges(rows, source)):
        return paid
    own = unit.convert(
        budget.together(compose({budget.largest_event: budget.releases or 1})),
        task.study.privacy.neighbours,
        noise_per_record=budget.noise_per_record,
    )
    first = [unit.convert(e, task.study.privacy.neighbours) for e in budget.beforehand.values()]
    one_each = budget.scope == "record" and (task.study.privacy.records or 1) == unit.records == 1
    if not (one_each and before and are_apart(rows, name, before, source)):
        return [*paid, *first, own]
    chain = {before, *apart(rows, before)}
    found = [charge for charge in charges(rows, source) if charge.own and charge.study in chain]
    others = spent(rows, source, unit, but=chain)
    return [*others, *first, functools.reduce(worse, protecting(found, unit), own)]
