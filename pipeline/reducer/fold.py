"""Folding a batch of log records: decode, check, drop duplicates, add."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec

from pipeline.errors import OffsetGap, PayloadError
from pipeline.estimators.forgetting import bucket_of
from pipeline.messages import release as wire
from pipeline.messages.deadletter import DeadLetter
from pipeline.messages.release import PrivateRelease, Release
from pipeline.methods import server_of
from pipeline.reducer.partition import Partition
from pipeline.reducer.progress import Progress
from pipeline.release.task import Task
from pipeline.study import require_live


class LogRecord(Protocol):
    """What a consumer hands over: one record of the log."""

    @property
    def offset(self) -> int:
        """Offset in the partition."""
        ...

    @property
    def timestamp(self) -> int:
        """Time of the record, milliseconds since 1970."""
        ...

    @property
    def key(self) -> bytes | None:
        """Client id."""
        ...

    @property
    def value(self) -> bytes | None:
        """Payload."""
        ...

    @property
    def headers(self) -> Sequence[tuple[str, bytes | None]]:
        """Headers in order."""
        ...


#: Releases joined at once: as many as the processor's cache likes.
CHUNK = 512
#: A release that passed the checks, with its record; a plain tuple, as one is made per release.
Accepted = tuple[LogRecord, Release]


@dataclass(slots=True)
class Sorted:
    """What becomes of sound releases.

    Attributes
    ----------
    accepted
        Those that come for the first time, in order.
    erased
        Those of erased clients.
    duplicates
        How many have come before.
    missing
        How many more releases are missing now than before; fewer if it is below 0.
    furthest
        The highest number that any of them has.
    """

    accepted: list[Accepted] = field(default_factory=list)
    erased: list[Release] = field(default_factory=list)
    duplicates: int = 0
    missing: int = 0
    furthest: int = -1


class Reducer:
    """Folds log records of one study; it keeps no state of its own.

    Parameters
    ----------
    task
        The study's public numbers.
    revision
        The one that releases must name; default: the task's.
    """

    def __init__(self, task: Task, revision: str = "") -> None:
        require_live(task.study, "a stream of releases")
        self._revision, self._claim, self._slots = revision or task.revision, task.claim, task.slots
        self._noised = task.study.noised
        self._forgetting = task.study.estimator.forgetting
        self._server = server_of(task)

    def fold(
        self, state: Partition, records: Sequence[LogRecord], *, allow_gaps: bool = False
    ) -> list[DeadLetter]:
        """Fold records in the order of the log, and return those that could not be.

        Folding a batch equals folding its records one by one, bit for bit. Records below the
        watermark are in the state already and are passed over.

        Parameters
        ----------
        allow_gaps
            Whether the caller knows that offsets missing here are missing in the log: the ends of
            transactions take an offset and are never handed out.

        Raises
        ------
        OffsetGap
            If the batch does not continue the log where the state ends; nothing is changed.
        """
        fresh = [record for record in records if record.offset >= state.head.next_offset]
        if not fresh:
            return []
        if not allow_gaps:
            check_continuity(state.head.next_offset, fresh)
        letters: list[DeadLetter] = []
        for start in range(0, len(fresh), CHUNK):
            letters += self._fold_chunk(state, fresh[start : start + CHUNK])
        return letters

    def _fold_chunk(self, state: Partition, records: Sequence[LogRecord]) -> list[DeadLetter]:
        letters: list[DeadLetter] = []
        readable = self._readable(records, letters)
        batch, sound = self._sound(readable, letters)
        found = self._sort(state, sound, letters)
        accepted = found.accepted
        if len(accepted) < len(sound):
            batch = self._join(accepted)
        forgotten = self._add(state, accepted, batch) if accepted else 0
        came = self._server.slots([*(release for _, release in accepted), *found.erased])
        newest = max((record.timestamp for record, _ in accepted), default=0) * 1000
        head = state.head
        state.head = msgspec.structs.replace(
            head,
            next_offset=records[-1].offset + 1,
            duplicates=head.duplicates + found.duplicates,
            dead_letters=head.dead_letters + len(letters),
            forgotten=head.forgotten + forgotten,
            erased=head.erased + len(found.erased),
            slots=head.slots + came,
            newest=max(head.newest, newest),
            missing=head.missing + found.missing,
            furthest=max(head.furthest, found.furthest),
            clients=len(state.clients),
        )
        letters.sort(key=lambda letter: letter.offset)
        return letters

    def _readable(self, records: Sequence[LogRecord], letters: list[DeadLetter]) -> list[Accepted]:
        readable: list[Accepted] = []
        for record in records:
            try:
                release = wire.read(record.value)
                self._check(release, record.key)
            except PayloadError as fault:
                letters.append(_dead(record, fault))
            else:
                readable.append((record, release))
        return readable

    def _check(self, release: Release, key: bytes | None) -> None:
        """Refuse a release that is not one of this study, by the client that its record names."""
        if release.revision != self._revision:
            raise PayloadError(
                "wrong-revision",
                f"made under another study revision than {self._revision}; update the "
                "client's study file",
            )
        if key is None or key != release.client.encode():
            raise PayloadError("wrong-key", "the record's key is not the client id of its payload")
        private = isinstance(release, PrivateRelease)
        if private != self._noised:
            kinds = ("a release without privacy", "a private study")
            if private:
                kinds = ("a private release", "a study without privacy")
            raise PayloadError("wrong-kind", " in ".join(kinds))
        if isinstance(release, PrivateRelease) and (
            release.claim != self._claim or release.slots != self._slots
        ):
            raise PayloadError(
                "wrong-claim",
                "made with another window.records or another privacy policy than the study's: "
                f"{self._claim}",
            )
        self._server.check(release)

    def _sound(
        self, items: list[Accepted], letters: list[DeadLetter]
    ) -> tuple[Any, list[Accepted]]:
        """Join releases, setting aside those with numbers that no honest client can send."""
        batch = self._join(items)
        if self._server.sound(batch):
            return batch, items
        fault = PayloadError("out-of-range", "a number beyond the bounds that the study implies")
        kept = []
        for item in items:
            if self._server.sound(self._join([item])):
                kept.append(item)
            else:
                letters.append(_dead(item[0], fault))
        return self._join(kept), kept

    def _join(self, items: list[Accepted]) -> Any:
        return self._server.join([release for _, release in items])

    def _add(self, state: Partition, items: list[Accepted], batch: Any) -> int:
        """Add releases, each to its bucket, and return how many are too old by now."""
        if self._forgetting is None:
            self._server.fold(state.sums.at(0), batch)
            return 0
        grouped: dict[int, list[Accepted]] = {}
        for item in items:
            record, release = item
            bucket = bucket_of(
                self._forgetting, watermark=release.model_watermark, milliseconds=record.timestamp
            )
            grouped.setdefault(bucket, []).append(item)
        for bucket, group in grouped.items():
            part = batch if len(group) == len(items) else self._join(group)
            self._server.fold(state.sums.at(bucket), part)
        return state.sums.prune()

    def _sort(self, state: Partition, items: list[Accepted], letters: list[DeadLetter]) -> Sorted:
        found = Sorted()
        for item in items:
            record, release = item
            if release.client in state.erased:
                found.erased.append(release)
                continue
            progress = state.clients.get(release.client)
            if progress is None:
                before = release.seq - 1 if state.midway else -1
                progress = state.clients[release.client] = Progress(release.ledger, before)
            if release.seq == progress.highest + 1 and release.ledger == progress.ledger:
                # what `accept` does with the next release, without the call: nearly all are that
                progress.highest = release.seq
                state.changed.add(release.client)
                found.accepted.append(item)
                continue
            highest = progress.highest
            try:
                outcome = progress.accept(release.ledger, release.seq)
            except PayloadError as fault:
                letters.append(_dead(record, fault))
                continue
            if outcome == "duplicate":
                found.duplicates += 1
                continue
            found.missing += -1 if outcome == "late" else release.seq - highest - 1
            state.changed.add(release.client)
            found.accepted.append(item)
        found.furthest = max((release.seq for _, release in found.accepted), default=-1)
        return found


def check_continuity(expected: int, records: Sequence[LogRecord]) -> None:
    """Refuse a batch with a gap.

    Raises
    ------
    OffsetGap
        Naming the offsets.
    """
    first, last = records[0].offset, records[-1].offset
    if first != expected:
        raise OffsetGap(f"offset {first} came where {expected} was expected")
    if last - first + 1 != len(records):
        raise OffsetGap(f"offsets {first} to {last} came as {len(records)} records")


def _dead(record: LogRecord, fault: PayloadError) -> DeadLetter:
    return DeadLetter(record.offset, record.key, record.value, tuple(record.headers), fault)
