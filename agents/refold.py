"""The state again, from the log: for verifying what is stored, and for rebuilding it."""

from __future__ import annotations

from collections.abc import Callable

from kafka import KafkaConsumer, TopicPartition
from kafka.errors import KafkaError

from infra.connection import kafka_options, log_reader
from pipeline.errors import BrokerError, OffsetGap, StateError
from pipeline.local.plan import Plan
from pipeline.messages.topics import Topics
from pipeline.reducer import Partition, Reducer
from pipeline.settings import Settings

#: Told how many of how many records have been folded.
Report = Callable[[int, int], None]


def log_ends(plan: Plan, settings: Settings) -> dict[int, int]:
    """Return the next offset of each partition of the releases topic.

    Raises
    ------
    BrokerError
        If Kafka fails.
    """
    topic = Topics.of(plan.study).releases
    places = [TopicPartition(topic.name, number) for number in range(topic.partitions)]
    try:
        with log_reader(settings, wait_ms=100) as consumer:
            ends = consumer.end_offsets(places)
    except KafkaError as error:
        raise BrokerError(f"the releases cannot be read ({type(error).__name__})") from error
    return {place.partition: ends[place] for place in places}


def refold(
    plan: Plan,
    settings: Settings,
    partition: int,
    *,
    until: int | None = None,
    accept_loss: bool = False,
    erased: frozenset[str] = frozenset(),
    report: Report = lambda _done, _of: None,
) -> Partition:
    """Fold one partition of the releases topic from its start.

    The consumer joins no group and commits nothing.

    Parameters
    ----------
    until
        Stop before this offset; None is the end of the log as it is now.
    accept_loss
        Begin at the oldest record that is left, if the first ones are gone.
    erased
        Clients whose releases are passed over.

    Raises
    ------
    OffsetGap
        If the log no longer begins at 0 and the loss is not accepted.
    StateError
        If the log ends before `until`.
    BrokerError
        If Kafka fails.
    """
    place = TopicPartition(Topics.of(plan.study).releases.name, partition)
    reducer, state = Reducer(plan), Partition.empty(plan, erased)
    try:
        consumer = KafkaConsumer(
            **kafka_options(settings),
            group_id=None,
            enable_auto_commit=False,
            auto_offset_reset="none",
            bootstrap_timeout_ms=10_000,
            max_poll_records=2000,
        )
        with consumer:
            consumer.assign([place])
            first = consumer.beginning_offsets([place])[place]
            log_end = consumer.end_offsets([place])[place]
            end = log_end if until is None else until
            if end > log_end:
                raise StateError(
                    f"{place.topic}[{partition}]: the state stands at {end} and the log ends at "
                    f"{log_end}: the topic was made anew"
                )
            if first > 0:
                if not accept_loss:
                    raise OffsetGap(
                        f"{place.topic}[{partition}]: offsets 0 to {first - 1} are gone from the "
                        "log; a state from the rest is another state (--accept-loss takes it)"
                    )
                state = state.starting_at(first)
            consumer.seek(place, first)
            # the position and not the state: the end of a transaction is never handed out
            while consumer.position(place) < end:
                records = consumer.poll(timeout_ms=1000).get(place, [])
                reducer.fold(state, [r for r in records if r.offset < end], holes=True)
                report(state.head.next_offset, end)
    except KafkaError as error:
        raise BrokerError(f"the releases cannot be read ({type(error).__name__})") from error
    return state
