"""What the integer sums of sites say in real units, releases weighed by their age."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from pipeline.linalg import packed_indices
from pipeline.methods.noisy_mle.client import SiteTask
from pipeline.methods.noisy_mle.state import BLOCKS, FIRST, KEPT, RELEASES, SiteState
from pipeline.release.model import COEFFICIENT_EXPONENT
from pipeline.types import Integers, Matrix, Vector

#: Older epochs are left out only where so large a share of the sites that go on stays.
STAYING = 0.75
#: A site has stopped that is so many epochs behind the one that more than half have reached: they
#: are at a model of twice its number, or the third where it is at the first.
SILENT = 2
#: No epoch is later.
LAST = 2**40


@dataclass(frozen=True, slots=True)
class Points:
    """Where releases were taken: those of each site, epoch and bucket together, in k rows.

    site, epoch: Place of their site, and their epoch; shape (k,).
    mean: Their mean point over record slots, shape (k, d).
    scatter: Mean of |t - mean|^2 over record slots, >= 0, shape (k,).
    bending: Sums of w n over those that leave something out beyond their point, shape (k,).
    noise: Variance of the noise of the summed curvature's diagonal, shape (k,).
    """

    site: Integers
    epoch: Integers
    mean: Matrix
    scatter: Vector
    bending: Vector
    noise: Vector


@dataclass(frozen=True, slots=True)
class Sites:
    """The releases of M sites in the last epochs; what is linear in one has its weight w.

    names: Digests of the clients' ids, sorted.
    score: Sums of w times the score at the release's own point, the negative gradient; shape (M,
        d).
    curvature, drift: Sums of w J, shape (M, d, d), and of w J t of curvatures times points, shape
        (M, d).
    squares: Sums of w times squared slopes, shape (M,); zeros where they are not released.
    records, squared: Sums of w n and of w^2 n over releases of n slots, shape (M,).
    score_noise, curvature_noise: Variance of the noise of an entry of the score, and of the
        curvature's diagonal; shape (M,).
    squares_noise: That of the squares, shape (M,).
    point: Mean point of the releases over record slots, shape (M, d).
    points: The same by epoch.
    """

    names: list[str]
    score: Matrix
    curvature: Matrix
    drift: Matrix
    squares: Vector
    records: Vector
    squared: Vector
    score_noise: Vector
    curvature_noise: Vector
    squares_noise: Vector
    point: Matrix
    points: Points

    def residuals(self, point: Vector) -> Matrix:
        """Return the sites' scores at a point, to first order, shape (M, d)."""
        moved: Matrix = self.score + self.drift - self.curvature @ point
        return moved


def sites_of(
    task: SiteTask, parts: Sequence[tuple[float, SiteState]], kept: Collection[int]
) -> Sites:
    """Return the sites of some buckets with their weights: their releases in the epochs `kept`."""
    names, which, weights, epochs, integers = gathered(parts, kept)
    start, rows, shape = epochs == 0, integers.astype(np.float64), parts[0][1].shape
    size = shape.size

    def unit(of: Iterable[float]) -> Vector:
        """Return the first of two units for releases at the start, else the second."""
        one, other = of
        return np.where(start, one, other)

    def summed(values: Matrix) -> Matrix:
        total: Matrix = np.zeros((len(names), *values.shape[1:]))
        np.add.at(total, which, values)
        return total

    both = (task.initial_channels, task.update_channels)
    curved, point_unit = task.update_channels.curvature, math.ldexp(1.0, COEFFICIENT_EXPONENT)
    # noise goes with releases, all that records say with blocks of slots
    blocks, twice = weights * rows[:, BLOCKS], weights**2 * rows[:, RELEASES]
    gradients = rows[:, FIRST : shape.curvature.start]
    gradient = (weights * unit(c.gradient.unit for c in both))[:, None] * gradients
    packed = (weights * curved.unit)[:, None] * rows[:, shape.curvature]
    squares, squares_noise = np.zeros(len(rows)), np.zeros(len(rows))
    if shape.squares:
        channels = [c.squares for c in both if c.squares is not None]
        squares = weights * unit(c.unit for c in channels) * rows[:, shape.curvature.stop]
        squares_noise = twice * unit(c.standard_deviation**2 for c in channels)
    means = point_unit * rows[:, shape.points : shape.points + size] / rows[:, [BLOCKS]]
    lengths = point_unit**2 * shape.squared(integers) / rows[:, BLOCKS]
    curvature_noise = twice * curved.standard_deviation**2
    held = summed(blocks)
    exact = start & (task.loss.name == "linear")
    return Sites(
        names=names,
        score=-summed(gradient),
        curvature=summed(packed)[:, packed_indices(size)],
        drift=summed((weights * curved.unit * point_unit)[:, None] * shape.products(integers)),
        squares=summed(squares),
        records=held * task.slots,
        squared=summed(weights * blocks) * task.slots,
        score_noise=summed(twice * unit(c.gradient.standard_deviation**2 for c in both)),
        curvature_noise=summed(curvature_noise),
        squares_noise=summed(squares_noise),
        point=summed(blocks[:, None] * means) / held[:, None],
        points=Points(
            site=which,
            epoch=epochs,
            mean=means,
            scatter=np.maximum(lengths - np.sum(means**2, axis=1), 0.0),
            bending=np.where(exact, 0.0, blocks) * task.slots,
            noise=curvature_noise,
        ),
    )


