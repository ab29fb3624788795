"""Where each study stands at a client: source, numbers, and what is still to be passed over."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.errors import ConfigError, StateError
from producers.database import Database
from producers.stored import Stream, Tally


class Streams:
    """Rows of studies in a client's database; callers hold the transaction."""

    def __init__(self, database: Database) -> None:
        self._db = database

    def peek(self, study: str) -> Stream:
        """Return where a study stands, without registering anything."""
        row = self._db.row(
            "SELECT position, next_seq, sent_partition, sent_offset, latest, owed FROM streams "
            "LEFT JOIN event_times USING (study) WHERE study = ?",
            study,
        )
        if row is None:
            return Stream(None, 0)
        sent = None if row[3] is None else (row[2], row[3])
        return Stream(row[0], row[1], sent, row[4], row[5])

    def pass_over(self, study: str, slots: int, position: bytes) -> None:
        """Move the source on behind slots that are owed.

        slots: How many, at most as many as are owed.
        position: Where the source continues behind them.
        """
        owed = self.peek(study).owed
        if not 0 < slots <= owed:
            raise StateError(f"study {study!r}: {owed} slots are owed, not {slots}")
        self._db.write(
            "UPDATE streams SET position = ?, owed = ? WHERE study = ?",
            position, owed - slots, study,
        )  # fmt: skip

    def check_times(self, study: str, column: str | None) -> None:
        """Refuse times of another kind than those that a study was begun with."""
        row = self._db.row("SELECT name FROM event_times WHERE study = ?", study)
        begun = None if row is None else row[0]
        if begun != column:
            said = f"with --event-time {begun}" if begun else "without --event-time"
            raise ConfigError(
                f"this client began study {study!r} {said}: go on in the same way, or its times "
                "would not be of one kind"
            )

    def advance(
        self, study: str, seqs: Sequence[int], position: bytes | None, tally: Tally
    ) -> None:
        """Take the next releases: their numbers, what they held, and where the source goes on."""
        if owed := self.peek(study).owed:
            raise StateError(
                f"study {study!r}: {owed} slots of lost releases are to be passed over first; "
                "start this client again"
            )
        self.number(study, seqs)
        self._db.write(
            "UPDATE streams SET position = coalesce(?, position), records = records + ?, "
            "rejected = rejected + ?, clipped = clipped + ? WHERE study = ?",
            position, tally.records, sum(tally.rejected.values()), tally.clipped, study,
        )  # fmt: skip
        self._db.write_many(
            "INSERT INTO rejects VALUES (?, ?, ?) ON CONFLICT (study, reason) "
            "DO UPDATE SET count = count + excluded.count",
            [(study, reason, number) for reason, number in tally.rejected.items()],
        )

    def number(self, study: str, seqs: Sequence[int]) -> None:
        """Take the next numbers of releases."""
        row = self._db.row("SELECT next_seq FROM streams WHERE study = ?", study)
        first = -1 if row is None else int(row[0])
        if not seqs or list(seqs) != list(range(first, first + len(seqs))):
            raise StateError(
                f"study {study!r}: these are not the next releases of this database; start this "
                "client again"
            )
        self._db.write("UPDATE streams SET next_seq = ? WHERE study = ?", first + len(seqs), study)

    def wait(self, study: str, more: int) -> None:
        """Count releases that are put into the outbox, or taken out of it if negative."""
        self._db.write("UPDATE streams SET waiting = waiting + ? WHERE study = ?", more, study)

    def place(self, study: str, sent: tuple[int, int]) -> None:
        """Note where in the releases topic the newest acknowledged release is."""
        self._db.write(
            "UPDATE streams SET sent_partition = ?, sent_offset = ? WHERE study = ?", *sent, study
        )
