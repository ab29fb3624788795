"""What a client must never lose: privacy ledger, outbox and source position, in one file.

A release is one transaction: the budget is checked and spent, the noised bytes are stored, the
source position moves on. Whatever happens before it, nothing was released; whatever happens after
it, the same bytes are sent. Several windows that are ready at once share a transaction.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

from pipeline.errors import BudgetExceeded, ConfigError, LocalStoreError, StateError
from pipeline.messages.topics import Headers, rfc3339
from pipeline.privacy import memory
from pipeline.privacy.events import Event
from pipeline.release.task import Task
from pipeline.stream.release import Standing
from producers.budget import Ledger, Limit
from producers.database import Database, Remembered, Runs, damaged
from producers.prior_spend import Heritage
from producers.succession import Following


@dataclass(frozen=True, slots=True)
class Stream:
    """Where a study stands at this client.

    position: Where its source continues; None at the start.
    next_seq: Number of its next release.
    sent: Partition and offset of its newest acknowledged release in the releases topic.
    latest: Event time of its newest release, in milliseconds since 1970; None if it has none.
    owed: Slots that are to be passed over before anything is released; see `producers.rollback`.
    """

    position: bytes | None
    next_seq: int
    sent: tuple[int, int] | None = None
    latest: int | None = None
    owed: int = 0


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A stored release on its way.

    empty: How many of its record slots have no place in the source.
    """

    seq: int
    payload: bytes
    headers: Headers
    empty: int = 0


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


def absent(says: Remembered, held: Mapping[str, int]) -> dict[str, int]:
    """Return how many releases of a study a folder remembers beyond those that are held."""
    more = {study: count - held.get(study, 0) for study, count in says.studies.items()}
    return {study: count for study, count in more.items() if count > 0}


#: Stands in the place of a file's stamp where a stream was stopped later.
STOPPED = "stopped"


class Trials:
    """What a client's database remembers of the tests of its studies' sources."""

    def __init__(self, database: Database) -> None:
        self._db = database

    def passed(self, study: str) -> bool:
        """Whether the study need not be tested: it was, or it has released."""
        row = self._db.row("SELECT tested, next_seq FROM streams WHERE study = ?", study)
        return row is not None and (row[0] > 0 or row[1] > 0)

    def counts(self, study: str) -> tuple[int, int]:
        """Return how many slots of a study have been released, and how many were unusable."""
        row = self._db.row(
            "SELECT records + rejected, rejected FROM streams WHERE study = ?", study
        )
        return (0, 0) if row is None else (int(row[0]), int(row[1]))

    def number(self, study: str, stamp: str) -> int:
        """Return which test the next one is, from 1 on; more than `MOST_TESTS` if none is left.

        It is 0 if the last one has refused the very same file: then the refusal stands.
        """
        row = self._db.row("SELECT tries, stamp FROM source_tests WHERE study = ?", study)
        tries, before = (0, "") if row is None else row
        return 0 if stamp and stamp == before else int(tries) + 1

    def refuse(self, study: str, number: int, stamp: str = STOPPED) -> None:
        """Remember a refusal, or how often in succession a stream was stopped, before it is heard.

        A client that dies before has told nobody what the noise said, so that its next start
        draws anew: there is no refusal of a file that nobody has refused.
        """
        with self._db.transaction():
            self._db.write(
                "INSERT OR REPLACE INTO source_tests VALUES (?, ?, ?)", study, number, stamp
            )

    def untested(self, study: str) -> int:
        """Return how many of the next slots were in the test of the first ones."""
        row = self._db.row("SELECT tested - records - rejected FROM streams WHERE study = ?", study)
        return 0 if row is None else max(0, int(row[0]))

    def stops(self, study: str) -> int:
        """Return how often in succession a stream was stopped, without any test between."""
        asked = "SELECT tries FROM source_tests WHERE study = ? AND stamp = ?"
        row = self._db.row(asked, study, STOPPED)
        return 0 if row is None else int(row[0])

    def note(self, study: str, slots: int) -> None:
        """Remember that a study's source has passed, by so many slots."""
        with self._db.transaction():
            self._db.write("UPDATE streams SET tested = ? WHERE study = ?", max(1, slots), study)


NO_LIMIT = Limit()


