"""Batches to state: fold, dead letters, one commit; the order that makes a crash harmless."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import islice

from agents.log_watch import check_log
from agents.meters import Meters
from pipeline.errors import OffsetGap, StaleSnapshot, StateError, StoreError
from pipeline.messages.authentic import Authenticator
from pipeline.messages.envelope import DeadLetter
from pipeline.messages.topics import MAX_LETTER_BYTES, Topics
from pipeline.release.task import Task
from pipeline.stream.fold import LogRecord, Reducer, known
from pipeline.stream.partition import Head, Partition
from state import RedisStore
from state.stored import doubt_of

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
        self,
        task: Task,
        topics: Topics,
        store: RedisStore,
        send: Send,
        reread: Reread,
        bounds: Bounds,
        trust: Authenticator | None = None,
    ) -> None:
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
        letters = [letter.cut(MAX_LETTER_BYTES) for letter in letters]
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
