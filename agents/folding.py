"""Batches to state: fold, dead letters, one commit; the order that makes a crash harmless.

Beside it what a worker counts as it goes, and whether it gets on: how far the log still goes, what
of it is left, and since when nothing has been folded.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from itertools import islice
from time import monotonic

import prometheus_client as prometheus

from pipeline.errors import OffsetGap, StaleSnapshot, StateError, StoreError
from pipeline.messages.authentic import Authenticator
from pipeline.messages.envelope import DeadLetter
from pipeline.messages.topics import Topics
from pipeline.release.task import Task
from pipeline.stream.fold import LogRecord, Reducer, known
from pipeline.stream.partition import Head, Partition
from state import RedisStore
from state.codec import RECOVER, doubt_of

log = logging.getLogger("veilstream.folding")
#: First and next offset of a partition's log.
Bounds = Callable[[int], Awaitable[tuple[int, int]]]
#: Batches that may come after a gap before the second reading must have shown it again.
PATIENCE_BATCHES = 100
#: Seconds between two looks at what Redis holds.
LOOK_SECONDS = 1.0
#: So many clients of a partition are compared with what Redis holds at each look.
SOME_CLIENTS = 1000
#: Dead letters on their way at once: a flood of them must not fill the memory.
LETTERS = 500
#: Reads a partition again from an offset.
Reread = Callable[[int, int], Awaitable[object]]
#: Sends one message: topic, key, value, headers.
Send = Callable[
    [str, bytes | None, bytes | None, Sequence[tuple[str, bytes | None]]], Awaitable[object]
]


class Folding:
    """The partitions that this worker owns.

    task, topics, store: The study, its topics and where its snapshots are.
    send: For dead letters; it returns when Kafka has them.
    reread, bounds: Makes the consumer go back to an offset of a partition; asks how far the log
        reaches.
    """

    def __init__(
        self, task: Task, topics: Topics, store: RedisStore, send: Send, reread: Reread,
        bounds: Bounds, trust: Authenticator | None = None,
    ) -> None:  # fmt: skip
        self.meters = Meters()
        self._task, self._topics, self._store, self._send = task, topics, store, send
        self._reread, self._bounds = reread, bounds
        #: Partition to a gap that was seen once: the watermark and the offset that came instead.
        self._suspects: dict[int, tuple[int, int]] = {}
        self._since_suspect = 0
        self._reducer = Reducer(task, trust=trust)
        self.partitions: dict[int, Partition] = {}
        #: Partition to the watermark that this worker has seen in Redis.
        self._stored: dict[int, int] = {}
        #: Set after each commit and each assignment: the estimate step waits on it.
        self.moved = asyncio.Event()
        #: How many records have come under each key since the last model: a client waits for one.
        self.came = Counter[bytes | None]()
        #: Looks at what Redis holds of a partition.
        self._turn = 0
        #: How many releases this worker has added to sums.
        self.releases = 0

    @property
    def topic(self) -> str:
        """The releases topic."""
        return self._topics.releases.name

    def assign(self, bounds: Mapping[int, tuple[int, int]]) -> dict[int, int]:
        """Load the snapshots of the assigned partitions and return their watermarks.

        Raises OffsetGap if the log no longer holds what follows a watermark, or ends before it;
        StateError if a snapshot cannot be used.
        """
        loaded = {}
        for partition, (first, after) in bounds.items():
            if partition >= self._task.study.stream.partitions:
                # somebody has added it to the topic: no client writes to it
                continue
            state = self._store.load(partition)
            check_log(self.topic, partition, state.head.next_offset, first, after)
            loaded[partition] = state
        self.partitions = loaded
        self._suspects.clear()
        self._stored = {number: state.head.next_offset for number, state in loaded.items()}
        self.moved.set()
        return dict(self._stored)

    def release(self, partitions: Iterable[int]) -> None:
        """Give up partitions: they belong to nobody until the next assignment."""
        for partition in partitions:
            self.partitions.pop(partition, None)

    async def handle(self, partition: int, records: Sequence[LogRecord]) -> bool:
        """Fold a batch of one partition and commit it; return whether it may be acknowledged.

        Dead letters go out before the commit: a crash in between repeats them, and never loses one.
        Their headers name topic, partition and offset, so that a repeat is seen as one. Raises
        StaleSnapshot, StoreError, BrokerError, OffsetGap, StateError: the worker must stop without
        acknowledging.
        """
        state = self.partitions.get(partition)
        if state is None:
            return False
        before, counted = state.head.next_offset, state.head
        if not await self._continues(partition, before, records):
            return False
        letters = self._reducer.fold(state, records, allow_gaps=True)
        if state.head.next_offset == before:
            return True
        await self._send_letters(partition, letters)
        with self.meters.commits.time():
            self._store.commit(partition, state, expected=before)
        self.meters.letters(letters)
        self._stored[partition] = state.head.next_offset
        fresh = len(records) - known(records, before)
        self.releases += fresh - _set_aside(counted, state.head)
        self.came.update(record.key for record in records[len(records) - fresh :])
        self.moved.set()
        return True

    async def watch_store(self) -> None:
        """See each second that Redis has what was committed, until cancelled.

        A partition whose log rests would never find out by a commit, and whoever publishes reads it
        in Redis: clients may be waiting for the model after the releases that are lost there.

        StaleSnapshot if Redis has lost some: this worker must stop, and the next one folds them
        again. StateError if a verification, on whatever machine, has found it to be wrong.
        """
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            for partition in self.partitions:
                try:
                    held, doubt = self._store.standing(partition)
                except StoreError:
                    # it passes, or the next commit ends this worker
                    break
                if held < (stood := self._stored[partition]):
                    raise StaleSnapshot(
                        f"{self.topic}[{partition}]: Redis stands at {held} and has stood at "
                        f"{stood}, so it has lost its newest part. This worker stops, and the "
                        "next one folds that part again from the log"
                    )
                if doubt:
                    raise StateError(
                        f"{self.topic}[{partition}]: a verification has found that the stored "
                        f"state differs from what the log folds to ({doubt}). Nothing more is "
                        "published: stop all workers and run `veilstream state rebuild`"
                    )
            with suppress(StoreError):
                if self.partitions:
                    self._look_beside()

    def _look_beside(self) -> None:
        """Have Redis hold what this worker has stored there: of one partition, each in its turn.

        What is damaged there is sound here. What is sound there and another, somebody has written:
        nobody goes on with it before the log has told who is right.

        StaleSnapshot, StateError as `RedisStore.beside`.
        """
        self._turn += 1
        mine = sorted(self.partitions)
        partition = mine[self._turn % len(mine)]
        state = self.partitions[partition]
        if state.head.next_offset != self._stored[partition] or not self._stored[partition]:
            # a batch is on its way, or nothing was ever stored
            return
        names = state.clients_checksums.held
        start = self._turn // len(mine) * SOME_CLIENTS % max(len(names), 1)
        found = self._store.beside(
            partition, state, list(islice(names, start, start + SOME_CLIENTS))
        )
        if found.foreign:
            self._store.doubt(
                partition, f"and not what its worker has stored: {', '.join(found.foreign[:5])}"
            )
        elif found.damaged or found.strange:
            said = [*found.damaged, *(doubt_of(name) for name in found.strange)][:5]
            log.warning(
                "%s[%d]: Redis held something else than was stored there (%s). This worker has "
                "stored all of this partition again: check the memory and the disk of Redis, and "
                "who else may write there",
                self.topic, partition, ", ".join(said),
            )  # fmt: skip
            self._store.mend(partition, state, found.strange)

    async def _continues(
        self, partition: int, watermark: int, records: Sequence[LogRecord]
    ) -> bool:
        """Whether a batch goes on where the state ends, or after a gap of the log itself.

        The end of a transaction takes an offset that nobody is handed, and so does a record that
        went astray on its way here. So the first sight of a gap makes the consumer read again
        from the watermark; the same gap a second time is one of the log, unless the log has
        lost its beginning meanwhile.

        OffsetGap if retention has passed the watermark, or the second reading does not come.
        """
        begin = known(records, watermark)
        first = records[begin].offset if begin < len(records) else watermark
        suspect = self._suspects.get(partition)
        if first == watermark:
            self._suspects.pop(partition, None)
            return True
        if suspect == (watermark, first):
            check_log(self.topic, partition, watermark, *await self._bounds(partition))
            log.warning("offsets %d to %d are not in the log", watermark, first - 1)
            self._suspects.pop(partition, None)
            return True
        self._since_suspect += 1
        if suspect is None or suspect[0] != watermark or first < suspect[1]:
            log.warning(
                "%s[%d]: offset %d came where %d was expected; reading again from there",
                self.topic, partition, first, watermark,
            )  # fmt: skip
            self._suspects[partition] = (watermark, first)
            self._since_suspect = 0
            await self._reread(partition, watermark)
        elif self._since_suspect > PATIENCE_BATCHES:
            raise OffsetGap(
                f"{self.topic}[{partition}]: Kafka does not send offsets {watermark} to "
                f"{suspect[1] - 1}, even when asked again; if they are gone, `veilstream "
                "state rebuild --accept-loss` starts from what is left"
            )
        return False

    async def _send_letters(self, partition: int, letters: Sequence[DeadLetter]) -> None:
        letters = [letter.cut() for letter in letters]
        for start in range(0, len(letters), LETTERS):
            await asyncio.gather(
                *(
                    self._send(
                        self._topics.dead_letters.name,
                        letter.key,
                        letter.value,
                        letter.annotated(self.topic, partition),
                    )
                    for letter in letters[start : start + LETTERS]
                )
            )


def _set_aside(before: Head, after: Head) -> int:
    """Return how many records between two heads are in no sum: repeats, letters, erased ones."""
    return sum(
        getattr(after, name) - getattr(before, name)
        for name in ("duplicates", "dead_letters", "erased", "words")
    )


#: Seconds: of a commit to Redis, and from a release to the estimate that holds it.
COMMITS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)
DELAYS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 3600.0)


class Meters:
    """Meters of one worker, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = prometheus.CollectorRegistry()
        self.commits = prometheus.Histogram(
            "veilstream_commit_seconds",
            "Time that Redis took to store a folded batch.",
            buckets=COMMITS,
            registry=self.registry,
        )
        self.delays = prometheus.Histogram(
            "veilstream_release_to_estimate_seconds",
            "From the newest release in an estimate, by its client's clock, to its publication.",
            buckets=DELAYS,
            registry=self.registry,
        )
        self._letters = prometheus.Counter(
            "veilstream_dead_letters_by_reason",
            "Records that this worker has set aside since it started, by reason.",
            ["reason"],
            registry=self.registry,
        )
        self._checks = prometheus.Counter(
            "veilstream_verifications",
            "Comparisons with a second fold of the log since the worker started, by outcome.",
            ["outcome"],
            registry=self.registry,
        )
        for outcome in ("same", "different"):
            # one that begins with 1 has not increased
            self._checks.labels(outcome)

    def published(self, event_time: str | None) -> None:
        """Time an estimate that is out, whose newest release is of a time in RFC 3339."""
        if event_time is not None:
            came = datetime.fromisoformat(event_time).timestamp()
            self.delays.observe(max(0.0, time.time() - came))

    def letters(self, found: Iterable[DeadLetter]) -> None:
        """Count dead letters."""
        for letter in found:
            self._letters.labels(letter.fault.reason).inc()

    def verified(self, same: bool) -> None:
        """Count a comparison."""
        self._checks.labels("same" if same else "different").inc()


