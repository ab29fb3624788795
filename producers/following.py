"""A study that follows another: a client goes on behind the records it has released for that one.

From the later study's first release on, the earlier one is over for this client. The
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
        found = self._db.row(
            "SELECT position, owed, waiting FROM streams WHERE study = ? AND source = ?",
            before, source,
        )  # fmt: skip
        if before in missing:
            raise LedgerBehind(
                f"study.follows: this client's database has lost releases of study {before!r}: put "
                "the newest database back; if it is gone, start that study once with --skip-lost"
            )
        if before is not None and study in self._chain(before):
            raise ConfigError(
                f"study.follows: study {before!r} follows study {study!r} for this client: start "
                "its producer with the file of that one, or give this study a new name"
            )
        position, owed, waiting = found or (None, 0, 0)
        if waiting:
            raise ConfigError(
                f"study.follows: {waiting} releases of study {before!r} have not been sent: start "
                "its producer once more, until it says that none is left; nothing was spent"
            )
        self._db.write(
            "UPDATE streams SET follows = ?, position = ?, owed = ? WHERE study = ?",
            before if found else None, position, owed, study,
        )  # fmt: skip

    def passed(self, study: str) -> None:
        """Let the study that one follows, which has released nothing, know what was passed over."""
        asked = "SELECT position, owed, next_seq FROM streams WHERE study = ?"
        while (row := self._db.row(asked, study)) and not row[2]:
            if (before := self.before(study)) is None:
                return
            self._db.write(
                "UPDATE streams SET position = ?, owed = ? WHERE study = ?", row[0], row[1], before
            )
            study = before

    def check(self, study: str) -> None:
        """Refuse a study that is over for this client, as one that follows has released.

        Raises ConfigError.
        """
        if row := self._db.row(
            "SELECT study FROM streams WHERE follows = ? AND next_seq > 0", study
        ):
            raise ConfigError(
                f"study {study!r} is over for this client, which goes on with study {row[0]!r} "
                "behind its records: start its producer with the file of that one"
            )

    def before(self, study: str) -> str | None:
        """Return the study that one follows."""
        row = self._db.row("SELECT follows FROM streams WHERE study = ?", study)
        return None if row is None or row[0] is None else str(row[0])

    def first(self, study: str) -> str:
        """Return the first study of those that follow each other up to this one."""
        return self._chain(study)[-1]

    def _chain(self, study: str) -> list[str]:
        found = [study]
        while before := self.before(found[-1]):
            found.append(before)
        return found


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
