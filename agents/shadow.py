"""A second state of a study, folded from the log beside the stored one and compared with it.

It goes on where it stands: a comparison costs the releases since the last one. Where the log has
lost what the stored state began with, it starts from that state, whose checksums fit, and vouches
for what follows. It begins anew where the stored state did: with other clients erased, or rebuilt
without what the log has lost.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from agents.authority import authenticator, begin_admitted
from agents.history import History
from agents.log_extent import check_end
from agents.refold import history_of
from pipeline.errors import OffsetGap
from pipeline.release.task import Task
from pipeline.settings import Settings
from pipeline.stream.fold import Reducer
from pipeline.stream.partition import Partition, differences
from pipeline.stream.replay import Span
from state import RedisStore
from state.connection import redis_client


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
        self._store = RedisStore(redis_client(settings), task)
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
