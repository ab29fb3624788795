"""What the sites sent, as the sums of their copies say it: the windows of one site together."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from pipeline.linalg import packed_indices
from pipeline.methods.noisy_mle.copies_task import CopiesTask
from pipeline.methods.noisy_mle.infembler import Copies
from pipeline.methods.noisy_mle.rows import FIRST, RELEASES, Shape
from pipeline.methods.noisy_mle.sites import gathered
from pipeline.methods.noisy_mle.state import SiteState
from pipeline.release.model import COEFFICIENT_EXPONENT
from pipeline.types import Integers, Matrix, Vector


@dataclass(frozen=True, slots=True)
class Drawn:
    """Which models the ridges of fits draw to: those of each site, epoch and bucket, in k rows.

    site: Place of their site, shape (k,).
    mean: Their mean, shape (k, d).
    scatter: Mean of |t - mean|^2, >= 0, shape (k,).
    windows: Sums of the weights of the windows, shape (k,).
    """

    site: Integers
    mean: Matrix
    scatter: Vector
    windows: Vector


@dataclass(frozen=True, slots=True)
class Sent:
    """What the sites in some buckets sent, windows of one site together.

    names: Digests of the clients' ids, sorted.
    windows, squared: Sums of the weights of their windows, and of the weights' squares, (M,).
    drawn: Which models the fits of their windows were drawn to; None: all to 0.
    """

    names: list[str]
    copies: Copies
    windows: Vector
    squared: Vector
    drawn: Drawn | None


def sent_of(
    task: CopiesTask, parts: Sequence[tuple[float, SiteState]], kept: Collection[int]
) -> Sent:
    """Return the sites of some buckets with their weights: their releases in the epochs `kept`."""
    parts = [(weight, state) for weight, state in parts if weight > 0]
    names, which, weights, _, rows = gathered(parts, kept)
    size, shape = task.size, parts[0][1].shape
    sums, squared = np.zeros((len(names), shape.width)), np.zeros(len(names))
    np.add.at(sums, which, weights[:, None] * rows)
    np.add.at(squared, which, weights**2 * rows[:, RELEASES])
    mean, scatter = task.layout.later
    windows = sums[:, RELEASES]
    packed = np.ldexp(sums[:, shape.curvature], scatter.exponent)
    means = np.ldexp(sums[:, FIRST : FIRST + size], mean.exponent) / windows[:, None]
    centres, drawn = None, None
    if task.moving:
        points = sums[:, shape.points : shape.points + size] / windows[:, None]
        centres = np.ldexp(points, COEFFICIENT_EXPONENT)
        means = means + centres
        drawn = _drawn(shape, which, weights, rows)
    ones = np.ones(len(names))
    copies = Copies(
        records=windows * task.slots,
        degrees=windows * (task.copies - 1),
        scales=windows * task.scale,
        noise=ones * task.scale / task.copies,
        means=means,
        scatters=packed[:, packed_indices(size)],
        ridge=task.ridge / task.slots,
        centres=centres,
        rounding=np.ldexp(1.0, 2 * mean.exponent) / 12 / windows,
    )
    return Sent(names, copies, windows, squared, drawn)


def _drawn(shape: Shape, which: Integers, weights: Vector, rows: Integers) -> Drawn:
    counts, size = rows[:, RELEASES].astype(np.float64), shape.size
    sums = rows[:, shape.points : shape.points + size].astype(np.float64)
    means = np.ldexp(sums / counts[:, None], COEFFICIENT_EXPONENT)
    lengths = np.ldexp(shape.squared(rows) / counts, 2 * COEFFICIENT_EXPONENT)
    scatter = np.maximum(lengths - np.sum(means**2, axis=1), 0.0)
    return Drawn(which, means, scatter, weights * counts)
