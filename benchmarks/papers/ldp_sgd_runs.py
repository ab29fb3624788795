"""Many replications of one path, each with the sums that a worker keeps.

So their intervals come from the package's own functions; `check` compares the sums with those of
`SgdPath`. Averages begin after a burn-in. Source: ldp-sgd, path; batch means.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from benchmarks.papers.ldp_sgd_batches import OnlineBatches
from benchmarks.papers.ldp_sgd_models import SIZE, Array
from benchmarks.papers.ldp_sgd_walk import CHUNK, Chunk, Setting, Walk
from pipeline.methods.ldp_sgd.path import SgdPath, Sums
from pipeline.methods.ldp_sgd.step_rule import Rule
from pipeline.types import Matrix, Vector


@dataclass(frozen=True, slots=True)
class Replication:
    """What one replication knows after some records.

    Attributes
    ----------
    setting
        What was replicated.
    sums, origin
        As `SgdPath` keeps them.
    curvature, products
        Mean exact curvature and mean product of exact gradients, shape (d, d): what plug-in
        intervals that release them would noise.
    batches, online
        Diagonal of the limit covariance by batch means of the whole path, and by online ones, (d,).
    """

    setting: Setting
    sums: Sums
    origin: Vector
    curvature: Matrix
    products: Matrix
    batches: Vector
    online: Vector


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
    setting: Setting, ends: tuple[int, ...], count: int, seed: int, kept: list[Chunk] | None = None
) -> dict[int, list[Replication]]:
    """Run replications, and return each of them at every end.

    Parameters
    ----------
    ends
        Numbers of records.
    kept
        Takes all chunks, in order, where given.
    """
    walk = Walk(setting, count, seed, math.gcd(CHUNK, setting.burn_in, *ends))
    origin, total = np.zeros((count, SIZE)), _Totals.zero(count)
    online = OnlineBatches.before(_flat(0, total), setting.alpha)
    edges = {end: edges_of(end - setting.burn_in, setting.alpha) for end in ends}
    wanted = {edge for some in edges.values() for edge in some}
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
            c = total.c + np.cumsum(chunk.path - origin, axis=0)
            for release, number in online.ends(before, len(c), 1):
                part = _with(total, c[: release + 1], before)
                online = online.closed(_flat(before + release + 1, part), number)
            marks.update({e: c[e - before - 1] for e in wanted if before < e <= done})
            total = _with(total, c, before)
            _add(total, chunk)
        if walk.records in edges:
            some = edges[walk.records]
            spreads = (
                _batch_means([marks[edge] for edge in some], some),
                online.variance(_flat(done, total)).reshape(count, SIZE),
            )
            found[walk.records] = _replications(setting, total, origin, spreads, done)
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


def _with(total: _Totals, c: Array, before: int) -> _Totals:
    """Return the totals with the sums of C, (records, replications, d), brought up to its end."""
    index = np.arange(before + 1, before + len(c) + 1, dtype=np.float64)
    return replace(
        total,
        c=c[-1].copy(),
        s=total.s + c.sum(axis=0),
        b=total.b + np.einsum("t,trd->rd", index, c),
        a=total.a + np.einsum("trd,trd->rd", c, c),
    )


def _add(total: _Totals, chunk: Chunk) -> None:
    """Add products of gradients, points and rows."""
    total.g += chunk.gradients.sum(axis=0)
    total.u += chunk.points.sum(axis=0)
    g, u, x = (
        np.ascontiguousarray(part.transpose(1, 0, 2))
        for part in (chunk.gradients, chunk.points, chunk.rows)
    )
    slope, curvature_weight, weight = (
        np.ascontiguousarray(part.T)[:, :, None] for part in chunk.loss
    )
    total.gu += g.transpose(0, 2, 1) @ u
    total.uu += u.transpose(0, 2, 1) @ u
    total.gg += g.transpose(0, 2, 1) @ g
    total.curvature += (x * (weight * curvature_weight)).transpose(0, 2, 1) @ x
    exact = x * (weight * slope)
    total.products += exact.transpose(0, 2, 1) @ exact


def _flat(records: int, total: _Totals) -> Sums:
    """Return the sums of all replications as those of one path with R d coefficients.

    Batch means take one coefficient at a time, and need no sums of gradients.
    """
    flat = (part.ravel() for part in (total.c, total.s, total.b, total.a))
    return Sums(records, 0, 0.0, *flat, *(np.zeros(0) for _ in range(6)))


def _batch_means(sums: list[Array], edges: list[int]) -> Array:
    """Return the diagonal of the covariance by batch means from C at the edges, shape (R, d)."""
    centre = (sums[-1] - sums[0]) / (edges[-1] - edges[0])
    spread = np.zeros_like(centre)
    for i in range(1, len(edges)):
        length = edges[i] - edges[i - 1]
        spread += length * ((sums[i] - sums[i - 1]) / length - centre) ** 2
    return spread / (len(edges) - 1)


def _replications(
    setting: Setting, total: _Totals, origin: Array, spreads: tuple[Array, Array], records: int
) -> list[Replication]:
    names = ("c", "s", "b", "a", "g", "u", "gu", "uu", "gg")
    moved = float(setting.steps.steps(setting.burn_in + 1, records).sum())
    return [
        Replication(
            setting=setting,
            sums=Sums(
                records, 0, moved, *(getattr(total, name)[i].copy() for name in names), np.zeros(0)
            ),
            origin=origin[i],
            curvature=total.curvature[i] / records,
            products=total.products[i] / records,
            batches=spreads[0][i],
            online=spreads[1][i],
        )
        for i in range(len(origin))
    ]
