"""What a client must never lose: privacy ledger, outbox and source position, in one file.

A release is one transaction: the budget is checked and spent, the noised bytes are stored, the
source position moves on. Whatever happens before it, nothing was released; whatever happens after
it, the same bytes are sent. Several windows that are ready at once share a transaction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import msgspec

from pipeline.errors import BudgetExceeded, ConfigError, StateError
from pipeline.local.plan import Plan
from pipeline.messages.envelope import Headers, rfc3339
from producers.database import Database
from producers.ledger import Ledger, Limit

NO_LIMIT = Limit()


@dataclass(frozen=True, slots=True)
class Stream:
    """Where a study stands at this client.

    Attributes
    ----------
    position
        Where its source continues; None at the start.
    next_seq
        Number of its next release.
    sent
        Partition and offset of its newest acknowledged release in the releases topic.
    """

    position: bytes | None
    next_seq: int
    sent: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A stored release on its way."""

    seq: int
    payload: bytes
    headers: Headers


@dataclass(frozen=True, slots=True)
class Tally:
    """What windows held, for the client's own eyes; none of it leaves this database."""

    records: int
    rejected: Mapping[str, int]
    clipped: int


class Vault:
    """The database of one client.

    Parameters
    ----------
    path, client
        As `Database` takes them, with its errors.
    """

    def __init__(self, path: Path, client: str) -> None:
        self.client = client
        self._db = Database(path, client)
        self._budgets = Ledger(self._db)
        self.ledger = self._db.ledger

    def __enter__(self) -> Vault:
        """Return the vault."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close."""
        self.close()

    def close(self) -> None:
        """Close the file and give up the lock."""
        self._db.close()

    @property
    def since(self) -> float | None:
        """When this ledger was made, in seconds; None if just now, by this process."""
        return None if self._db.fresh else self._db.created_at

    def open_stream(
        self, plan: Plan, source: str, limit: Limit = NO_LIMIT, *, location: str | None = None
    ) -> Stream:
        """Return where a study stands, registering it and its source on first sight.

        Parameters
        ----------
        source
            Stable name of the data source: all studies that read it share its budget.
        limit
            What all studies together may spend on the source; by default what was set before, or
            the first study's own budget. It is never lowered below what is spent.
        location
            The file behind it, if it is one: a file has one name.

        Raises
        ------
        ConfigError
            If the study was begun under another revision or on another source, the limit is below
            what is spent, or the file has another name.
        """
        name = plan.study.name
        with self._db.transaction():
            row = self._db.row(
                "SELECT revision, source, position, next_seq, sent_partition, sent_offset "
                "FROM streams WHERE study = ?",
                name,
            )
            if row is None:
                row = (plan.revision, source, None, 0, None, None)
                self._db.write(
                    "INSERT INTO streams VALUES (?, ?, ?, ?, ?, 0, 0, 0, ?, ?)",
                    name, *row,
                )  # fmt: skip
            if row[0] != plan.revision:
                raise ConfigError(
                    f"this client began study {name!r} under revision {row[0]}, the "
                    f"file is revision {plan.revision}: restore the file, or give the study a new "
                    "name (its releases then count against the same source)"
                )
            if row[1] != source:
                raise ConfigError(
                    f"this client began study {name!r} on source {row[1]!r}, not "
                    f"{source!r}: name the same source with --source-name, or use another client"
                )
            self._budgets.open_source(plan, source, location, limit)
        return Stream(row[2], row[3], None if row[5] is None else (row[4], row[5]))

    def release(
        self, plan: Plan, source: str, group: Sequence[Outgoing], *, position: bytes,
        tally: Tally, now: float,
    ) -> None:  # fmt: skip
        """Spend, store and move on: one durable transaction, or nothing.

        Parameters
        ----------
        group
            Releases with consecutive numbers, from the stream's next one on.
        position
            Where the source continues behind the last of them.

        Raises
        ------
        BudgetExceeded
            If the source has no budget left for this study; nothing is spent and the position
            stays. The refusal itself is noted.
        LocalStoreError
            If the disk is full or fails; nothing is spent and the position stays.
        """
        study, at = plan.study.name, rfc3339(now)
        try:
            with self._db.transaction():
                self._budgets.charge(plan, source)
                self._advance(study, group[0].seq, len(group), position, tally)
                self._db.write_many(
                    "INSERT INTO ledger VALUES (?, ?, ?, 0)", [(study, o.seq, at) for o in group]
                )
                self._db.write_many(
                    "INSERT INTO outbox VALUES (?, ?, ?, ?)",
                    [(study, o.seq, o.payload, msgspec.msgpack.encode(o.headers)) for o in group],
                )
        except BudgetExceeded as error:
            with self._db.transaction():
                self._db.write("INSERT INTO refusals VALUES (?, ?, ?)", study, str(error), at)
            raise

    def pass_over(
        self, plan: Plan, source: str, seqs: range, *, position: bytes | None, now: float
    ) -> None:
        """Charge releases that this database has lost, and go on behind them.

        Parameters
        ----------
        seqs
            Their numbers, from the stream's next one on.
        position
            Where the source continues behind all records that can have been in them.
        """
        study, at = plan.study.name, rfc3339(now)
        with self._db.transaction():
            self._budgets.charge(plan, source)
            self._advance(study, seqs.start, len(seqs), position, Tally(0, {}, 0))
            self._db.write_many(
                "INSERT INTO ledger VALUES (?, ?, ?, 1)", [(study, seq, at) for seq in seqs]
            )

    def unsent(self, study: str, after: int, limit: int) -> list[Outgoing]:
        """Return stored releases with a number above `after`, in order."""
        rows = self._db.rows(
            "SELECT seq, payload, headers FROM outbox WHERE study = ? AND seq > ? "
            "ORDER BY seq LIMIT ?",
            study, after, limit,
        )  # fmt: skip
        return [
            Outgoing(seq, payload, msgspec.msgpack.decode(headers, type=Headers))
            for seq, payload, headers in rows
        ]

    def waiting(self, study: str) -> int:
        """Return how many releases Kafka has not acknowledged."""
        rows = self._db.rows("SELECT count(*) FROM outbox WHERE study = ?", study)
        return int(rows[0][0])

    def sent(self, study: str, numbers: Sequence[int], place: tuple[int, int] | None) -> None:
        """Drop the bytes of acknowledged releases; their ledger rows stay.

        Parameters
        ----------
        place
            Partition and offset of the last of them in the releases topic.
        """
        with self._db.transaction():
            self._db.write_many(
                "DELETE FROM outbox WHERE study = ? AND seq = ?", [(study, n) for n in numbers]
            )
            if place is not None:
                self._db.write(
                    "UPDATE streams SET sent_partition = ?, sent_offset = ? WHERE study = ?",
                    *place, study,
                )  # fmt: skip

    def _advance(
        self, study: str, first: int, count: int, position: bytes | None, tally: Tally
    ) -> None:
        row = self._db.row("SELECT next_seq FROM streams WHERE study = ?", study)
        if row is None or row[0] != first:
            raise StateError(
                f"study {study!r}: release {first} is not the next one of this database; start "
                "this client again"
            )
        self._db.write(
            "UPDATE streams SET position = ?, next_seq = ?, records = records + ?, "
            "rejected = rejected + ?, clipped = clipped + ? WHERE study = ?",
            position, first + count, tally.records, sum(tally.rejected.values()), tally.clipped,
            study,
        )  # fmt: skip
        self._db.write_many(
            "INSERT INTO rejects VALUES (?, ?, ?) ON CONFLICT (study, reason) "
            "DO UPDATE SET count = count + excluded.count",
            [(study, reason, number) for reason, number in tally.rejected.items()],
        )
