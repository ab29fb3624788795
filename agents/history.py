"""A topic read from anywhere to anywhere, and a study's state folded from it again.

Reading has no group and commits nothing.

A second state is folded beside the stored one, to verify or to rebuild it. It goes on where it
stands: a comparison costs the releases since the last one. Where the log has lost what the stored
state began with, it starts from that state, whose checksums fit, and vouches for what follows. It
begins anew where the stored state did: with other clients erased, or rebuilt without what the log
has lost.

A worker verifies itself so, in a process of low priority. A difference ends the worker, and is
noted with the state, so that no other one goes on with it; faults that pass are said and tried
again.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import sys
import time
from asyncio.subprocess import PIPE
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from kafka import TopicPartition
from kafka.errors import KafkaError, OffsetOutOfRangeError

from agents.announcing import authenticator, begin_admitted, store_of
from agents.folding import Meters, check_end
from infra.kafka import LogReader, asking, log_reader
from infra.topics import check_partitions
from pipeline.errors import BrokerError, OffsetGap, StateError
from pipeline.messages.envelope import DeadLetter
from pipeline.messages.topics import Topics
from pipeline.release.task import Task
from pipeline.settings import Settings
from pipeline.stream.fold import LogRecord, Reducer, may_be_word
from pipeline.stream.partition import Partition, differences
from pipeline.stream.replay import Extent, Span

#: How long Kafka may be silent while there is something to read.
PATIENCE_SECONDS = 20.0
#: Records of one partition that are held, about: one that has more waits for the others.
HELD = 8000
#: Records that are taken at once, at most.
FETCHED = 4000


class Interrupted(Exception):
    """Somebody asked the reader to stop."""


class History:
    """The log of one topic.

    topic, partitions: Its name, and how many partitions it must have.
    stopped: Asked now and then; reading ends with `Interrupted` when it says so.
    """

    def __init__(
        self, settings: Settings, topic: str, partitions: int,
        stopped: Callable[[], bool] = lambda: False,
    ) -> None:  # fmt: skip
        self._settings, self.topic, self._stopped = settings, topic, stopped
        self._places = [TopicPartition(topic, number) for number in range(partitions)]
        self._stops: dict[int, int] = {}
        self._held: dict[int, list[LogRecord]] = {}
        #: Partitions that have more records than the others can follow.
        self._ahead: set[int] = set()
        self._consumer: LogReader | None = None

    def __enter__(self) -> History:
        """Connect.

        Raises BrokerError if Kafka does not answer; ConfigError as `infra.topics.check_partitions`.
        """
        check_partitions(self._settings, self.topic, len(self._places))
        with self._reading():
            self._consumer = log_reader(
                self._settings, wait_ms=500, auto_offset_reset="none", max_poll_records=FETCHED,
                max_partition_fetch_bytes=4 * 2**20,
            )  # fmt: skip
        return self

    def __exit__(self, *_: object) -> None:
        """Close the connection."""
        with suppress(KafkaError):
            self._reader.close()

    @property
    def _reader(self) -> LogReader:
        assert self._consumer is not None  # noqa: S101  `__enter__` has made it
        return self._consumer

    def extents(self) -> dict[int, Extent]:
        """Return what each partition holds now; BrokerError if Kafka fails."""
        with self._reading():
            first = self._reader.beginning_offsets(self._places)
            after = self._reader.end_offsets(self._places)
            oldest = self._reader.offsets_for_times(dict.fromkeys(self._places, 0))
        return {
            n: Extent(first[p], after[p], None if oldest[p] is None else oldest[p].timestamp)
            for n, p in enumerate(self._places)
        }

    def at(self, milliseconds: int) -> dict[int, int]:
        """Return the offset of the first release of each partition at or after a time.

        An admission has the time at which somebody was admitted: behind one that is later than the
        time, releases are looked through. The end of a partition if none is.

        Raises BrokerError if Kafka fails or is silent; OffsetGap, Interrupted as `more`.
        """
        with self._reading():
            after = self._reader.end_offsets(self._places)
            found = self._reader.offsets_for_times(dict.fromkeys(self._places, milliseconds))
        spans = {
            n: Span(after[p] if found[p] is None else found[p].offset, after[p])
            for n, p in enumerate(self._places)
        }
        self.seek(spans)
        return {
            n: next(
                (
                    record.offset
                    for record in self.records(n)
                    if record.timestamp >= milliseconds and not may_be_word(record.value)
                ),
                span.stop,
            )
            for n, span in spans.items()
        }

    def seek(self, spans: Mapping[int, Span]) -> None:
        """Begin to read some partitions, each from the start of its span to its end."""
        self._stops = {n: span.stop for n, span in spans.items()}
        self._held = {n: [] for n in spans}
        self._ahead.clear()
        with self._reading():
            self._reader.assign([self._places[n] for n in spans])
            for number, span in spans.items():
                self._reader.seek(self._places[number], span.start)
                # one that was assigned before is as it was left
                wait = self._reader.pause if span.start >= span.stop else self._reader.resume
                wait(self._places[number])

    def records(self, number: int) -> Iterator[LogRecord]:
        """Yield the records of one partition up to the end of its span.

        BrokerError, OffsetGap, Interrupted as `more`.
        """
        return itertools.chain.from_iterable(iter(lambda: self.more(number), []))

    def more(self, number: int) -> list[LogRecord]:
        """Return the next records of a partition, none at the end of its span.

        What comes of others meanwhile is held for them. Raises BrokerError if Kafka fails or is
        silent; OffsetGap if retention takes away what is still to be read; Interrupted if that was
        asked for.
        """
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not self._held[number]:
            if self._stopped():
                raise Interrupted
            with self._reading():
                # the position and not the records: the end of a transaction is never handed out
                if self._reader.position(self._places[number]) >= self._stops[number]:
                    return []
                came = self._fetch()
            if came:
                deadline = time.monotonic() + PATIENCE_SECONDS
            elif time.monotonic() > deadline:
                raise BrokerError(
                    f"{self.topic}[{number}]: Kafka has sent nothing for {PATIENCE_SECONDS:.0f} s"
                )
        taken, self._held[number] = self._held[number], []
        return taken

    def _fetch(self) -> bool:
        """Take what has come, and let partitions wait that are ahead or done."""
        for number in [n for n in self._ahead if not self._held[n]]:
            self._ahead.remove(number)
            self._reader.resume(self._places[number])
        batches = self._reader.poll(timeout_ms=500)
        for place, records in batches.items():
            number = place.partition
            stop, held = self._stops[number], self._held[number]
            done = records[-1].offset + 1 >= stop
            held += [r for r in records if r.offset < stop] if done else records
            if done or len(held) >= HELD:
                self._reader.pause(place)
                if not done:
                    self._ahead.add(number)
        return bool(batches)

    @contextmanager
    def _reading(self) -> Iterator[None]:
        otherwise = f"{self.topic} cannot be read from {{servers}} ({{fault}})"
        with asking(self._settings, f"topic {self.topic}", "Read", otherwise):
            try:
                yield
            except OffsetOutOfRangeError as error:
                raise OffsetGap(
                    f"{self.topic}: retention has removed the offset that was being read; run the "
                    "command again, with --accept-loss if what is left is enough"
                ) from error


#: Told how many of how many records have been folded.
Report = Callable[[int, int], None]
#: Given a partition and dead letters of it, in their order.
SetAside = Callable[[int, Sequence[DeadLetter]], None]


def log_ends(task: Task, settings: Settings) -> dict[int, int]:
    """Return the next offset of each partition of the releases topic.

    BrokerError if Kafka fails.
    """
    with history_of(task, settings) as history:
        return {number: extent.after for number, extent in history.extents().items()}


def refold(
    task: Task, settings: Settings, partition: int, *, until: int | None = None,
    accept_loss: bool = False, erased: frozenset[str] = frozenset(),
    report: Report = lambda _done, _of: None,
    set_aside: SetAside = lambda _partition, _letters: None,
) -> Partition:  # fmt: skip
    """Fold one partition of the releases topic from its start.

    The consumer joins no group and commits nothing.

    until: Stop before this offset; None is the end of the log as it is now.
    accept_loss: Begin at the oldest record that is left, if the first ones are gone.
    erased: Clients whose releases are passed over.
    set_aside: Given what could not be folded: whoever stores the state must see that it is kept, as
        no worker reads again what is in it.

    Raises OffsetGap if the log no longer begins at 0 and the loss is not accepted; StateError if
    the log ends before `until`; BrokerError if Kafka fails.
    """
    trust = authenticator(task, settings)
    reducer, state = Reducer(task, trust=trust), Partition.empty(task, erased, number=partition)
    with history_of(task, settings) as history:
        log, extent = f"{history.topic}[{partition}]", history.extents()[partition]
        end = extent.after if until is None else until
        check_end(history.topic, partition, end, extent.after)
        if extent.first > 0:
            if not accept_loss:
                raise OffsetGap(
                    f"{log}: offsets 0 to {extent.first - 1} are gone from the log; a state from "
                    "the rest is a different state (--accept-loss takes it)"
                )
            state = state.starting_at(extent.first)
            begin_admitted(task, settings, trust, {partition: state})
        history.seek({partition: Span(extent.first, end)})
        while records := history.more(partition):
            set_aside(partition, reducer.fold(state, records, allow_gaps=True))
            report(state.head.next_offset, end)
    return state


def history_of(
    task: Task, settings: Settings, stopped: Callable[[], bool] = lambda: False
) -> History:
    """Return the releases topic of a study, to be read."""
    topic = Topics.of(task.study).releases
    return History(settings, topic.name, topic.partitions, stopped)


class Compared(NamedTuple):
    """One partition beside its second state: from where to where, and the fields that differ."""

    partition: int
    since: int
    next_offset: int
    differences: list[str]


class Shadow:
    """The second state of all partitions of a study.

    stopped: Asked now and then; reading ends with `agents.history.Interrupted` when it says so.
    """

    def __init__(self, task: Task, settings: Settings, stopped: Callable[[], bool]) -> None:
        self._task, self._settings, self._stopped = task, settings, stopped
        self._store = store_of(task, settings)
        self._trust = authenticator(task, settings)
        self._reducer = Reducer(task, trust=self._trust)
        #: Each partition with the offset that it began at.
        self._states: dict[int, tuple[int, Partition]] = {}

    def compare(self) -> list[Compared]:
        """Move on to what is stored now, and compare; a difference is noted with the state.

        Raises BrokerError, StoreError, StateError if Kafka, Redis or what it holds is not usable.
        """
        with history_of(self._task, self._settings, self._stopped) as history:
            return [self._compare(history, n) for n in range(self._task.study.stream.partitions)]

    def _compare(self, history: History, number: int) -> Compared:
        stored, extent = self._store.load(number), history.extents()[number]
        end = stored.head.next_offset
        check_end(history.topic, number, end, extent.after)
        since, state = self._states.get(number, (0, None))
        if (
            state is None
            or (state.erased, state.head.begun) != (stored.erased, stored.head.begun)
            or not extent.first <= state.head.next_offset <= end
        ):
            since, state = self._begin(number, stored, extent.first)
        self._states.pop(number, None)
        try:
            history.seek({number: Span(state.head.next_offset, end)})
            while records := history.more(number):
                self._reducer.fold(state, records, allow_gaps=True)
        except OffsetGap:
            # retention was faster: the next comparison begins anew
            return Compared(number, end, end, [])
        self._states[number] = since, state
        found = differences(stored, state)
        if found:
            self._store.doubt(number, ", ".join(found[:5]))
        return Compared(number, since, end, found)

    def _begin(self, number: int, stored: Partition, first: int) -> tuple[int, Partition]:
        """Return a second state at its beginning: where the log begins, if all of it is there."""
        if stored.head.begun < first:
            return stored.head.next_offset, stored
        # no log begins earlier than it did: a state that begins behind it will differ
        state = Partition.empty(self._task, stored.erased, number=number).starting_at(first)
        begin_admitted(self._task, self._settings, self._trust, {number: state})
        return first, state


#: Seconds between two looks at whether this worker publishes, and after a fault.
LOOK_SECONDS, AGAIN_SECONDS = 1.0, 60.0


class Verifying:
    """Runs the verification of a study while this worker publishes.

    study: The study file.
    every: Seconds between two comparisons.
    owner: Whether this worker publishes.
    say: Told of faults.
    """

    def __init__(
        self, study: Path, every: float, owner: Callable[[], bool], say: Callable[[str], None],
        meters: Meters,
    ) -> None:  # fmt: skip
        self._owner, self._say, self._meters = owner, say, meters
        self._folder, self._file, self._every = Path.cwd(), study.absolute(), every
        #: Seconds since 1970 of the last comparison that found no difference; None before it.
        self.verified_at: float | None = None
        #: How far each partition was the same then, and from where on.
        self.ranges: dict[int, tuple[int, int]] = {}

    async def run(self) -> None:
        """Verify while this worker publishes, until cancelled.

        Raises StateError if what is stored is not what the log folds to.
        """
        while True:
            if not self._owner():
                await asyncio.sleep(LOOK_SECONDS)
                continue
            code = await self._watch()
            if code == StateError.exit_code:
                raise StateError(
                    "the verification beside this worker has found that the stored state differs "
                    "from what the log folds to, or cannot be used; see its message above. "
                    "Nothing more is published: stop all workers and run `veilstream state "
                    "rebuild`"
                )
            if self._owner():
                self._say(f"verification ended with {code}; again in {AGAIN_SECONDS:.0f} s")
                await asyncio.sleep(AGAIN_SECONDS)

    async def _watch(self) -> int:
        """Run the process until it ends or this worker does not publish any more."""
        words = ["state", "verify", str(self._file), "--every", f"{self._every:g}s", "--json"]
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "pipeline.cli.main", *words, "--parent", str(os.getpid()),
            stdin=asyncio.subprocess.DEVNULL, stdout=PIPE, cwd=self._folder,
        )  # fmt: skip
        leaving = asyncio.create_task(self._ends_with_ownership(process))
        try:
            while process.stdout and (line := await process.stdout.readline()):
                self._take(json.loads(line))
            return await process.wait()
        finally:
            leaving.cancel()
            _end(process)

    def _take(self, told: dict[str, Any]) -> None:
        self._meters.verified(told["verified"])
        if told["verified"]:
            self.verified_at = time.time()
            self.ranges = {
                row["partition"]: (row["since"], row["next_offset"]) for row in told["partitions"]
            }

    async def _ends_with_ownership(self, process: asyncio.subprocess.Process) -> None:
        while self._owner():
            await asyncio.sleep(LOOK_SECONDS)
        _end(process)

    def facts(self, now: float) -> dict[str, Any]:
        """Return what `/healthz` says of it."""
        return {
            "every_seconds": self._every,
            "age_seconds": None if self.verified_at is None else round(now - self.verified_at, 3),
            "partitions": {
                str(n): {"since": since, "next_offset": end}
                for n, (since, end) in sorted(self.ranges.items())
            },
        }


def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        with suppress(ProcessLookupError):
            process.kill()