def check_log(topic: str, partition: int, watermark: int, first: int, after: int) -> None:
    """Refuse to continue where the log does not.

    Raises OffsetGap if retention has passed the watermark; StateError as `check_end`.
    """
    if watermark < first:
        raise OffsetGap(
            f"{topic}[{partition}]: offsets {watermark} to {first - 1} were removed from the log "
            "before they were folded; `veilstream state rebuild --accept-loss` starts from what "
            "is left"
        )
    check_end(topic, partition, watermark, after)


def check_end(topic: str, partition: int, watermark: int, after: int) -> None:
    """Refuse a log that ends before what was folded: StateError, which says how to go on."""
    if watermark > after:
        raise StateError(
            f"{topic}[{partition}]: the state stands at {watermark} and the log ends at {after}; "
            f"the topic was made anew: {RECOVER}"
        )


#: Seconds between two looks.
WATCH_SECONDS = 10.0
#: First and next offset of each partition of a topic.
Extents = Callable[[str, int], Awaitable[Sequence[tuple[int, int]]]]


class LogWatch:
    """Compares the log with the stored watermarks of all partitions, whoever owns them.

    A client that runs makes a lost topic anew at once. Then a worker hears of no fault: it loses
    its partitions, or takes what comes, at lower offsets, for what it has folded already. A log
    that has grown beyond the watermarks by then looks sound here; the releases that are missing
    are counted.

    bounds: Tells how far the log goes; it fails where there is none.
    """

    def __init__(self, topics: Topics, store: RedisStore, bounds: Extents) -> None:
        self._releases, self._store, self._bounds = topics.releases, store, bounds

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            await asyncio.sleep(WATCH_SECONDS)
            await self.look()

    async def look(self) -> None:
        """Look once.

        StateError if the log ends before a watermark; BrokerError if Kafka does not answer in time,
        or has no such topic.
        """
        name, count = self._releases.name, self._releases.partitions
        stood = list[int]()
        # where Redis is away, a commit ends this worker, or it comes back
        with suppress(StoreError):
            # before the log is asked: it may only have grown since
            stood = await asyncio.to_thread(
                lambda: [self._store.standing(number)[0] for number in range(count)]
            )
        found = await self._bounds(name, count)
        for number, (watermark, (_, after)) in enumerate(zip(stood, found, strict=False)):
            check_end(name, number, watermark, after)