class ClientStore:
    """The database of one client.

    path, client: As `Database` takes them, with its errors.
    """

    def __init__(self, path: Path, client: str) -> None:
        self.client = client
        self._db = Database(path, client)
        self._budgets = Ledger(self._db)
        self.heritage = Heritage(self._db)
        self.released_without_privacy = self._budgets.released_without_privacy
        self.ledger, self.tests = self._db.ledger, Trials(self._db)
        self.following, self.runs = Following(self._db), Runs(self._db)
        rows = self._db.rows("SELECT study, next_seq FROM streams WHERE next_seq > 0")
        #: How many releases of each study the database has.
        self._held = {str(study): int(number) for study, number in rows}
        self.learn(self._held)

    def __enter__(self) -> ClientStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file and give up the lock."""
        self._db.close()

    def leave_nothing(self) -> None:
        """Remove a file that was made here and never written into; see `Database`."""
        self._db.leave_nothing()

    @property
    def missing(self) -> dict[str, int]:
        """How many releases of a study the log or the folder knows and the database has not.

        Of those that are over, nothing is released any more: what another copy has released of one
        is behind the study that has taken its place, where claims say so.
        """
        over, more = self.following.over(), absent(self._db.memory.says, self._held)
        return {name: n for name, n in more.items() if name not in over}

    def learn(self, counts: Mapping[str, int]) -> None:
        """Have the folder remember how many releases studies have: here, or as the log says."""
        studies = dict(self._db.memory.says.studies)
        for study, releases in counts.items():
            studies[study] = max(releases, studies.get(study, 0))
        self._db.remember(Remembered(self.ledger, studies))

    def acknowledged(self, study: str) -> int:
        """Return how many releases a study had when the newest was made that Kafka has taken."""
        row = self._db.row(
            "SELECT seq + 1 FROM ledger WHERE study = ?1 AND lost = 0 AND seq NOT IN "
            "(SELECT seq FROM outbox WHERE study = ?1) ORDER BY seq DESC LIMIT 1",
            study,
        )
        return 0 if row is None else int(row[0])

    @property
    def secret(self) -> bytes:
        """What the MAC of claims is made with: 32 bytes, in this database and its copies alone."""
        return bytes(self._db.rows("SELECT secret FROM secrets")[0][0])

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

    def open_stream(
        self, task: Task, source: str, limit: Limit = NO_LIMIT, *, location: str | None = None,
        event_time: str | None = None, rebind: bool = False, from_start: bool = False,
    ) -> Stream:  # fmt: skip
        """Return where a study stands, registering it and its source on first sight.

        source: Stable name of the data source: all studies that read it share its budget.
        limit: What all studies together may spend on the source; by default what was set before, or
            the first study's own budget. It is never lowered below what is spent.
        location: The file behind it, if it is one: a file has one name.
        event_time: The column that holds the times of records; None: releases carry the client's
            own.
        rebind: Whether a study that has released nothing may take another source: not where
            releases are lost, which came from the one that is named here.
        from_start: Whether a study that follows others may begin at the start of a source that was
            released for none of them, but for another.

        Raises ConfigError if the study was begun under another revision, on another source or by
        other times, is followed by another or cannot follow one yet, the limit is below what is
        spent, or the file has another name; LedgerBehind if it follows one that was lost in part.
        """
        name = task.study.name
        with self._db.transaction():
            self.following.check(name)
            asked = "SELECT revision, source, next_seq FROM streams WHERE study = ?"
            row = self._db.row(asked, name)
            if row is None:
                row = (task.revision, source, 0)
                self._db.write(
                    "INSERT INTO streams (study, revision, source, next_seq, records, rejected, "
                    "clipped) VALUES (?, ?, ?, ?, 0, 0, 0)",
                    name, *row,
                )  # fmt: skip
            if row[0] != task.revision and row[2]:
                raise ConfigError(
                    f"this client began study {name!r} under revision {row[0]}, and the file has "
                    f"revision {task.revision}: restore the file, or the version of this program "
                    "that began it. Otherwise the operator begins a study with a new name and "
                    f'follows = ["{name}"]; its releases count against the same source'
                )
            # a revision under which nothing was released binds nobody
            self._db.write("UPDATE streams SET revision = ? WHERE study = ?", task.revision, name)
            if row[1] != source and rebind and row[2] == 0:
                self._db.write("UPDATE streams SET source = ? WHERE study = ?", source, name)
            elif row[1] != source:
                raise ConfigError(
                    f"this client began study {name!r} on source {row[1]!r}, not {source!r}: a "
                    "study reads one source of a client. Name that one, with new records added at "
                    "its end; if it is the same file under another name, say so with "
                    f"--source-name {row[1]!r}"
                )
            if row[2] == 0:
                self.following.begin(
                    name, source, task.study.study.before, self.missing, from_start=from_start
                )
                self._db.write("DELETE FROM event_times WHERE study = ?", name)
                if event_time is not None:
                    self._db.write("INSERT INTO event_times VALUES (?, ?, NULL)", name, event_time)
            self._check_times(name, event_time)
            self._budgets.open_source(task, source, location, limit)
        return self.peek(name)

    def release(
        self, task: Task, source: str, group: Sequence[Outgoing], *, position: bytes,
        tally: Tally, now: float, events: Sequence[Event] | None = None,
        latest: int | None = None, guard: Callable[[], None] = lambda: None,
        standing: Standing | None = None,
    ) -> None:  # fmt: skip
        """Spend, store and move on: one durable transaction, or nothing.

        group: Releases with consecutive numbers, from the stream's next one on.
        position: Where the source continues behind the last of them.
        events: What each of them costs a record; None: each what the study's budget says.
        latest: Event time of the last of them, in milliseconds since 1970, where they have one.
        guard: Asked once the budget allows them; its error leaves everything as it was.
        standing: Where the client stands behind them; None: each has `window.records` slots.

        Raises BudgetExceeded if the source has no budget left for this study; nothing is spent and
        the position stays; LocalStoreError if the disk is full or fails; nothing is spent and the
        position stays. The refusal itself is noted.
        """
        study, at = task.study.name, rfc3339(now)
        seqs = [outgoing.seq for outgoing in group]
        costs = [task.budget.event] * len(seqs) if events is None else events
        try:
            with self._db.transaction():
                self._budgets.charge(task, source, dict(zip(seqs, costs, strict=True)))
                guard()
                self._advance(study, seqs, position, tally)
                self._db.write("UPDATE event_times SET latest = ? WHERE study = ?", latest, study)
                self._db.write_many(
                    "INSERT INTO ledger VALUES (?, ?, ?, 0)", [(study, seq, at) for seq in seqs]
                )
                self._db.write_many(
                    "INSERT INTO outbox VALUES (?, ?, ?, ?, ?)",
                    [row_of(study, outgoing) for outgoing in group],
                )
                if empty := sum(made.empty for made in group):
                    self._db.write(
                        "INSERT INTO empty_slots VALUES (?, ?) "
                        "ON CONFLICT (study) DO UPDATE SET empty = empty + excluded.empty",
                        study, empty,
                    )  # fmt: skip
                self._wait(study, len(group))
                self._stand(study, standing, len(group) * task.slots)
        except BudgetExceeded as error:
            with self._db.transaction():
                self._db.write("INSERT INTO refusals VALUES (?, ?, ?)", study, str(error), at)
            raise
        self._count(study, len(group))

    def charge_lost(
        self, task: Task, source: str, seqs: range, *, owed: int, now: float,
        sent: tuple[int, int] | None = None, copied: bool = False,
    ) -> None:  # fmt: skip
        """Charge releases that this database has lost; their slots are owed from then on.

        seqs: Their numbers, from the stream's next one on; none if a later study took its place.
        owed: How many slots they can have held.
        sent: As `Stream.sent`, if the releases topic has one of them.
        copied: Whether another copy has used the numbers of those that wait here: they are dropped.
        """
        study, at = task.study.name, rfc3339(now)
        stands = self.standing(study)
        with self._db.transaction():
            # their noise is not known here: what comes behind them must not depend on it
            after = Standing(seqs.stop, stands.held + owed).anew()
            self._stand(study, after if task.chained else None, owed)
            most = dict.fromkeys(seqs, task.budget.largest_event)
            if seqs:
                self._budgets.charge(task, source, most, refuse=False)
                self._number(study, seqs)
            if copied:
                self._drop_unsent(study)
                self.runs.settle(study)
            self._db.write("UPDATE streams SET owed = owed + ? WHERE study = ?", owed, study)
            self.following.passed(study)
            self._db.write_many(
                "INSERT INTO ledger VALUES (?, ?, ?, 1)", [(study, seq, at) for seq in seqs]
            )
            if sent is not None:
                self._place(study, sent)
        self._count(study, len(seqs))

    def _count(self, study: str, more: int) -> None:
        self._held[study] = self._held.get(study, 0) + more
        self.learn(self._held)

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

    def slots(self, line: Collection[str]) -> tuple[int, int]:
        """Return how many record slots the releases of some studies hold, and the empty ones."""
        marks = ", ".join("?" * len(line))
        held, empty = (
            f"SELECT total({column}) FROM {table} WHERE study IN ({marks})"  # noqa: S608  marks
            for column, table in (("held", "streams"), ("empty", "empty_slots"))
        )
        return int(self._db.rows(held, *line)[0][0]), int(self._db.rows(empty, *line)[0][0])

    def _drop_unsent(self, study: str) -> None:
        """Let go of stored releases whose numbers another copy has used; they stay spent."""
        self._db.write(
            "UPDATE ledger SET lost = 1 WHERE study = ? AND seq IN "
            "(SELECT seq FROM outbox WHERE outbox.study = ledger.study)",
            study,
        )
        self._db.write("DELETE FROM outbox WHERE study = ?", study)
        self._wait(study, -self.waiting(study))

    def pass_over(self, study: str, slots: int, position: bytes) -> None:
        """Move the source on behind slots that are owed.

        slots: How many, at most as many as are owed.
        position: Where the source continues behind them.
        """
        with self._db.transaction():
            owed = self.peek(study).owed
            if not 0 < slots <= owed:
                raise StateError(f"study {study!r}: {owed} slots are owed, not {slots}")
            self._db.write(
                "UPDATE streams SET position = ?, owed = ? WHERE study = ?",
                position, owed - slots, study,
            )  # fmt: skip
            self.following.passed(study)

    def unsent(self, study: str, after: int, limit: int) -> list[Outgoing]:
        """Return stored releases with a number above `after`, in order.

        Raises LocalStoreError if the bytes are not those that were stored.
        """
        rows = self._db.rows(
            "SELECT seq, payload, headers, crc FROM outbox WHERE study = ? AND seq > ? "
            "ORDER BY seq LIMIT ?",
            study, after, limit,
        )  # fmt: skip
        for seq, payload, headers, crc in rows:
            if zlib.crc32(payload + headers) != crc:
                raise LocalStoreError(damaged(f"study {study!r}: release {seq} is not whole"))
        return [
            Outgoing(seq, payload, msgspec.msgpack.decode(headers, type=Headers))
            for seq, payload, headers, _ in rows
        ]

    def waiting(self, study: str) -> int:
        """Return how many releases Kafka has not acknowledged."""
        row = self._db.row("SELECT waiting FROM streams WHERE study = ?", study)
        return 0 if row is None else int(row[0])

    def sent(self, study: str, numbers: Sequence[int], place: tuple[int, int] | None) -> None:
        """Drop the bytes of acknowledged releases; their ledger rows stay.

        place: Partition and offset of the last of them in the releases topic.
        """
        with self._db.transaction():
            dropped = self._db.write_many(
                "DELETE FROM outbox WHERE study = ? AND seq = ?", [(study, n) for n in numbers]
            )
            self._wait(study, -dropped)
            if place is not None:
                self._place(study, place)

    def _check_times(self, study: str, column: str | None) -> None:
        """Refuse times of another kind than those that a study was begun with."""
        row = self._db.row("SELECT name FROM event_times WHERE study = ?", study)
        begun = None if row is None else row[0]
        if begun != column:
            said = f"with --event-time {begun}" if begun else "without --event-time"
            raise ConfigError(
                f"this client began study {study!r} {said}: go on in the same way, or its times "
                "would not be of one kind"
            )

    def _advance(self, study: str, seqs: Sequence[int], position: bytes, tally: Tally) -> None:
        """Take the next releases: their numbers, what they held, and where the source goes on."""
        if owed := self.peek(study).owed:
            raise StateError(
                f"study {study!r}: {owed} slots of lost releases are to be passed over first; "
                "start this client again"
            )
        self._number(study, seqs)
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

    def _number(self, study: str, seqs: Sequence[int]) -> None:
        """Take the next numbers of releases."""
        row = self._db.row("SELECT next_seq FROM streams WHERE study = ?", study)
        first = -1 if row is None else int(row[0])
        if not seqs or list(seqs) != list(range(first, first + len(seqs))):
            raise StateError(
                f"study {study!r}: the releases to be sent are not the next ones of this "
                "database; start this client again, so that it reads the database anew"
            )
        self._db.write("UPDATE streams SET next_seq = ? WHERE study = ?", first + len(seqs), study)

    def _wait(self, study: str, more: int) -> None:
        """Count releases that are put into the outbox, or taken out of it if negative."""
        self._db.write("UPDATE streams SET waiting = waiting + ? WHERE study = ?", more, study)

    def _stand(self, study: str, standing: Standing | None, slots: int) -> None:
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

    def _place(self, study: str, sent: tuple[int, int]) -> None:
        """Note where in the releases topic the newest acknowledged release is."""
        self._db.write(
            "UPDATE streams SET sent_partition = ?, sent_offset = ? WHERE study = ?", *sent, study
        )
