"""A replay: records of the log in, in an order that is always the same, and estimates out.

Nothing but its arguments is read or written.
"""

from __future__ import annotations

import heapq
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from pipeline.errors import ConfigError, NumericError, PayloadError
from pipeline.messages.authentic import Authenticator
from pipeline.messages.envelope import DeadLetter
from pipeline.messages.estimate import EstimateMessage
from pipeline.messages.release import header_of
from pipeline.methods import server_of
from pipeline.reducer.fold import LogRecord, Reducer
from pipeline.reducer.merging import combine
from pipeline.reducer.partition import Partition
from pipeline.release.task import Task
from pipeline.replay.ranges import Rhythm, Span

#: Time in milliseconds, partition, offset, and the record.
Ordered = tuple[int, int, int, LogRecord]


def in_order(streams: Mapping[int, Iterable[LogRecord]]) -> Iterator[Ordered]:
    """Merge partitions by time, then partition, then offset.

    A partition's own order stays: a record that says an earlier time than one before it counts as
    of that one's time. Only one record of each partition is held.

    streams: The records of each partition, in the order of their offsets.
    """
    timed = [_timed(n, streams[n]) for n in sorted(streams)]
    return heapq.merge(*timed)


def _timed(number: int, records: Iterable[LogRecord]) -> Iterator[Ordered]:
    clock = 0
    for record in records:
        clock = max(clock, record.timestamp)
        yield clock, number, record.offset, record


log = logging.getLogger("veilstream.replay")
#: Records that wait to be folded together, at most.
GROUP = 2048


@dataclass(slots=True)
class Replay:
    """The state of a replay; what it yields depends on the log and on this alone.

    task: The study, as it would have been.
    topic: The releases topic, which estimates name.
    revision: The study revision under which the releases were made.
    spans: What is read of each partition.
    trust: The study's keys, where its releases are authenticated.
    others: Whether releases of other revisions are passed over, as a worker does, or end the
        replay.
    partitions: The states, by number.
    since: Releases since the last estimate.
    tick: When the next estimate is due, in milliseconds; 0 before the first record.
    """

    task: Task
    topic: str
    revision: str
    spans: Mapping[int, Span]
    rhythm: Rhythm
    others: bool = False
    erased: frozenset[str] = frozenset()
    trust: Authenticator | None = None
    partitions: dict[int, Partition] = field(init=False, default_factory=dict)
    since: int = field(init=False, default=0)
    tick: int = field(init=False, default=0)
    _waiting: dict[int, list[LogRecord]] = field(default_factory=dict)
    _reducer: Reducer = field(init=False)

    def __post_init__(self) -> None:
        """Begin with empty states at the offsets where the spans begin.

        ConfigError if a path of gradients would begin in its middle.
        """
        whole = server_of(self.task).from_start
        if whole and any(span.start for span in self.spans.values()):
            raise ConfigError(
                f"--from: {whole}: it can only be replayed from the beginning of the log (--to may "
                "end it)"
            )
        self._reducer = Reducer(self.task, self.revision, self.trust)
        for number, span in self.spans.items():
            state = Partition.empty(self.task, self.erased, number=number)
            self.partitions[number] = state.starting_at(span.start)
            self.partitions[number].midway = span.start > 0
            self._waiting[number] = []

    @property
    def records(self) -> int:
        """How many records of the log are done."""
        done = sum(self.partitions[n].head.next_offset - s.start for n, s in self.spans.items())
        return done + sum(len(records) for records in self._waiting.values())

    @property
    def total(self) -> int:
        """How many offsets there are to read."""
        return sum(span.stop - span.start for span in self.spans.values())

    def run(
        self,
        streams: Mapping[int, Iterable[LogRecord]],
        wait: Callable[[int], None] | None = None,
    ) -> Iterator[EstimateMessage]:
        """Fold the range and yield estimates at the rhythm, and one at the end.

        streams: The records of each partition in its span.
        wait: Returns when it is time for records of this time, in milliseconds; None: at once.

        Raises ConfigError if a release was made under another revision of the study.
        """
        every, latest = self.rhythm.releases, 0
        for time, number, _, record in self._ordered(streams):
            if self.tick and time >= self.tick:
                if wait:
                    wait(self.tick)
                yield from self._estimate(self.tick)
                self.tick = self.rhythm.tick_after(time)
            if wait:
                wait(time)
            latest = time
            self.since += 1
            waiting = self._waiting[number]
            waiting.append(record)
            if len(waiting) >= GROUP:
                self._fold(number)
            if self.since == every:
                yield from self._estimate(time)
        if self.since:
            yield from self._estimate(latest)

    def _ordered(self, streams: Mapping[int, Iterable[LogRecord]]) -> Iterator[Ordered]:
        for item in in_order(streams):
            if self.rhythm.milliseconds and not self.tick:
                self.tick = self.rhythm.tick_after(item[0])
            yield item

    def _fold(self, number: int) -> None:
        waiting = self._waiting[number]
        if not waiting:
            return
        self._waiting[number] = []
        letters = self._reducer.fold(self.partitions[number], waiting, allow_gaps=True)
        if not self.others:
            refuse_others(letters, number, self.revision)

    def _estimate(self, time: int) -> Iterator[EstimateMessage]:
        if not self.since:
            return
        for number in self._waiting:
            self._fold(number)
        self.since = 0
        try:
            _, message = combine(
                self.task,
                self.partitions,
                topic=self.topic,
                model_version=None,
                published_at=time / 1000,
            )
        except NumericError as error:
            log.warning("no estimate at this point: %s", error)
            return
        yield message


def refuse_others(letters: Iterable[DeadLetter], number: int, revision: str) -> None:
    """Refuse releases that were made under another revision of the study.

    ConfigError, naming the first of them, and its revision.
    """
    for letter in letters:
        if letter.fault.reason == "wrong-revision":
            raise ConfigError(
                f"offset {letter.offset} of partition {number} was made under revision "
                f"{_revision(letter)} of the study, and this file is revision {revision}: give the "
                "file under which the releases were made, or --accept-other-revisions to pass them "
                "over, as a worker does"
            )


def _revision(letter: DeadLetter) -> str:
    try:
        return header_of(letter.value or b"").revision
    except PayloadError:
        return "another"
