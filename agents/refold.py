"""The state again, from the log: for verifying what is stored, and for rebuilding it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from agents.authority import authenticator, begin_admitted
from agents.history import History
from agents.log_extent import check_end
from pipeline.errors import OffsetGap
from pipeline.messages.envelope import DeadLetter
from pipeline.messages.topics import Topics
from pipeline.release.task import Task
from pipeline.settings import Settings
from pipeline.stream.fold import Reducer
from pipeline.stream.partition import Partition
from pipeline.stream.replay import Span

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
    task: Task,
    settings: Settings,
    partition: int,
    *,
    until: int | None = None,
    accept_loss: bool = False,
    erased: frozenset[str] = frozenset(),
    report: Report = lambda _done, _of: None,
    set_aside: SetAside = lambda _partition, _letters: None,
) -> Partition:
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