#: How long there may be something left and nothing folded before a worker is called stalled.
STALLED_SECONDS = 60.0
#: Seconds between two looks at the ends of the log.
ENDS_SECONDS = 5.0
#: Returns how many records of each partition are left, given how far each is folded; or None.
Left = Callable[[Mapping[int, int]], Awaitable[Mapping[int, int] | None]]


class Progress:
    """Watches the partitions that a worker owns.

    left: Asks Kafka what is left.
    now: A clock in seconds that never goes back.
    """

    def __init__(self, folding: Folding, left: Left, now: Callable[[], float] = monotonic) -> None:
        self._folding, self._ask, self._now = folding, left, now
        #: Where each partition stands, and since when it does with something left.
        self._marks: dict[int, tuple[int, float]] = {}
        self._looked = now()
        #: Records of each partition that are in the log and not folded, at the last look.
        self.left: dict[int, int] = {}

    async def run(self) -> None:
        """Look now and then, until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(ENDS_SECONDS)

    async def look(self) -> None:
        """Ask what is left, and note which partitions have moved."""
        asked = {n: state.head.next_offset for n, state in self._folding.partitions.items()}
        left = await self._ask(asked)
        if left is None:
            return
        now = self._now()
        for number, watermark in asked.items():
            stood, _ = self._marks.get(number, (-1, now))
            if stood != watermark or not left.get(number):
                self._marks[number] = watermark, now
        self._marks = {n: mark for n, mark in self._marks.items() if n in asked}
        self.left = {n: left[n] for n in asked if n in left}
        self._looked = now

    def faults(self) -> list[str]:
        """Return a sentence for each partition that has not moved for `STALLED_SECONDS`."""
        now = self._now()
        if now - self._looked >= STALLED_SECONDS:
            return [f"Kafka has not said for {now - self._looked:.0f} s what is left of the log"]
        return [
            f"partition {number}: {self.left[number]} records are left and none has been folded "
            f"for {now - since:.0f} s"
            for number, (_, since) in sorted(self._marks.items())
            if self.left.get(number) and now - since >= STALLED_SECONDS
        ]
