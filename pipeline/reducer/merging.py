"""The states of all partitions to one estimate."""

from __future__ import annotations

from collections.abc import Mapping

from pipeline.estimators.estimate import Estimate
from pipeline.estimators.open_estimate import estimate_open
from pipeline.estimators.open_state import OpenState
from pipeline.estimators.private_estimate import estimate_private
from pipeline.estimators.private_state import PrivateState, Shape
from pipeline.local.plan import Plan
from pipeline.messages.envelope import rfc3339
from pipeline.messages.estimate import EstimateMessage, Position, Provenance, compose
from pipeline.reducer.partition import Partition


def combine(
    plan: Plan,
    partitions: Mapping[int, Partition],
    *,
    topic: str | None,
    model_version: int | None,
    published_at: float,
) -> tuple[Estimate, EstimateMessage]:
    """Merge partitions in the order of their numbers and estimate.

    Parameters
    ----------
    partitions
        By number; those that nothing came to may be left out.
    topic
        Name of the releases topic, or None for a fit without Kafka.
    published_at
        Seconds since 1970. Nothing but this field depends on it.

    Raises
    ------
    NumericError
        If no finite estimate exists.
    """
    ordered = [partitions[number] for number in sorted(partitions)]
    estimate = estimate_of(plan, ordered)
    newest = max((p.head.newest for p in ordered), default=0)
    watermark = [
        Position(topic, number, partitions[number].head.next_offset)
        for number in sorted(partitions)
        if topic is not None
    ]
    provenance = Provenance(
        clients=len({client for p in ordered for client in p.clients}),
        missing=sum(progress.missing for p in ordered for progress in p.clients.values()),
        duplicates=sum(p.head.duplicates for p in ordered),
        dead_letters=sum(p.head.dead_letters for p in ordered),
        model_version=model_version,
        watermark=watermark,
        event_time=rfc3339(newest / 1e6) if newest else None,
        published_at=rfc3339(published_at),
    )
    return estimate, compose(plan, estimate, provenance)


def estimate_of(plan: Plan, partitions: list[Partition]) -> Estimate:
    """Merge the sums of some partitions and estimate; the partitions stay as they are."""
    if plan.study.noised:
        private = PrivateState(Shape.of(plan))
        for partition in partitions:
            if isinstance(partition.sums, PrivateState):
                private.add(partition.sums)
        return estimate_private(plan, private)
    plain = OpenState(plan.size)
    for partition in partitions:
        if isinstance(partition.sums, OpenState):
            plain.add(partition.sums)
    return estimate_open(plan, plain)
