"""What a curved loss does to the plug-in, whose gradients were taken at models off the minimum.

With models u of mean m and covariance S, and the estimate c = m - A^-1 (mean gradient), A the mean
curvature at the models and T its derivative at the minimum, the minimum is to second order at

    c - A^-1 T[S - (m - c)(m - c)'] / 2

Scatter of the models bends the estimate away from the minimum, and a mean that is off it bends it
the other way: Newton's step from where a loss is more curved is too short. A itself is that at the
models, and not at the minimum. Source: this project's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np

from pipeline.methods.ldp_sgd import readiness
from pipeline.methods.ldp_sgd.plug_in import PlugIn, PooledPlugIn
from pipeline.methods.ldp_sgd.sums import Sums
from pipeline.methods.ldp_sgd.task import GradientTask
from pipeline.types import Matrix, Vector

#: Points at which a normal law of predictors is taken: beyond some ten nothing changes.
POINTS = 21
#: No record counts more or less at the estimate than at the models by more than so much.
FURTHEST = 16.0
#: Next to nothing.
LEAST = 1e-12


def straightened(
    task: GradientTask, paths: Sequence[Sequence[Sums]], plugs: Sequence[PlugIn]
) -> PooledPlugIn:
    """Return the plug-ins together, with what their bend is and the curvature at the estimate.

    paths: The sums of each path's logs. Plug-ins of a path's own average are as they were.
    """
    bends, found = [], []
    for logs, plug in zip(paths, plugs, strict=True):
        if plug.centre is None:
            return PooledPlugIn(tuple(plugs))
        bend = _bend(task, logs, plug, plug.centre)
        bends.append(bend)
        found.append(plug if not task.classes else _moved(task, logs, plug, plug.centre - bend))
    mean: Vector = np.average(bends, axis=0, weights=[plug.records for plug in plugs])
    return PooledPlugIn(tuple(found), mean)


def _moved(task: GradientTask, logs: Sequence[Sums], plug: PlugIn, estimate: Vector) -> PlugIn:
    """Return a plug-in whose covariance is by the curvature at the estimate."""
    there = _at(task, logs, plug, estimate)
    turn = np.linalg.solve(there, plug.curvature)
    return replace(plug, covariance=turn @ plug.covariance @ turn.T, there=there)


def _bend(task: GradientTask, logs: Sequence[Sums], plug: PlugIn, centre: Vector) -> Vector:
    """Return how far the models bend the centre of a path, shape (d,)."""
    square = readiness.cloud(logs, centre, plug.curvature)
    if task.classes:
        scatter = readiness.cloud(logs, mean_point(logs), plug.curvature)
        # the rest is the square of what the mean is off
        square = 2 * scatter - square
    # beyond what intervals allow the bend is no small correction, and not known
    most = readiness.largest_cloud(task)
    return readiness.bend(task, min(max(square, -most), most), centre, plug.curvature)


def mean_point(logs: Sequence[Sums]) -> Vector:
    """Return the mean of the points at which a path's gradients were taken, shape (d,)."""
    mean: Vector = np.sum([sums.u for sums in logs], axis=0) / sum(sums.records for sums in logs)
    return mean


def _at(task: GradientTask, logs: Sequence[Sums], plug: PlugIn, estimate: Vector) -> Matrix:
    """Return the curvature at the estimate, shape (d, d), from that at the models.

    The latter is one of squares of (1, x), and so has mean and covariance of the features, of
    records as they count in it. If those are normal, then predictors at both places are, and what
    records count at the other one is a function of these alone: x = mean + K (predictors) + a rest.
    """
    total, centre = float(plug.curvature[0, 0]), mean_point(logs)
    moments = plug.curvature / total
    mean, spread = moments[0], moments - np.outer(moments[0], moments[0])
    both = np.column_stack([estimate, centre])
    along = spread @ both
    values, axes = np.linalg.eigh(both.T @ along)
    used = values > LEAST * max(float(values[-1]), LEAST)
    # predictors by independent normal numbers, and the features that go with each
    root = axes[:, used] * np.sqrt(values[used])
    with_each = along @ axes[:, used] / np.sqrt(values[used])
    grid, mass = _normal(int(np.count_nonzero(used)))
    here, there = (both.T @ mean + grid @ root.T).T
    scatter = math.sqrt(max(readiness.cloud(logs, centre, plug.curvature), 0.0))
    nodes, weights = _normal(1)
    curved = _curved(task, there[:, None] + scatter * nodes[:, 0]) @ weights
    counts = np.clip(_curved(task, here) / curved, 1 / FURTHEST, FURTHEST) * mass
    moved = with_each @ (counts @ grid)
    squares = (grid.T * counts) @ grid - counts.sum() * np.eye(grid.shape[1])
    found: Matrix = total * (
        counts.sum() * moments + np.outer(mean, moved) + np.outer(moved, mean)
        + with_each @ squares @ with_each.T
    )  # fmt: skip
    return found


@lru_cache(maxsize=4)
def _normal(count: int) -> tuple[Matrix, Vector]:
    """Return points and masses of independent normal numbers, (n, count) and (n,)."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(POINTS)
    points, masses = np.zeros((1, 0)), np.ones(1)
    for _ in range(count):
        known = len(masses)
        points = np.column_stack([np.repeat(points, POINTS, axis=0), np.tile(nodes, known)])
        masses = np.repeat(masses, POINTS) * np.tile(weights / weights.sum(), known)
    return points, masses


def _curved(task: GradientTask, predictors: Matrix | Vector) -> Matrix | Vector:
    found: Matrix = task.loss.curvature(predictors, np.ones(predictors.shape))
    return np.maximum(found, LEAST)
