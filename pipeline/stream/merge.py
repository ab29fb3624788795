"""The states of all partitions to one estimate."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from pipeline.errors import NumericError
from pipeline.estimators.estimate import Estimate
from pipeline.estimators.forgetting import State, bucket_weights
from pipeline.messages.envelope import rfc3339
from pipeline.messages.estimate import EstimateMessage, Position, Provenance, compose
from pipeline.methods import server_of
from pipeline.release.model import Model, round_model
from pipeline.release.task import Task
from pipeline.stream.partition import Summed, empty_sums
from pipeline.types import Vector

#: Why nothing is known although releases have come.
ALL_ERASED = "all releases that have come are of clients that were taken out: none is left to count"


def combine(
    task: Task,
    partitions: Mapping[int, Summed],
    *,
    topic: str | None,
    model_version: int | None,
    published_at: float,
    records_per_second: float | None = None,
) -> tuple[Estimate, EstimateMessage]:
    """Merge partitions in the order of their numbers and estimate.

    partitions: By number; those that nothing came to may be left out.
    topic: Name of the releases topic, or None for a fit without Kafka.
    published_at: Seconds since 1970. Nothing but this field depends on it.
    records_per_second: How fast record slots come now; None where nobody saw it. Nothing but the
        forecast in `progress` depends on it.

    Raises NumericError if no finite estimate exists.
    """
    ordered = [partitions[number] for number in sorted(partitions)]
    estimate = estimate_of(task, ordered, sorted(partitions))
    erased = sum(p.head.erased for p in ordered)
    if erased and estimate.status == "empty":
        estimate = replace(estimate, reason=ALL_ERASED)
    newest = max((p.head.newest for p in ordered), default=0)
    watermark = [
        Position(topic, number, partitions[number].head.next_offset)
        for number in sorted(partitions)
        if topic is not None
    ]
    provenance = Provenance(
        # a client's releases are all in one partition, which its key names
        clients=sum(p.head.clients for p in ordered),
        missing=sum(p.head.missing for p in ordered),
        duplicates=sum(p.head.duplicates for p in ordered),
        dead_letters=sum(p.head.dead_letters for p in ordered),
        forgotten=_forgotten(ordered, estimate),
        erased=erased,
        largest_client_share=_largest_share(task, ordered),
        model_version=model_version,
        watermark=watermark,
        event_time=rfc3339(newest / 1e6) if newest else None,
        published_at=rfc3339(published_at),
        records_per_second=records_per_second,
    )
    return estimate, compose(task, estimate, provenance)


def estimate_of(
    task: Task, partitions: Sequence[Summed], numbers: Sequence[int] | None = None
) -> Estimate:
    """Merge the sums of some partitions and estimate; the partitions stay as they are.

    numbers: Of the partitions, by default 0, 1, ...

    Raises NumericError if no finite estimate exists.
    """
    named = zip(numbers or range(len(partitions)), partitions, strict=True)
    begun = [number for number, part in named if any(s.begun for s in part.sums.states.values())]
    try:
        merged = _merged(task, partitions)
        return server_of(task).estimate(merged, begun, missing=_gaps(partitions))
    except np.linalg.LinAlgError as error:
        # whoever publishes waits for more releases; anything else would end each worker in turn
        raise NumericError(
            f"the sums that have come have no estimate ({error}): it needs more releases"
        ) from error


def expansion_of(task: Task, partitions: Sequence[Summed]) -> tuple[Vector, tuple[float, float]]:
    """Return where clients linearise next, and the weights of classes: as `estimate_of` has them.

    Cheaper than an estimate where the method knows its point without one.
    """
    return server_of(task).next_point(_merged(task, partitions))


def _merged(task: Task, partitions: Sequence[Summed]) -> list[tuple[float, State]]:
    """Return the buckets of all partitions together, oldest first, with their weights."""
    merged = empty_sums(task)
    if len(partitions) == 1 and partitions[0].sums.states:
        # adding one partition to nothing takes as long as the estimate
        [merged] = (partition.sums for partition in partitions)
    else:
        for partition in partitions:
            merged.add(partition.sums)
    if not merged.states:
        # nothing has come: an estimate of nothing, which says so
        merged.at(0)
    weights = bucket_weights(
        task.study.estimator.forgetting, merged.states, slots=slots_seen(partitions)
    )
    return [(weights[bucket], merged.states[bucket]) for bucket in sorted(weights)]


def model_after(
    task: Task,
    partitions: Mapping[int, Summed],
    expansion: tuple[Vector, tuple[float, float]],
    version: int,
    watermark: int,
) -> Model:
    """Return the model that clients linearise at next.

    partitions: All partitions of the study, by number.
    expansion: As `expansion_of` gives it.
    watermark: Record slots folded so far.

    Raises NumericError if a coefficient is not a finite number.
    """
    model = round_model(version, *expansion, watermark)
    server = server_of(task)
    parts = [
        server.part(partitions[n].head.slots, partitions[n].sums.states.get(0))
        for n in sorted(partitions)
    ]
    return replace(
        model,
        parts=tuple(part for part in parts if part is not None),
        offsets=tuple(partitions[n].head.next_offset for n in sorted(partitions)),
    )


def start_is_over(task: Task, partitions: Iterable[Summed]) -> bool:
    """Whether the first model may go out.

    partitions: All partitions of the study.
    """
    states: list[State] = []
    furthest = 0
    for partition in partitions:
        states += partition.sums.states.values()
        furthest = max(furthest, partition.head.furthest + 1)
    return server_of(task).start_is_over(states, furthest)


def _gaps(partitions: Sequence[Summed]) -> int:
    """Return in how many places releases below the highest numbers are in no sum."""
    return sum(p.head.holes for p in partitions)


def _forgotten(partitions: Sequence[Summed], estimate: Estimate) -> int:
    """Return how many releases are too old: for their partition, or for all of them together."""
    held = sum(state.releases for p in partitions for state in p.sums.states.values())
    return sum(p.head.forgotten for p in partitions) + held - estimate.releases


def _largest_share(task: Task, partitions: Sequence[Summed]) -> float | None:
    """Return the largest share of one client in all record slots that have come since the start."""
    if task.growth.divisor:
        came = slots_seen(partitions)
    else:
        counted = sum(state.releases for p in partitions for state in p.sums.states.values())
        came = task.slots * (counted + sum(p.head.forgotten for p in partitions))
    largest = max((p.head.largest for p in partitions), default=0)
    return min(largest / came, 1.0) if largest and came else None


def slots_seen(partitions: Iterable[Summed]) -> int:
    """Return the record slots that have come in some partitions, for the next model to tell."""
    return sum(partition.head.slots for partition in partitions)


def holds_releases(partitions: Iterable[Summed]) -> bool:
    """Whether any release counts in some partitions."""
    return any(s.releases for partition in partitions for s in partition.sums.states.values())
