"""The fold: a batch of the log into a partition's state, duplicates found out.

A batch is a structured array from the payloads to the sums: no release is an object of its own.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeGuard

import msgspec
import numpy as np

from pipeline.errors import ConfigError, OffsetGap, PayloadError, StateError
from pipeline.estimators.forgetting import KEPT, bucket_of
from pipeline.messages.authentic import Authenticator
from pipeline.messages.envelope import DeadLetter
from pipeline.messages.release import MOST_LOST, Decoder, Incoming, Mask
from pipeline.methods import require_live, server_of
from pipeline.release.layout import Rows, ends_of, slots_of
from pipeline.release.task import Task
from pipeline.stream.partition import JUMPS, Partition, Progress
from pipeline.study.model import Rate
from pipeline.types import Integers


class LogRecord(Protocol):
    """What a consumer hands over: one record of the log."""

    @property
    def offset(self) -> int:
        """Offset in the partition."""

    @property
    def timestamp(self) -> int:
        """Time of the record, milliseconds since 1970."""

    @property
    def key(self) -> bytes | None:
        """Client id."""

    @property
    def value(self) -> bytes | None:
        """Payload."""

    @property
    def headers(self) -> Sequence[tuple[str, bytes | None]]:
        """Headers in order."""


#: Releases joined at once: more would only fill the processor's cache.
CHUNK = 2048
#: Record times are held within [0, this], milliseconds: whoever sends a record may write any time
#: into it, and messages cannot name a year after 9999.
LATEST = 253_402_300_799_000


def may_be_word(value: bytes | None) -> TypeGuard[bytes]:
    """Whether a value may admit or revoke somebody: it is JSON, and no release is."""
    return value is not None and value[:1] == b"{"


class Offline:
    """What says that releases come from this process alone."""


OFFLINE = Offline()


class Reducer:
    """Folds log records of one study; it keeps no state of its own.

    revision: The one that releases must name; default: the task's.
    trust: The study's keys, where its releases are authenticated. `OFFLINE` is for releases that
        this process makes itself: nobody else can send one.

    ConfigError if the study's releases are authenticated, and there are no keys.
    """

    def __init__(
        self, task: Task, revision: str = "", trust: Authenticator | Offline | None = None
    ) -> None:
        require_live(task.study, "a stream of releases")
        self._trust = trust if isinstance(trust, Authenticator) else None
        if task.study.authenticated and trust is None:
            raise ConfigError(
                "trust.releases: this study is authenticated, so its releases can be read "
                "only with the study's key file; the operator must name the file in "
                "VEILSTREAM_STUDY_KEY"
            )
        self._decoder = Decoder(task, revision, authenticated=self._trust is not None)
        # what this process makes itself is in one log, whatever its partitions: nobody floods it
        limits = None if isinstance(trust, Offline) else task.study.trust
        self._rate = None if limits is None else limits.rate
        self._forgetting = task.study.estimator.forgetting
        self._server = server_of(task)

    def fold(
        self, state: Partition, records: Sequence[LogRecord], *, allow_gaps: bool = False
    ) -> list[DeadLetter]:
        """Fold records in the order of the log, and return those that could not be.

        Folding a batch equals folding its records one by one, bit for bit. Records below the
        watermark are in the state already and are passed over.

        allow_gaps: Whether the caller knows that offsets missing here are missing in the log: the
            ends of transactions take an offset and are never handed out.

        Raises OffsetGap if the batch does not continue the log where the state ends; nothing is
        changed.
        """
        fresh = records[known(records, state.head.next_offset) :]
        if not fresh:
            return []
        if not allow_gaps:
            check_continuity(state.head.next_offset, fresh)
        letters: list[DeadLetter] = []
        for start in range(0, len(fresh), CHUNK):
            letters += self._fold_chunk(state, fresh[start : start + CHUNK])
        return letters

    def _fold_chunk(self, state: Partition, records: Sequence[LogRecord]) -> list[DeadLetter]:
        """Fold a chunk, each release as the words before it in the log have it."""
        if self._trust is None:
            return self._fold_releases(state, records)
        letters, waiting, words = list[DeadLetter](), list[LogRecord](), 0
        for record in records:
            if not may_be_word(record.value):
                waiting.append(record)
                continue
            try:
                word = self._trust.word(record.value, state.admissions.least)
            except PayloadError:
                # it is no release either, and becomes a dead letter as such
                waiting.append(record)
                continue
            words += 1
            if state.admissions.changed_by(word):
                # what came before it is judged before it
                if waiting:
                    letters += self._fold_releases(state, waiting)
                    waiting = []
                state.admissions.take(word)
        if waiting:
            letters += self._fold_releases(state, waiting)
        head, end = state.head, records[-1].offset + 1
        state.head = msgspec.structs.replace(head, next_offset=end, words=head.words + words)
        return letters

    def _fold_releases(self, state: Partition, records: Sequence[LogRecord]) -> list[DeadLetter]:
        payloads = [r.value for r in records]
        stamps = np.array([record.timestamp for record in records], dtype=np.int64)
        incoming = self._decoder.read(payloads, [r.key for r in records])
        if self._trust is not None:
            known = state.admissions
            if state.number is None:
                raise StateError("a partition of an authenticated study must know its number")
            incoming = self._trust.believed(
                incoming, payloads, stamps, known.clients, known.least, state.number
            )
        offsets = [record.offset for record in records]
        beyond = incoming.rows["seq"] > np.array(offsets)[incoming.places] + MOST_LOST
        incoming = incoming.without(dict.fromkeys(np.flatnonzero(beyond).tolist(), JUMPS))
        found = numbered(state, incoming, self._rate, offsets)
        rows, places, erased = incoming.rows, incoming.places, incoming.rows[found.erased]
        if not found.accepted.all():
            rows, places = rows[found.accepted], places[found.accepted]
        forgotten, newest = 0, 0
        if len(rows):
            times = np.clip(stamps[places], 0, LATEST)
            forgotten, newest = self._add(state, rows, times), int(times.max()) * 1000
        faults = {**incoming.faults, **found.faults}
        head = state.head
        state.head = msgspec.structs.replace(
            head,
            next_offset=records[-1].offset + 1,
            duplicates=head.duplicates + found.duplicates,
            dead_letters=head.dead_letters + len(faults),
            forgotten=head.forgotten + forgotten,
            erased=head.erased + len(erased),
            slots=head.slots + self._server.slots(rows) + self._server.slots(erased),
            newest=max(head.newest, newest),
            missing=head.missing + found.missing,
            holes=head.holes + found.holes,
            refused=head.refused + found.refused,
            furthest=max(head.furthest, found.furthest),
            largest=max(head.largest, found.largest),
            clients=len(state.clients),
        )
        return [_dead(records[place], faults[place]) for place in sorted(faults)]

    def _add(self, state: Partition, rows: Rows, times: Integers) -> int:
        """Add releases, each to its bucket, and return how many are too old by now.

        times: Of their records, in milliseconds since 1970.
        """
        if self._forgetting is None:
            self._server.fold(state.sums.at(0), rows)
            return 0
        both = np.stack([rows["model_watermark"], times], axis=1)
        pairs, which = np.unique(both, axis=0, return_inverse=True)
        found = [
            bucket_of(self._forgetting, watermark=watermark, milliseconds=at)
            for watermark, at in pairs.tolist()
        ]
        buckets = np.array(found)[which]
        # what would be dropped at once is not added: anybody may write any time into a record
        kept = sorted({*state.sums.states, *found})[-KEPT:]
        for bucket in sorted({*found}.intersection(kept)):
            self._server.fold(state.sums.at(bucket), rows[buckets == bucket])
        return state.sums.prune() + int((buckets < kept[0]).sum())


def known(records: Sequence[LogRecord], watermark: int) -> int:
    """Return how many records of a batch lie below a watermark."""
    return bisect_left(records, watermark, key=lambda record: record.offset)


def check_continuity(expected: int, records: Sequence[LogRecord]) -> None:
    """Refuse a batch with a gap; OffsetGap, naming the offsets."""
    first, last = records[0].offset, records[-1].offset
    if first != expected:
        raise OffsetGap(f"offset {first} came where {expected} was expected")
    if last - first + 1 != len(records):
        raise OffsetGap(f"offsets {first} to {last} came as {len(records)} records")


def _dead(record: LogRecord, fault: PayloadError) -> DeadLetter:
    headers = tuple(record.headers)
    return DeadLetter(record.offset, record.key, record.value, headers, fault, record.timestamp)


@dataclass(slots=True)
class Numbered:
    """What becomes of sound releases.

    accepted, erased: Which come for the first time, and which are of erased clients.
    faults: By place in the batch.
    duplicates: How many have come before.
    missing: How many more releases are missing now than before; fewer if it is below 0.
    holes: In how many more places releases are in no sum.
    refused: How many releases came that do not count, as their clients sent too many.
    largest: The most record slots that releases of one of the clients of the batch have.
    furthest: The highest number that has come of one of them; -1 without any.
    """

    accepted: Mask
    erased: Mask
    faults: dict[int, PayloadError] = field(default_factory=dict)
    duplicates: int = 0
    missing: int = 0
    holes: int = 0
    refused: int = 0
    largest: int = 0
    furthest: int = -1


def numbered(
    state: Partition, incoming: Incoming, rate: Rate | None, offsets: Sequence[int]
) -> Numbered:
    """Note the numbers of a batch in its clients' progress, and return what is new.

    A client whose releases go on one by one where it stands, as nearly all do, is looked at once
    for the batch; those of any other one by one, in the order of the log, and so all where there
    is a rate.

    offsets: Of the records of the batch.
    """
    rows = incoming.rows
    count = len(rows)
    found = Numbered(np.ones(count, dtype=bool), np.zeros(count, dtype=bool))
    if not count:
        return found
    order = np.argsort(incoming.clients, kind="stable")
    clients, seqs, ledgers = incoming.clients[order], rows["seq"][order], rows["ledger"][order]
    slots = slots_of(rows, state.task.slots)
    ends = ends_of(rows, state.task.slots)
    stands = ends[order]
    begins = stands - slots[order]
    starts = np.flatnonzero(np.diff(clients, prepend=-1))
    steady = np.diff(seqs, prepend=seqs[0]) == 1
    steady[1:] &= (ledgers[1:] == ledgers[:-1]).all(axis=1) & (begins[1:] == stands[:-1])
    steady[starts] = True
    whole = np.logical_and.reduceat(steady, starts)
    stops = np.append(starts[1:], count)
    marks = ledgers[starts].tobytes().hex()
    groups = zip(
        clients[starts].tolist(), starts.tolist(), stops.tolist(), whole.tolist(),
        seqs[starts].tolist(), seqs[stops - 1].tolist(), begins[starts].tolist(),
        stands[stops - 1].tolist(), strict=True,
    )  # fmt: skip
    for at, (client, start, end, one_by_one, first, last, begin, stand) in enumerate(groups):
        name, ledger = incoming.names[client], marks[32 * at : 32 * at + 32]
        if name in state.erased:
            found.accepted[order[start:end]], found.erased[order[start:end]] = False, True
            continue
        progress = state.clients.get(name)
        if progress is None:
            # without the beginning of the log, it stands where its first release says
            before, stood = (first - 1, begin) if state.midway else (-1, 0)
            progress = Progress(ledger, before, slots=stood)
            # what it released before that is in no sum
            found.holes += int(state.midway and first > 0)
        follows = one_by_one and first == progress.highest + 1 and ledger == progress.ledger
        follows = follows and rate is None and begin == progress.slots
        if follows:
            progress.highest, progress.slots = last, stand
            progress.counted += int(slots[order[start:end]].sum())
            new = True
        else:
            places = order[start:end], ends, slots
            new = _each(found, progress, incoming, places, rate, offsets)
        if new:
            # one of which nothing counts is not known: anybody may have taken its name
            state.clients[name] = progress
            state.changed.add(name)
        found.furthest = max(found.furthest, progress.highest)
        if not state.midway:
            found.largest = max(found.largest, progress.counted)
    return found


def _each(
    found: Numbered,
    progress: Progress,
    incoming: Incoming,
    which: tuple[Integers, Integers, Integers],
    rate: Rate | None,
    offsets: Sequence[int],
) -> bool:
    """Take some releases of one client one by one; return whether any is new.

    which: Their places; of all releases of the batch where they end, in slots, and their own.
    """
    new, (places, ends, slots), before = False, which, progress.holes
    chained = "before" in (incoming.rows.dtype.names or ())
    for place in places.tolist():
        row, highest = incoming.rows[place], progress.highest
        try:
            outcome = progress.accept(
                row["ledger"].tobytes().hex(), seq := int(row["seq"]),
                int(ends[place]), int(slots[place]), anew=chained and not row["before"],
            )  # fmt: skip
        except PayloadError as fault:
            # its traceback holds this frame, and with it the batch, until the collector comes
            found.faults[int(incoming.places[place])] = fault.with_traceback(None)
            found.accepted[place] = False
            continue
        if outcome == "duplicate":
            found.duplicates += 1
            found.accepted[place] = False
            continue
        found.missing += -1 if outcome == "late" else seq - highest - 1
        new = True
        at = int(incoming.places[place])
        if rate is not None and not within(rate, progress.recent, offsets[at]):
            # its number stays noted: as a gap, a client that is too fast would run out of gaps
            progress.refused += 1
            found.refused += 1
            progress.counted -= int(slots[place])
            found.faults[at] = _too_many(rate)
            found.accepted[place] = False
    found.holes += progress.holes - before
    return new


def _too_many(rate: Rate) -> PayloadError:
    return PayloadError(
        "rate",
        f"more than {rate.releases} releases of this client among {rate.of} records of its "
        "partition (trust.rate): the client must release less often, with more window.records or "
        "later; who runs the study may raise trust.rate under a new name",
    )


def within(rate: Rate, recent: list[int], offset: int) -> bool:
    """Whether a release may count; if so, it is noted in `recent`.

    It may, if fewer than `rate.releases` of its client count among the `rate.of` positions of the
    log that end with its own: so no run of that length holds more of them.

    recent: Offsets of the client's releases that count, in order; older ones than the rate asks
        for are left out.
    offset: Of the release, above all of these.
    """
    del recent[: bisect_right(recent, offset - rate.of)]
    if len(recent) >= rate.releases:
        return False
    recent.append(offset)
    return True