def gathered(
    parts: Sequence[tuple[float, SiteState]], kept: Collection[int]
) -> tuple[list[str], Integers, Vector, Integers, Integers]:
    """Return the sums of the epochs `kept` of all buckets, row by row.

    Names of the M sites, sorted; of each row its site's place in them, its bucket's weight and its
    epoch, shape (n,); and the sums, shape (n, width).
    """
    names: list[str] = []
    weights, epochs, rows = [], [], []
    for weight, state in parts:
        which, epoch, row = state.held()
        own, known = np.isin(epoch, list(kept)), list(state.sites)
        names += [known[place] for place in which[own].tolist()]
        weights.append(np.full(int(own.sum()), weight))
        epochs.append(epoch[own])
        rows.append(row[own])
    found = sorted(set(names))
    place = {name: index for index, name in enumerate(found)}
    return (
        found,
        np.array([place[name] for name in names], dtype=np.int64),
        np.concatenate(weights),
        np.concatenate(epochs),
        np.concatenate(rows),
    )


def recent_epochs(parts: Sequence[tuple[float, SiteState]]) -> set[int]:
    """Return the epochs that enter the estimate: the newest, and the start for as long as it must.

    The newest that count are those that more than a quarter of the sites have reached, and all
    behind them: a few sites that send more, or say newer versions, push nobody out. Scores of the
    public start are the farthest from the estimate. They leave it when as many slots at models have
    come, of most sites.
    """
    counts, reached = Counter[int](), newest_epochs(parts)
    for _, state in parts:
        _, epochs, rows = state.held()
        for epoch in np.unique(epochs).tolist():
            counts[epoch] += int(rows[epochs == epoch, BLOCKS].sum())
    if not reached:
        return set()
    come = sorted(reached.values(), reverse=True)[len(reached) // 4]
    known = sorted(counts)
    last = [epoch for epoch in known if epoch <= come][-KEPT:]
    last += [epoch for epoch in known if epoch > come]
    later = sum(counts[epoch] for epoch in last if epoch)
    moved_on = 2 * sum(epoch > 0 for epoch in reached.values()) > len(reached)
    return {epoch for epoch in last if epoch or counts[0] > later or not moved_on}


def newest_epochs(parts: Sequence[tuple[float, SiteState]]) -> dict[str, int]:
    """Return the newest epoch of each site."""
    reached: dict[str, int] = {}
    for _, state in parts:
        newest = state.epochs[: len(state.sites)].max(axis=1, initial=-1)
        for name, epoch in zip(state.sites, newest.tolist(), strict=True):
            reached[name] = max(epoch, reached.get(name, -1))
    return reached


def needed_sites(parts: Sequence[tuple[float, SiteState]], names: Collection[str]) -> int:
    """Return how many of some sites must stay where older epochs are left out.

    Three quarters of those that go on, and more than half of all: the first few at a new model are
    no majority alone. Those have stopped that are `SILENT` epochs behind what most have reached.
    """
    newest, held = newest_epochs(parts), [state.epochs[: len(state.sites)] for _, state in parts]
    # start and first model are behind the second one, whatever its epoch is
    second = min(int(np.min(epochs, initial=LAST, where=epochs > 1)) for epochs in held)
    each = (newest[name] + (second - 2) * (newest[name] <= 1) for name in names)
    reached = sorted(each, reverse=True)
    most = reached[len(reached) // 2]
    going = sum(epoch > most - SILENT for epoch in reached)
    return max(math.ceil(STAYING * going), len(reached) // 2 + 1)
