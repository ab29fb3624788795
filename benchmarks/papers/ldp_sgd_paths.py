"""Many replications of one path of paper ldp-sgd, and the intervals of each.

Records: an intercept and three standard normal features, weights min(1, 2 / |(1, x)|^2). The linear
ones are those of the paper's simulation, as far as its figures let it be recovered: coefficients of
one, normal errors of deviation 1/2, Huber's slope at 1.345 deviations.

Steps are eta0 i^-alpha from zero. Noise is Gaussian of a seeded generator, which protects nobody.
Each replication has the sums that a worker keeps, so that intervals come from the package's own
functions; `check` compares the sums with those of `SgdPath`. Averages begin after a burn-in.
Source: ldp-sgd, Table 1, path, batch means; late points are this project's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from benchmarks.limit_law import covariance, moments
from pipeline.losses import Linear
from pipeline.methods.ldp_sgd import plug_in
from pipeline.methods.ldp_sgd.intervals import random_scaling
from pipeline.methods.ldp_sgd.state import SgdPath, Sums
from pipeline.methods.ldp_sgd.step_rule import Rule, StepRule
from pipeline.types import Matrix, Vector

SIZE = 4
DEVIATION = 0.5
LOSS = Linear(1.345 * DEVIATION)
#: Where the mean weighted gradient vanishes: what the path goes to.
TRUTH = np.ones(SIZE)
#: Squared radius: the weight of a record is at most this over its squared length.
RADIUS = 2.0
#: Largest norms of a gradient (B) and of a record's curvature.
SLOPE, CURVATURE = math.sqrt(RADIUS) * LOSS.slope_bound, RADIUS * LOSS.curvature_bound
#: Decay of the steps.
ALPHA = 0.501
#: Most records of all replications that are drawn at once.
CHUNK = 500
LEVEL = 0.95
Array = NDArray[np.float64]


def draw(rng: np.random.Generator, shape: tuple[int, ...]) -> tuple[Array, Array]:
    """Draw records: rows (1, features) of shape (*shape, d), responses of `shape`."""
    x = rng.normal(size=(*shape, SIZE))
    x[..., 0] = 1.0
    return x, x @ TRUTH + rng.normal(0, DEVIATION, shape)


def weights_of(x: Array) -> Array:
    """Return Mallows weights of rows (1, features), without their last axis."""
    return np.minimum(1.0, RADIUS / np.vecdot(x, x))


@lru_cache(maxsize=8)
def limit(mu: float) -> Vector:
    """Return the standard errors of one record that the limit law gives, shape (d,).

    Those of an average of n records are these over the root of n. A million records stand for the
    population.
    """
    x, y = draw(np.random.default_rng(0), (10**6,))
    found = moments(LOSS, x, y, TRUTH, math.sqrt(RADIUS))
    return np.sqrt(np.diag(covariance(*found, 2 * SLOPE / mu, 1)))


@dataclass(frozen=True, slots=True)
class Setting:
    """One path: its privacy, its steps, and how late its points are.

    mu: Of one gradient; infinite for none.
    behind, block: D and k: record i uses the iterate after max(k floor((i - 1) / k) - D, 0)
        records.
    cap: Largest step.
    """

    mu: float
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
        return StepRule(1.0, ALPHA, self.cap)


@dataclass(frozen=True, slots=True)
class Chunk:
    """Some records of all replications: arrays (records, replications, d), `loss` without d.

    `loss` holds the slopes and curvatures of the records, and their weights.
    """

    gradients: Array
    points: Array
    path: Array
    rows: Array
    loss: tuple[Array, Array, Array]


class Walk:
    """All replications of a setting, moved over one chunk of records after the other."""

    def __init__(self, setting: Setting, count: int, seed: int, chunk: int) -> None:
        self.setting, self.records = setting, 0
        self._count, self._chunk, self._rng = count, chunk, np.random.default_rng(seed)
        # the newest iterates, that after j records at j modulo the length
        self._ring = np.zeros((setting.behind + setting.block + 1, count, SIZE))

    def advance(self) -> Chunk:
        """Move over one chunk."""
        setting, ring = self.setting, self._ring
        x, y = draw(self._rng, (self._chunk, self._count))
        weights = weights_of(x)
        weighted = x * weights[:, :, None]
        noise = np.zeros_like(x)
        if math.isfinite(setting.mu):
            noise = self._rng.normal(0, setting.noise, x.shape)
        points, path = np.empty_like(x), np.empty_like(x)
        length, block, behind, slope = len(ring), setting.block, setting.behind, LOSS.slope
        steps = setting.steps.steps(self.records + 1, self._chunk)
        theta = ring[self.records % length].copy()
        for t in range(self._chunk):
            i = self.records + t
            points[t] = ring[max(block * (i // block) - behind, 0) % length]
            noise[t] += weighted[t] * slope(np.vecdot(x[t], points[t]), y[t])[:, None]
            theta = theta - steps[t] * noise[t]
            ring[(i + 1) % length] = path[t] = theta
        self.records += self._chunk
        predictor = np.vecdot(x, points)
        loss = slope(predictor, y), LOSS.curvature(predictor, y), weights
        return Chunk(noise, points, path, x, loss)

    def move_to(self, theta: Array) -> None:
        """Go on from other iterates, shape (replications, d)."""
        self._ring[self.records % len(self._ring)] = theta


@dataclass(frozen=True, slots=True)
class Replication:
    """What one replication knows after some records.

    setting: What was replicated.
    sums, origin: As `SgdPath` keeps them.
    curvature, products: Mean exact curvature and mean product of exact gradients, shape (d, d):
        what plug-in intervals that release them would noise.
    batches: Diagonal of the limit covariance by batch means of the whole path, (d,): the spread of
        averages over floor(n^{1/4}) + 1 stretches of growing length, the first of which is dropped.
    """

    setting: Setting
    sums: Sums
    origin: Vector
    curvature: Matrix
    products: Matrix
    batches: Vector


#: Sums of `path.Sums` that are vectors, and matrices.
VECTORS, MATRICES = ("c", "s", "b", "a", "g", "u"), ("gu", "uu", "gg", "curvature", "products")


def replications(
    setting: Setting, ends: tuple[int, ...], count: int, seed: int, kept: list[Chunk] | None = None
) -> dict[int, list[Replication]]:
    """Run replications, and return each of them at every end.

    ends: Numbers of records.
    kept: Takes all chunks, in order, where given.
    """
    walk = Walk(setting, count, seed, math.gcd(CHUNK, setting.burn_in, *ends))
    origin = np.zeros((count, SIZE))
    total: dict[str, Array] = {name: np.zeros((count, SIZE)) for name in VECTORS}
    total |= {name: np.zeros((count, SIZE, SIZE)) for name in MATRICES}
    edges = {end: edges_of(end - setting.burn_in) for end in ends}
    marks: dict[int, Array] = {}
    found: dict[int, list[Replication]] = {}
    while walk.records < max(ends):
        before = walk.records - setting.burn_in
        chunk = walk.advance()
        if kept is not None:
            kept.append(chunk)
        done = walk.records - setting.burn_in
        if done == 0:
            origin = chunk.path[-1].copy()
        elif done > 0:
            c = total["c"] + np.cumsum(chunk.path - origin, axis=0)
            marks |= {e: c[e - before - 1] for some in edges.values() for e in some
                      if before < e <= done}  # fmt: skip
            _add(total, c, chunk, before)
        if walk.records in edges:
            some = edges[walk.records]
            spread = _batch_means([marks[edge] for edge in some], some)
            found[walk.records] = _replications(setting, total, origin, spread, done)
    return found


def edges_of(records: int) -> list[int]:
    """Return the ends of the batches of a path, the dropped one first.

    Source: Chen et al. 2020.
    """
    m = math.floor(records**0.25)
    unit = records ** (1 - ALPHA) / (m + 1)
    ends = [math.floor(((k + 1) * unit) ** (1 / (1 - ALPHA))) for k in range(m + 1)]
    return [*ends[:-1], records]


def check(setting: Setting, records: int, seed: int) -> float:
    """Return the largest relative difference between a replication's sums and those of `SgdPath`.

    Points must not be late: a path of the package takes them as they come.
    """
    kept: list[Chunk] = []
    [ours] = replications(setting, (records,), 1, seed, kept)[records]
    path = SgdPath(Rule(setting.steps, setting.burn_in, np.zeros(SIZE)))
    gradients = np.concatenate([chunk.gradients for chunk in kept])
    path.fold(gradients, np.concatenate([chunk.points[:, 0] for chunk in kept]))
    pairs = zip(
        (*ours.sums.arrays, ours.origin),
        (*path.sums.arrays, path.origin),
        strict=True,
    )
    return max(float(np.abs(a - b).max() / np.abs(b).max()) for a, b in pairs if b.size)


def _add(total: dict[str, Array], c: Array, chunk: Chunk, before: int) -> None:
    """Add a chunk, of which c holds the sums of C, (records, replications, d)."""
    index = np.arange(before + 1, before + len(c) + 1, dtype=np.float64)
    total["c"] = c[-1].copy()
    total["s"] += c.sum(axis=0)
    total["b"] += np.einsum("t,trd->rd", index, c)
    total["a"] += np.einsum("trd,trd->rd", c, c)
    total["g"] += chunk.gradients.sum(axis=0)
    total["u"] += chunk.points.sum(axis=0)
    g, u, x = (
        np.ascontiguousarray(part.transpose(1, 0, 2))
        for part in (chunk.gradients, chunk.points, chunk.rows)
    )
    slope, bend, weight = (np.ascontiguousarray(part.T)[:, :, None] for part in chunk.loss)
    exact = x * (weight * slope)
    for name, one, other in (
        ("gu", g, u), ("uu", u, u), ("gg", g, g), ("curvature", x * (weight * bend), x),
        ("products", exact, exact),
    ):  # fmt: skip
        total[name] += one.transpose(0, 2, 1) @ other


def _batch_means(sums: list[Array], edges: list[int]) -> Array:
    """Return the diagonal of the covariance by batch means from C at the edges, shape (R, d)."""
    centre = (sums[-1] - sums[0]) / (edges[-1] - edges[0])
    spread = np.zeros_like(centre)
    for i in range(1, len(edges)):
        length = edges[i] - edges[i - 1]
        spread += length * ((sums[i] - sums[i - 1]) / length - centre) ** 2
    return spread / (len(edges) - 1)


def _replications(
    setting: Setting, total: dict[str, Array], origin: Array, spread: Array, records: int
) -> list[Replication]:
    moved = float(setting.steps.steps(setting.burn_in + 1, records).sum())
    names = (*VECTORS, *MATRICES[:3])
    return [
        Replication(
            setting=setting,
            sums=Sums(records, 0, moved, *(total[name][i].copy() for name in names), np.zeros(0)),
            origin=origin[i],
            curvature=total["curvature"][i] / records,
            products=total["products"][i] / records,
            batches=spread[i],
        )
        for i in range(len(origin))
    ]


#: Estimates (d,), and half the length of their intervals at a level, (d,).
Interval = tuple[Vector, Callable[[float], Vector]]
Method = Callable[[Replication, np.random.Generator], Interval]


def intervals(
    method: Method, runs: Sequence[Replication], level: float = LEVEL
) -> tuple[Vector, Vector]:
    """Return for each replication the covered share in percent, and the mean length in 0.01."""
    rng = np.random.default_rng(5)
    cover, length = [], []
    for run in runs:
        mean, half = method(run, rng)
        reach = half(level)
        cover.append(100 * float(np.mean(np.abs(mean - TRUTH) <= reach)))
        length.append(100 * float(np.mean(2 * reach)))
    return np.array(cover), np.array(length)


def normal(errors: Vector, level: float) -> Vector:
    """Return half the length of normal intervals."""
    return float(ndtri((1 + level) / 2)) * errors


def scaling(run: Replication, _: np.random.Generator) -> Interval:
    found = random_scaling([(run.sums, run.origin)])
    return found.mean, found.half_width


def batches(run: Replication, _: np.random.Generator) -> Interval:
    """Return the intervals of batch means of the whole path."""
    return mean_of(run), partial(normal, np.sqrt(run.batches / run.sums.records))


def exact(run: Replication, _: np.random.Generator) -> Interval:
    """Return the intervals of the sandwich of exact means over the path, its noise added.

    With noise nobody has them: they show what is lost by the estimate of a curvature.
    """
    found = covariance(run.curvature, run.products, run.setting.noise, run.sums.records)
    return mean_of(run), partial(normal, np.sqrt(np.diag(found)))


def without(run: Replication, _: np.random.Generator) -> Interval:
    return _plugged(run, plug_in.without_release([run.sums]))


def released(mu: float, block: int = 1) -> Method:
    """Return PPI-1, with a curvature at mu in which each sum of `block` records has one noise.

    Two curvatures are at most sqrt 2 B_H apart in Frobenius' norm, which counts entries beside
    the diagonal twice: noise of sqrt 2 B_H / mu on it and B_H / mu beside it suffices.
    """

    def method(run: Replication, rng: np.random.Generator) -> Interval:
        records = run.sums.records
        unit = CURVATURE / mu / math.sqrt(records * block)
        bread = run.curvature + symmetric(rng, unit, math.sqrt(2) * unit)
        return _plugged(run, plug_in.plug_in(bread, run.sums.gg / records, records))

    return method


def published(others: float) -> Method:
    """Return the paper's PPI, with curvature and product released at mu = `others`.

    The means of the noised releases of all records have the noise of one over the root of n, of
    the paper's constant 2 in all entries.
    """

    def method(run: Replication, rng: np.random.Generator) -> Interval:
        records = run.sums.records
        unit = 2 / others / math.sqrt(records)
        bread = run.curvature + symmetric(rng, unit * CURVATURE)
        products = run.products + symmetric(rng, unit * SLOPE**2)
        middle = plug_in.published_middle(products, run.setting.noise**2)
        return _plugged(run, plug_in.plug_in(bread, middle, records))

    return method


def symmetric(rng: np.random.Generator, beside: float, diagonal: float | None = None) -> Matrix:
    """Return a symmetric matrix of noise, by default of one deviation on and off the diagonal."""
    upper = np.triu(rng.normal(0, beside, (SIZE, SIZE)), 1)
    on = rng.normal(0, beside if diagonal is None else diagonal, SIZE)
    return upper + upper.T + np.diag(on)


def mean_of(run: Replication) -> Vector:
    return run.origin + run.sums.c / run.sums.records


def _plugged(run: Replication, found: plug_in.PlugIn) -> Interval:
    return mean_of(run), partial(normal, plug_in.standard_errors(found))
