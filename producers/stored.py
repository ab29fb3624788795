"""What a client's database holds of its studies: where each stands, and what it has lost."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from pipeline.errors import ConfigError, StateError
from pipeline.messages.envelope import Headers
from pipeline.privacy import memory
from pipeline.stream.release import Standing
from producers.database import Database
from producers.memory import Remembered


@dataclass(frozen=True, slots=True)
class Stream:
    """Where a study stands at this client.

    position: Where its source continues; None at the start.
    next_seq: Number of its next release.
    sent: Partition and offset of its newest acknowledged release in the releases topic.
    latest: Event time of its newest release, in milliseconds since 1970; None if it has none.
    owed: Slots that are to be passed over before anything is released; see `producers.passing`.
    """

    position: bytes | None
    next_seq: int
    sent: tuple[int, int] | None = None
    latest: int | None = None
    owed: int = 0


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


def row_of(study: str, outgoing: Outgoing) -> tuple[object, ...]:
    """Return a row of the outbox; its sum shows bytes of another state of the file."""
    headers = msgspec.msgpack.encode(outgoing.headers)
    crc = zlib.crc32(outgoing.payload + headers)
    return study, outgoing.seq, outgoing.payload, headers, crc


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

    def advance(self, study: str, seqs: Sequence[int], position: bytes, tally: Tally) -> None:
        """Take the next releases: their numbers, what they held, and where the source goes on."""
        if owed := self.peek(study).owed:
            raise StateError(
                f"study {study!r}: {owed} slots of lost releases are to be passed over first; "
                "start this client again"
            )
        self.number(study, seqs)
        self._db.write(
            "UPDATE streams SET position = ?, records = records + ?, "
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
                f"study {study!r}: the releases to be sent are not the next ones of this "
                "database; start this client again, so that it reads the database anew"
            )
        self._db.write("UPDATE streams SET next_seq = ? WHERE study = ?", first + len(seqs), study)

    def wait(self, study: str, more: int) -> None:
        """Count releases that are put into the outbox, or taken out of it if negative."""
        self._db.write("UPDATE streams SET waiting = waiting + ? WHERE study = ?", more, study)

    def standing(self, study: str) -> Standing:
        """Return what the next release of a study is made with."""
        row = self._db.row(
            "SELECT next_seq, held, chain, number, slots, starts, remembered FROM streams "
            "LEFT JOIN noise USING (study) WHERE study = ?",
            study,
        )
        if row is None:
            return Standing()
        if row[2] is None:
            return Standing(row[0], row[1]).anew()
        starts = tuple(np.frombuffer(row[5], dtype="<i8").tolist())
        rows = np.frombuffer(row[6], dtype="<i8").astype(np.int64).reshape(memory.WINDOWS, -1)
        return Standing(row[0], row[1], memory.Chain(row[2], row[3], row[4], starts, rows))

    def stand(self, study: str, standing: Standing | None, slots: int) -> None:
        """Note where a study stands behind its newest releases.

        standing: None: so many slots further, with noise that remembers nothing.
        """
        if standing is None:
            self._db.write("UPDATE streams SET held = held + ? WHERE study = ?", slots, study)
            return
        chain = standing.chain
        self._db.write("UPDATE streams SET held = ? WHERE study = ?", standing.held, study)
        self._db.write(
            "INSERT OR REPLACE INTO noise VALUES (?, ?, ?, ?, ?, ?)",
            study, chain.chain, chain.number, chain.slots,
            np.array(chain.starts, dtype="<i8").tobytes(), chain.rows.astype("<i8").tobytes(),
        )  # fmt: skip

    def place(self, study: str, sent: tuple[int, int]) -> None:
        """Note where in the releases topic the newest acknowledged release is."""
        self._db.write(
            "UPDATE streams SET sent_partition = ?, sent_offset = ? WHERE study = ?", *sent, study
        )


#: Stands for all studies whose share an older version did not write down.
ANY = ""


class Counts:
    """The releases of every study of one client.

    database: Whose; its folder's memory is kept up to date.
    """

    def __init__(self, database: Database) -> None:
        self._db = database
        rows = database.rows("SELECT study, next_seq FROM streams WHERE next_seq > 0")
        self._held = {str(study): int(number) for study, number in rows}
        self._unnamed = self.missing.get(ANY, 0)
        self._note()

    @property
    def missing(self) -> dict[str, int]:
        """How many releases of a study this folder remembers and the database has not."""
        return absent(self._db.memory.says, self._held)

    def add(self, study: str, releases: int, *, lost: bool = False) -> None:
        """Count releases that the database has now.

        lost: Whether they are older than that: then the folder may have counted them already.
        """
        before = self._held.get(study, 0)
        self._held[study] = before + releases
        if lost:
            named = max(before, self._db.memory.says.studies.get(study, 0))
            self._unnamed = max(0, self._unnamed - max(0, before + releases - named))
        self._note()

    def _note(self) -> None:
        studies = dict(self._db.memory.says.studies)
        for study, held in self._held.items():
            studies[study] = max(held, studies.get(study, 0))
        total = sum(studies.values()) + self._unnamed
        self._db.remember(Remembered(self._db.ledger, total, studies))


def absent(says: Remembered, held: Mapping[str, int]) -> dict[str, int]:
    """Return how many releases of a study a folder remembers beyond those that are held."""
    found = {
        study: count - held.get(study, 0)
        for study, count in says.studies.items()
        if count > held.get(study, 0)
    }
    total = sum(max(held.get(s, 0), says.studies.get(s, 0)) for s in {*says.studies, *held})
    if says.releases > total:
        found[ANY] = says.releases - total
    return found
