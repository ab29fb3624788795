"""Published estimates beside a replay to the same log positions, number by number."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import msgspec

from agents.authority import authenticator, begin_admitted
from agents.history import History
from agents.refold import history_of
from pipeline.errors import OffsetGap, PayloadError
from pipeline.messages.authentic import Authenticator
from pipeline.messages.estimate import EstimateMessage, read_estimate
from pipeline.messages.topics import Topics
from pipeline.methods import server_of
from pipeline.release.task import Task
from pipeline.settings import Settings
from pipeline.stream.fold import LogRecord, Reducer
from pipeline.stream.merge import combine
from pipeline.stream.partition import Partition
from pipeline.stream.replay import Difference, Span, difference
from state import RedisStore
from state.connection import redis_client

#: Told of how many of how many published estimates have been looked at.
Report = Callable[[int, int], None]


@dataclass(slots=True)
class Checked:
    """What a check has found.

    compared, different: How many estimates were compared, and how many of them differ.
    apart: How many were not compared, by reason.
    first, message: The first difference, and the published estimate that has it.
    differing: Offsets, in the topic of estimates, of those that differ.
    impossible: Likewise, of those that stand for positions that the log does not have: somebody
        else wrote them, or the log was made anew.
    """

    compared: int = 0
    different: int = 0
    apart: Counter[str] = field(default_factory=Counter)
    first: Difference | None = None
    message: EstimateMessage | None = None
    differing: list[int] = field(default_factory=list)
    impossible: list[int] = field(default_factory=list)

    @property
    def sound(self) -> bool:
        """Whether every estimate that could be compared is that of the log."""
        return not self.differing and not self.impossible


class Follower:
    """The states of all partitions, moved on from one set of log positions to the next.

    starts: Where each partition begins: 0, or its first record that is left.
    """

    def __init__(
        self,
        task: Task,
        settings: Settings,
        history: History,
        starts: Mapping[int, int],
        erased: frozenset[str],
    ) -> None:
        trust = authenticator(task, settings)
        self.trust, self._history = trust, history
        self._reducer = Reducer(task, trust=trust)
        self._ends = {n: extent.after for n, extent in history.extents().items()}
        self.states = {
            n: Partition.empty(task, erased, number=n).starting_at(starts[n]) for n in starts
        }
        begin_admitted(task, settings, trust, self.states)
        self._held: dict[int, list[LogRecord]] = {n: [] for n in starts}
        history.seek({n: Span(starts[n], self._ends[n]) for n in starts})

    def possible(self, live: EstimateMessage) -> bool:
        """Whether the log reaches as far as an estimate says it stands for."""
        named = [known.partition for known in live.watermark]
        return sorted(named) == sorted(self.states) and all(
            0 <= known.next_offset <= self._ends[known.partition] for known in live.watermark
        )

    def behind(self, positions: Mapping[int, int]) -> bool:
        """Whether a partition is further than these positions."""
        return any(self.states[n].head.next_offset > at for n, at in positions.items())

    def move(self, positions: Mapping[int, int]) -> None:
        """Fold each partition up to its position, which is `possible`."""
        for number, at in positions.items():
            state = self.states[number]
            while state.head.next_offset < at:
                held = self._held[number] or self._history.more(number)
                cut = bisect_left(held, at, key=_offset)
                self._reducer.fold(state, held[:cut], allow_gaps=True)
                self._held[number] = held[cut:]
                if not held or cut == 0:
                    # what the estimate had is no longer in the log: its positions will differ
                    break


def check(
    task: Task,
    settings: Settings,
    *,
    accept_loss: bool,
    stopped: Callable[[], bool],
    report: Report,
) -> Checked:
    """Compare every published estimate of a study with a fold of the log to its positions.

    Positions of estimates grow. Where they went back, as after a rebuild, the log is folded again
    for those estimates. Raises OffsetGap if retention took the start of the log, and that is not
    accepted; BrokerError, StoreError if Kafka or Redis fails.
    """
    erased = RedisStore(redis_client(settings), task).erased()
    topics, found = Topics.of(task.study), Checked()
    with (
        history_of(task, settings, stopped) as releases,
        History(settings, topics.estimates.name, 1, stopped) as published,
    ):
        starts = _starts(releases, accept_loss=accept_loss)
        extent = published.extents()[0]
        only: set[int] | None = None
        first = extent.first
        while only is None or only:
            published.seek({0: Span(first, extent.after)})
            follower, again = Follower(task, settings, releases, starts, erased), []
            for record in published.records(0):
                if only is not None and record.offset not in only:
                    continue
                report(record.offset - extent.first + 1, extent.after - extent.first)
                live = _usable(task, follower.trust, record, found)
                if live is None:
                    continue
                if not follower.possible(live):
                    found.impossible.append(record.offset)
                    continue
                positions = {known.partition: known.next_offset for known in live.watermark}
                if any(at < starts[n] for n, at in positions.items()):
                    found.apart["from before the part that retention has left"] += 1
                    continue
                if follower.behind(positions):
                    again.append(record.offset)
                    continue
                follower.move(positions)
                if _differs(task, live, follower.states, releases.topic, found, erased):
                    found.differing.append(record.offset)
            only = set(again)
            first = again[0] if again else first
    return found


def _starts(history: History, *, accept_loss: bool) -> dict[int, int]:
    starts = {number: extent.first for number, extent in history.extents().items()}
    gone = [f"0 to {at - 1} of partition {n}" for n, at in starts.items() if at]
    if gone and not accept_loss:
        raise OffsetGap(
            f"{history.topic}: retention has removed offsets {', '.join(gone)}, so estimates "
            "that need them cannot be checked; --accept-loss checks those of a state that was "
            "rebuilt without them"
        )
    return starts


def _usable(
    task: Task, trust: Authenticator | None, record: LogRecord, found: Checked
) -> EstimateMessage | None:
    """Return a published estimate that this study can be compared with, or count why not."""
    try:
        if trust is not None:
            trust.check(record.value or b"")
        live = read_estimate(record.value or b"")
    except PayloadError:
        found.apart["not signed by this study"] += 1
        return None
    except msgspec.DecodeError:
        found.apart["no estimate"] += 1
        return None
    own = task.study.estimator.level, server_of(task).interval
    if live.study_revision != task.revision:
        found.apart["of another revision"] += 1
    elif (live.level, live.interval_method) != own:
        found.apart["with another level or interval"] += 1
    else:
        return live
    return None


def _differs(
    task: Task,
    live: EstimateMessage,
    states: Mapping[int, Partition],
    topic: str,
    found: Checked,
    erased: frozenset[str],
) -> bool:
    _, replayed = combine(task, states, topic=topic, model_version=None, published_at=0.0)
    if erased and live.diagnostics.erased < replayed.diagnostics.erased:
        found.apart["from before a client was taken out"] += 1
        return False
    found.compared += 1
    different = difference(live, replayed)
    if different is None:
        return False
    found.different += 1
    if found.first is None:
        found.first, found.message = different, live
    return True


def _offset(record: LogRecord) -> int:
    return record.offset
