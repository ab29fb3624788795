"""A study that follows another: a client goes on behind the records it has released for that one.

From the transaction on that begins the later study, the earlier one is over for this client. The
ledger adds both up all the same: that no record enters releases of both would have to be shown of
every copy of a client's database that is ever put back (docs/privacy/composition.md).
"""

from __future__ import annotations

from collections.abc import Collection

from pipeline.errors import ConfigError, LedgerBehind
from pipeline.privacy.accounting import Unit
from pipeline.privacy.events import Event, compose
from pipeline.release.task import Task
from producers.charges import Rows, charges, protecting
from producers.database import Database


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


def spent(rows: Rows, source: str, unit: Unit) -> list[Event]:
    """Return what a source's unit has paid, as events that add up; LocalStoreError as `charges`."""
    return protecting(charges(rows, source), unit)


def forecast(rows: Rows, task: Task, source: str, unit: Unit) -> list[Event]:
    """Return what a source's unit will have paid when a study is added, as `spent`.

    A study whose releases each pay is taken at all that it may spend.
    """
    name, budget, neighbours = task.study.name, task.budget, task.study.privacy.neighbours
    paid = spent(rows, source, unit)
    if any(charge.own and charge.study == name for charge in charges(rows, source)):
        return paid
    own = unit.convert(
        budget.together(compose({budget.largest_event: budget.releases or 1})),
        neighbours,
        noise_per_record=budget.noise_per_record,
    )
    return [*paid, *(unit.convert(e, neighbours) for e in budget.beforehand.values()), own]
