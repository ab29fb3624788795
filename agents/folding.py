"""Batches to state: fold, dead letters, one commit; the order that makes a crash harmless."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence

from pipeline.errors import OffsetGap, StateError
from pipeline.local.plan import Plan
from pipeline.messages.deadletter import DeadLetter
from pipeline.messages.topics import Topics
from pipeline.reducer import LogRecord, Partition, Reducer
from state import RedisStore

#: Sends one message: topic, key, value, headers.
Send = Callable[[str, bytes | None, bytes | None, list[tuple[str, bytes]]], Awaitable[object]]


class Folding:
    """The partitions that this worker owns.

    Parameters
    ----------
    plan, topics, store
        The study, its topics and where its snapshots are.
    send
        For dead letters; it returns when Kafka has them.
    """

    def __init__(self, plan: Plan, topics: Topics, store: RedisStore, send: Send) -> None:
        self._plan, self._topics, self._store, self._send = plan, topics, store, send
        self._reducer = Reducer(plan)
        self.partitions: dict[int, Partition] = {}
        #: Set after each commit: the estimate step waits on it.
        self.moved = asyncio.Event()
        self.releases = 0

    @property
    def topic(self) -> str:
        """The releases topic."""
        return self._topics.releases.name

    def assign(self, bounds: Mapping[int, tuple[int, int]]) -> dict[int, int]:
        """Load the snapshots of the assigned partitions and return their watermarks.

        Raises
        ------
        OffsetGap
            If the log no longer holds what follows a watermark, or ends before it.
        StateError
            If a snapshot cannot be used.
        """
        loaded = {}
        for partition, (first, after) in bounds.items():
            state = self._store.load(partition)
            check_log(self.topic, partition, state.head.next_offset, first, after)
            loaded[partition] = state
        self.partitions = loaded
        return {partition: state.head.next_offset for partition, state in loaded.items()}

    async def handle(self, partition: int, records: Sequence[LogRecord]) -> None:
        """Fold a batch of one partition and commit it; return when it may be acknowledged.

        Dead letters go out before the commit: a crash in between repeats them, and never loses
        one. Their headers name topic, partition and offset, so that a repeat is seen as one.

        Raises
        ------
        StaleSnapshot, StoreError, OffsetGap, BrokerError
            The worker must stop without acknowledging.
        """
        state = self.partitions.get(partition)
        if state is None:
            return
        before = state.head.next_offset
        letters = self._reducer.fold(state, records)
        if state.head.next_offset == before:
            return
        await self._send_letters(partition, letters)
        self._store.commit(partition, state, expected=before)
        self.releases += len(records) - len(letters)
        self.moved.set()

    async def _send_letters(self, partition: int, letters: Sequence[DeadLetter]) -> None:
        await asyncio.gather(
            *(
                self._send(
                    self._topics.dead_letters.name,
                    letter.key,
                    letter.value,
                    letter.annotated(self.topic, partition),
                )
                for letter in letters
            )
        )


def check_log(topic: str, partition: int, watermark: int, first: int, after: int) -> None:
    """Refuse to continue where the log does not.

    Raises
    ------
    OffsetGap
        If retention has passed the watermark.
    StateError
        If the log ends before it: the topic was made anew.
    """
    if watermark < first:
        raise OffsetGap(
            f"{topic}[{partition}]: offsets {watermark} to {first - 1} are gone from the log "
            "before they were folded; `veilstream state rebuild --accept-loss` starts from what "
            "is left"
        )
    if watermark > after:
        raise StateError(
            f"{topic}[{partition}]: the state stands at {watermark} and the log ends at {after}; "
            "the topic was made anew: give the study a new name, or remove its state"
        )
