"""What the integer sums of a private study say in real units, releases weighed by their age.

What is linear in releases is weighed by their weight w, and every variance by its square.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from pipeline.estimators import integer_sums as exact
from pipeline.estimators.forgetting import effective
from pipeline.estimators.integer_sums import BigIntegers
from pipeline.linalg import unpack_upper
from pipeline.methods.renewable.client import RenewableTask
from pipeline.methods.renewable.state import PrivateState, Shape
from pipeline.privacy import memory
from pipeline.release.model import COEFFICIENT_EXPONENT
from pipeline.types import Matrix, Vector

#: States of some buckets with their weights.
Weighed = Sequence[tuple[float, PrivateState]]


@dataclass(frozen=True, slots=True)
class Sums:
    """Sums over the releases of the newest epochs, in real units; n is a release's slots.

    slots, records: Sum of w n, and the effective number of record slots.
    releases: Effective number of releases: their number, where all weigh the same.
    gradient, points, curvature: Sums of w g, w n t and w H, shapes (d,), (d,) and (d, d).
    middle: Sum of w M, shape (d, d); None where it is not released.
    spread_of_points: Sum of w n t t', shape (d, d).
    slopes: Sum of w s, the squared slopes of a regression; None where they are not released.
    noise: Variance of the noise of the weighted sums, in units of that of one release whose noise
        is independent: V.
    noise_apart: The same of the releases one by one, added up: W.
    second: Sum of w^2 z z' with z = (g, n t, n), shape (2 d + 1, 2 d + 1).
    groups: For each group of clients that has any, sums of w^2 n (g, n t, n), and of w (g, n t, n);
        each (k, 2 d + 1).
    """

    slots: float
    records: float
    releases: float
    gradient: Vector
    points: Vector
    curvature: Matrix
    middle: Matrix | None
    spread_of_points: Matrix
    slopes: float | None
    noise: float
    noise_apart: float
    second: Matrix
    groups: tuple[Matrix, Matrix]


def newest_sums(task: RenewableTask, parts: Weighed, missing: int) -> Iterator[Sums]:
    """Yield the sums of the newest epoch, of the two newest, and so on.

    A release can say that its model had seen more slots than there are: it goes with the epoch of
    those that there are, so that one that lies does not stand alone for all.

    missing: Runs of releases that never came, of all clients, below numbers that did: what they
        would have cancelled is still there, and counts as noise.
    """
    held: list[BigIntegers | None] = [None] * len(parts)
    groups: list[dict[int, BigIntegers]] = [{} for _ in parts]
    gaps = missing * memory.GAP if task.remembers else 0
    epochs = epochs_of(parts)
    newest = memory.epoch_of(sum(state.slots for _, state in parts), task.slots)
    newest = max(newest, epochs[0]) if epochs else newest
    for epoch in reversed(epochs):
        for place, (_, state) in enumerate(parts):
            own, before = state.epochs.get(epoch), held[place]
            if own is not None:
                held[place] = own if before is None else before + own
                for group, part in state.groups[epoch].items():
                    mine = groups[place]
                    mine[group] = mine[group] + part if group in mine else part
        if epoch > newest:
            continue
        noise = sum(w * w * (state.noise[epoch] + gaps) for w, state in parts)
        sums = [
            (w, own, mine)
            for (w, _), own, mine in zip(parts, held, groups, strict=True)
            if own is not None
        ]
        if task.remembers:
            # places in chains that cannot be would otherwise make it none
            noise = max(noise, memory.variance(1))
        yield _sums(task, parts[0][1].shape, sums, float(noise))


def epochs_of(parts: Weighed) -> list[int]:
    """Return the epochs that there are, oldest first."""
    return sorted({epoch for _, state in parts for epoch in state.epochs})


def total_of(parts: Weighed, of: Callable[[PrivateState], BigIntegers]) -> Vector:
    """Return the weighted total of some sums of each state."""
    total: Vector = np.sum([w * exact.as_floats(of(state)) for w, state in parts], axis=0)
    return total


def noise_of_counts(task: RenewableTask, parts: Weighed) -> float:
    """Return the standard deviation of the noise in the weighted total of each class count."""
    channel = task.update_channels.counts
    if channel is None:
        return 0.0
    start = sum(w * w * float(state.start[-1]) for w, state in parts)
    later = sum(w * w * float(state.noise[0]) for w, state in parts) * unit_of_noise(task)
    return channel.standard_deviation * math.sqrt(start + later)


def unit_of_noise(task: RenewableTask) -> float:
    """Return what a stored variance of noise is in units of that of one independent release."""
    return (memory.SQUARED_NORM if task.remembers else 1.0) / 2.0**memory.FIXED


def _sums(
    task: RenewableTask,
    shape: Shape,
    held: Sequence[tuple[float, BigIntegers, dict[int, BigIntegers]]],
    noise: float,
) -> Sums:
    floats = [(w, exact.as_floats(own)) for w, own, _ in held]
    once = _parts(shape.parts, np.sum([w * own for w, own in floats], axis=0))
    twice = once
    if any(w != 1.0 for w, _ in floats):
        twice = _parts(shape.parts, np.sum([w * w * own for w, own in floats], axis=0))
    channels, size, slots = task.update_channels, shape.size, float(task.slots)
    lattice = math.ldexp(1.0, COEFFICIENT_EXPONENT)
    of_gradient = np.full(size, channels.gradient.unit)
    unit = np.concatenate([of_gradient, np.full(size, slots * lattice), [slots, 1.0]])
    first = unpack_upper(once["gram"], shape.rows)[:, -1] * unit
    second = unpack_upper(twice["gram"], shape.rows) * np.outer(unit, unit)
    linear = unit[:-1]
    names = sorted({group for _, _, mine in held for group in mine})
    once_grouped, twice_grouped = np.zeros((2, len(names), 2, len(linear)))
    for w, _, mine in held:
        for place, group in enumerate(names):
            if group in mine:
                own = exact.as_floats(mine[group]).reshape(2, -1) * np.stack(
                    [linear, slots * linear]
                )
                once_grouped[place] += w * own
                twice_grouped[place] += w * w * own
    curved = channels.curvature.unit if channels.curvature else 0.0
    return Sums(
        slots=float(first[-2]),
        records=effective(float(first[-2]), float(second[-2, -1])),
        releases=effective(float(first[-1]), float(second[-1, -1])),
        gradient=first[:size],
        points=first[size : 2 * size],
        curvature=unpack_upper(once["curvature"], size) * curved,
        middle=unpack_upper(once["middle"], size) * channels.middle.unit
        if channels.middle
        else None,
        spread_of_points=unpack_upper(once["points"], size) * (slots * lattice**2),
        slopes=float(once["squares"][0]) * channels.counts.unit
        if shape.squares and channels.counts
        else None,
        noise=noise * unit_of_noise(task),
        noise_apart=float(twice["noise"][0]) * unit_of_noise(task),
        second=second[:-1, :-1],
        groups=(twice_grouped[:, 1], once_grouped[:, 0]),
    )


def _parts(lengths: dict[str, int], vector: Vector) -> dict[str, Vector]:
    ends = np.cumsum(list(lengths.values()))
    return dict(zip(lengths, np.split(vector, ends[:-1]), strict=True))
