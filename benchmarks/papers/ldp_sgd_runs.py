"""Many replications of one path of locally private gradient descent at once.

The design of the paper's simulation, as far as its figures let it be recovered: an intercept and
three standard normal features, coefficients of one, normal errors of deviation 1/2, Huber's slope
at 1.345 deviations, weights min(1, 2 / |(1, x)|^2), steps eta0 i^-alpha from zero, averages after
a burn-in. Noise is Gaussian of a seeded generator, which protects nobody.

What a replication leaves are the same `Sums` that a worker keeps, so that its intervals come from
the package's own functions; `check` compares them with those of `SgdPath`.
Source: ldp-sgd, Table 1; settings: spec (h).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipeline.estimators.sgd.path import Rule, SgdPath
from pipeline.estimators.sgd.steps import StepRule
from pipeline.estimators.sgd.sums import Sums
from pipeline.types import Matrix, Vector

SIZE = 4
TRUTH = np.ones(SIZE)
DEVIATION = 0.5
BEND = 1.345 * DEVIATION
#: Largest norms of a gradient and of a curvature at squared radius 2.
SLOPE, CURVATURE = math.sqrt(2) * BEND, 2.0
#: Records of all replications that are summed at once; burn-ins and ends are multiples of it.
CHUNK = 500
Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Setting:
    """One path: its privacy, its steps, and how late its points are.

    Attributes
    ----------
    mu
        Of one gradient; infinite for none.
    behind, block
        D and k: record i uses the iterate after max(k floor((i - 1) / k) - D, 0) records.
    cap
        Largest step.
    """

    mu: float
    eta0: float = 1.0
    alpha: float = 0.501
    burn_in: int = 1000
    behind: int = 0
    block: int = 1
    cap: float = math.inf

    @property
    def noise(self) -> float:
        """Standard deviation of the noise of one gradient entry."""
        return 2 * SLOPE / self.mu

    @property
    def steps(self) -> StepRule:
        """The rule of its steps."""
        return StepRule(self.eta0, self.alpha, self.cap)


@dataclass(frozen=True, slots=True)
class Replication:
    """What one replication knows after some records.

    Attributes
    ----------
    sums, origin
        As `SgdPath` keeps them.
    curvature, products
        Mean exact curvature and mean product of exact gradients, shape (d, d): what plug-in
        intervals that release them would noise.
    batches
        Diagonal of the limit covariance by batch means, shape (d,).
    """

    sums: Sums
    origin: Vector
    curvature: Matrix
    products: Matrix
    batches: Vector


@dataclass(slots=True)
class _Totals:
    """Running sums of all replications; the first axis is that of replications."""

    c: Array
    s: Array
    b: Array
    a: Array
    g: Array
    u: Array
    gu: Array
    uu: Array
    gg: Array
    curvature: Array
    products: Array

    @classmethod
    def zero(cls, count: int) -> _Totals:
        vectors = [np.zeros((count, SIZE)) for _ in range(6)]
        return cls(*vectors, *(np.zeros((count, SIZE, SIZE)) for _ in range(5)))


def replications(
    setting: Setting, ends: tuple[int, ...], count: int, seed: int, kept: list[Array] | None = None
) -> dict[int, list[Replication]]:
    """Run replications, and return each of them at every end.

    Parameters
    ----------
    ends
        Numbers of records, multiples of `CHUNK`.
    kept
        Takes gradients, points and iterates of the first replication, in order, where given.
    """
    rng, last = np.random.default_rng(seed), max(ends)
    steps, burn_in = setting.steps.steps(1, last), setting.burn_in
    ring = np.zeros((setting.behind + setting.block + 1, count, SIZE))
    origin, total = np.zeros((count, SIZE)), _Totals.zero(count)
    edges = {end: edges_of(end - burn_in, setting.alpha) for end in ends}
    wanted = sorted({edge for some in edges.values() for edge in some})
    marks: dict[int, Array] = {}
    found: dict[int, list[Replication]] = {}
    for start in range(0, last, CHUNK):
        chunk = _walk(setting, ring, rng, steps, start)
        if kept is not None:
            kept.extend(part[:, 0] for part in chunk[:3])
        if start >= burn_in:
            sums = _add(total, chunk, origin, start - burn_in)
            for edge in wanted:
                if start < edge + burn_in <= start + CHUNK:
                    marks[edge] = sums[edge + burn_in - start - 1]
        elif start + CHUNK == burn_in:
            origin = chunk[2][-1].copy()
        if start + CHUNK in edges:
            end = start + CHUNK
            moved = float(steps[burn_in:end].sum())
            spread = _batch_means([marks[edge] for edge in edges[end]], edges[end])
            found[end] = _replications(total, origin, spread, end - burn_in, moved)
    return found


def edges_of(records: int, alpha: float) -> list[int]:
    """Return the ends of the batches of `batch_means`, the dropped one first."""
    m = math.floor(records**0.25)
    unit = records ** (1 - alpha) / (m + 1)
    ends = [math.floor(((k + 1) * unit) ** (1 / (1 - alpha))) for k in range(m + 1)]
    return [*ends[:-1], records]


def check(setting: Setting, records: int, seed: int) -> float:
    """Return the largest relative difference between a replication's sums and those of `SgdPath`.

    Points must not be late: a path of the package takes them as they come.
    """
    kept: list[Array] = []
    [ours] = replications(setting, (records,), 1, seed, kept)[records]
    path = SgdPath(Rule(setting.steps, setting.burn_in, np.zeros(SIZE)))
    gradients, points = np.concatenate(kept[0::3]), np.concatenate(kept[1::3])
    path.fold(gradients[:, None, :], points)
    pairs = zip(
        (*ours.sums.arrays, ours.origin), (*path.sums.arrays, path.origin), strict=True
    )  # fmt: skip
    return max(float(np.abs(a - b).max() / np.abs(b).max()) for a, b in pairs if b.size)


def _walk(
    setting: Setting, ring: Array, rng: np.random.Generator, steps: Vector, start: int
) -> tuple[Array, Array, Array, Array, Array]:
    """Move all replications over one chunk; return gradients, points, iterates, slopes, features.

    `ring` holds the newest iterates, that after j records at j modulo its length. All arrays have
    the shape (records, replications, d), slopes (records, replications) with the root of the
    weight in them, as in the features.
    """
    count = ring.shape[1]
    x = rng.normal(size=(CHUNK, count, SIZE))
    x[:, :, 0] = 1.0
    y = x @ TRUTH + rng.normal(0, DEVIATION, (CHUNK, count))
    weights = np.minimum(1.0, 2 / np.vecdot(x, x))
    weighted = x * weights[:, :, None]
    noise = np.zeros_like(x)
    if math.isfinite(setting.mu):
        noise = rng.normal(0, setting.noise, x.shape)
    points, path, slopes = np.empty_like(x), np.empty_like(x), np.empty_like(y)
    length, block, behind = len(ring), setting.block, setting.behind
    theta = ring[start % length].copy()
    for t in range(CHUNK):
        i = start + t
        points[t] = ring[max(block * (i // block) - behind, 0) % length]
        slope = np.minimum(np.maximum(np.vecdot(x[t], points[t]) - y[t], -BEND), BEND)
        noise[t] += weighted[t] * slope[:, None]
        theta = theta - steps[i] * noise[t]
        ring[(i + 1) % length] = path[t] = theta
        slopes[t] = slope
    roots = np.sqrt(weights)
    return noise, points, path, slopes * roots, x * roots[:, :, None]


def _add(
    total: _Totals, chunk: tuple[Array, Array, Array, Array, Array], origin: Array, before: int
) -> Array:
    """Add a chunk to the sums, and return C after each of its records."""
    gradients, points, path, slopes, rows = chunk
    c = total.c + np.cumsum(path - origin, axis=0)
    index = np.arange(before + 1, before + CHUNK + 1, dtype=np.float64)
    total.c = c[-1].copy()
    total.s += c.sum(axis=0)
    total.b += np.einsum("t,trd->rd", index, c)
    total.a += np.einsum("trd,trd->rd", c, c)
    total.g += gradients.sum(axis=0)
    total.u += points.sum(axis=0)
    g, u, x = (np.ascontiguousarray(part.transpose(1, 0, 2)) for part in (gradients, points, rows))
    total.gu += g.transpose(0, 2, 1) @ u
    total.uu += u.transpose(0, 2, 1) @ u
    total.gg += g.transpose(0, 2, 1) @ g
    # the slope carries the root of the weight, and is unbent where its unweighted form is inside
    size = np.ascontiguousarray(slopes.T)[:, :, None]
    root = x[:, :, :1]
    inside = np.abs(size) < BEND * root
    total.curvature += (x * inside).transpose(0, 2, 1) @ x
    exact = x * size
    total.products += exact.transpose(0, 2, 1) @ exact
    return c


def _batch_means(sums: list[Array], edges: list[int]) -> Array:
    """Return the diagonal of the covariance by batch means from C at the edges, shape (R, d)."""
    centre = (sums[-1] - sums[0]) / (edges[-1] - edges[0])
    spread = np.zeros_like(centre)
    for i in range(1, len(edges)):
        length = edges[i] - edges[i - 1]
        spread += length * ((sums[i] - sums[i - 1]) / length - centre) ** 2
    return spread / (len(edges) - 1)


def _replications(
    total: _Totals, origin: Array, spread: Array, records: int, moved: float
) -> list[Replication]:
    names = ("c", "s", "b", "a", "g", "u", "gu", "uu", "gg")
    return [
        Replication(
            sums=Sums(
                records, 0, moved, *(getattr(total, name)[i].copy() for name in names), np.zeros(0)
            ),
            origin=origin[i],
            curvature=total.curvature[i] / records,
            products=total.products[i] / records,
            batches=spread[i],
        )
        for i in range(len(origin))
    ]
