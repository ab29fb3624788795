"""Intervals of a path, by method, and what each one needs and costs.

Plug-in intervals are sandwiches of what was released. Their gradients were taken at models off the
minimum, which matters where a loss is curved. With models u of mean m and covariance S, and the
estimate c = m - A^-1 (mean gradient), A the mean curvature at the models and T its derivative at
the minimum, the minimum is to second order at

    c - A^-1 T[S - (m - c)(m - c)'] / 2

Scatter of the models bends the estimate away from the minimum, and a mean that is off it bends it
the other way: Newton's step from where a loss is more curved is too short. A itself is that at the
models, and not at the minimum. Source: this project's.

Random scaling reads the path's own wandering, without any estimate of curvature.
V = n^-2 sum_s s^2 (thetabar_s - thetabar_n)(.)' over the n records after the burn-in; the interval
is thetabar +- q sqrt(V_jj / n). Several paths are pooled with their shares of the records as
weights. Logs of one shared path are copies of the same pivot: the mean of their V_jj / n goes with
the critical value of one path.

Critical values q are exact at any level, for one path or several pooled. The pivot is
W(1) / sqrt(int (W(r) - r W(1))^2 dr) of a Brownian motion W. By Craig's formula its two-sided tail
is (2 / pi) int_0^{pi/2} prod_p sqrt(z_p / sinh z_p) dphi with z_p = q sqrt(w_p) / cos phi, one
factor for each path of weight w_p: paths are independent, so that the Laplace transforms of their
denominators multiply.
Source: ldp-sgd, random scaling; several paths are this project's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial

import numpy as np
from scipy.special import ndtri

from pipeline.errors import ConfigError, NumericError
from pipeline.methods.ldp_sgd import plug_in, readiness
from pipeline.methods.ldp_sgd.client import GradientTask
from pipeline.methods.ldp_sgd.plug_in import PlugIn, PooledPlugIn
from pipeline.methods.ldp_sgd.spec import INTERVALS
from pipeline.methods.ldp_sgd.state import Sums
from pipeline.methods.ldp_sgd.step_rule import scaling_of
from pipeline.privacy.guarantee import PUBLISHED
from pipeline.types import Matrix, Vector

#: Half the length of the intervals at a level, shape (d,).
HalfWidth = Callable[[float], Vector]


def plug_ins(task: GradientTask, parts: Sequence[Sums]) -> dict[str, PooledPlugIn]:
    """Return the plug-in estimates by the names of their intervals, without those that fail yet.

    One that fails for one of several pooled paths fails for all.

    parts: The sums of each path, or of each log of a shared one, after its burn-in.
    """
    made: dict[str, Callable[[Sequence[Sums]], PlugIn]] = {"plug-in": plug_in.without_release}
    scaling = scaling_of(task)
    if scaling is not None:
        made["plug-in-curvature"] = lambda logs: plug_in.with_curvature(logs, scaling)
    if scaling is not None and "products" in task.shares:
        noise = gradient_noise(task) ** 2
        made["plug-in-products"] = lambda logs: plug_in.moved(
            logs, plug_in.published_middle(plug_in.released_mean(logs, 1), noise), scaling
        )
    paths = [[part] for part in parts] if task.partition_strategy == "pooled" else [parts]
    found = {}
    for name, make in made.items():
        try:
            each = tuple(make(logs) for logs in paths)
        except NumericError:
            continue
        found[name] = straightened(task, paths, each)
    return found


def gradient_noise(task: GradientTask) -> float:
    """Return the standard deviation of the noise of one gradient entry; 0 without noise."""
    return task.channels.gradient.standard_deviation if task.study.noised else 0.0


def half_widths(scaling: RandomScaling, plugs: Mapping[str, PooledPlugIn]) -> dict[str, HalfWidth]:
    """Return half the lengths of all intervals by method.

    A plug-in whose regressed curvature has directions below their noise gives none.
    """
    found: dict[str, HalfWidth] = {"random-scaling": scaling.half_width}
    for name, plug in plugs.items():
        # where a curvature is released, its width says what may be shown
        if not plug.floored or plug.centre is not None:
            found[name] = partial(_normal, plug_in.standard_errors(plug))
    return found


def needs(task: GradientTask, method: str) -> str:
    """Say what an interval of a study of single records needs, and what it costs."""
    used = INTERVALS[method].split("+")
    said = f"reads {_and(used)}"
    if not task.study.noised:
        return f"{said}; nothing is noised"
    if len(used) == 1:
        return f"{said}; costs nothing beyond gradients"
    unit = "mu" if task.budget.mechanism.order == 2 else "epsilon"
    each = _and([f"{task.budget.allocation[name]:.3g}" for name in used])
    said += f", which cost {unit} {each} of a record's {task.budget.per_record:.3g}"
    return f"{said}; {PUBLISHED}" if "products" in used else said


def _and(names: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def _normal(errors: Vector, level: float) -> Vector:
    """Return half the length of normal intervals."""
    return float(ndtri((1 + level) / 2)) * errors


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
    grid, mass = _quadrature(int(np.count_nonzero(used)))
    here, there = (both.T @ mean + grid @ root.T).T
    scatter = math.sqrt(max(readiness.cloud(logs, centre, plug.curvature), 0.0))
    nodes, weights = _quadrature(1)
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
def _quadrature(count: int) -> tuple[Matrix, Vector]:
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


def critical_value(level: float, weights: tuple[float, ...] = (1.0,)) -> float:
    """Return q of the two-sided interval estimate +- q sqrt(V / n) at `level`.

    level: In (0, 1).
    weights: Shares of the records of each path, > 0; they are scaled to sum to one.

    Raises ConfigError if the level or a weight is out of range.
    """
    if not 0 < level < 1:
        raise ConfigError("estimator.level must lie in (0, 1), for example 0.95")
    if not weights or not all(0 < weight < math.inf for weight in weights):
        raise ConfigError("weights of paths must be positive numbers")
    total = math.fsum(weights)
    # equal sets of weights share one search
    return _solved(level, tuple(sorted(weight / total for weight in weights)))


def tail(q: float, weights: tuple[float, ...] = (1.0,)) -> float:
    """Return P(|pivot| > q) for q >= 0; the weights sum to one."""
    # half a second to import, and a worker that restarts folds long before it needs an interval
    from scipy.integrate import quad  # noqa: PLC0415

    roots = np.sqrt(np.array(weights))

    def integrand(angle: float) -> float:
        return math.exp(0.5 * float(np.sum(_log_ratio(q * roots / math.cos(angle)))))

    # the integrand vanishes with all its derivatives at the right end
    found, _ = quad(integrand, 0.0, math.pi / 2 * (1 - 1e-12), epsabs=1e-13, epsrel=1e-12)
    return float(2 / math.pi * found)


@lru_cache(maxsize=256)
def _solved(level: float, weights: tuple[float, ...]) -> float:
    from scipy.optimize import brentq  # noqa: PLC0415  as in `tail`

    def excess(q: float) -> float:
        return tail(q, weights) - (1 - level)

    end = 8.0
    while excess(end) > 0:
        end *= 2
    return float(brentq(excess, 0.0, end, xtol=1e-12, rtol=1e-14))


def _log_ratio(z: Vector) -> Vector:
    """Return log(z / sinh z), shape of z, also where sinh overflows or z is tiny."""
    small = z < 1e-4
    safe = np.where(small, 1.0, z)
    ratio = np.log(safe) - (safe + np.log1p(-np.exp(-2 * safe)) - math.log(2.0))
    return np.where(small, -z * z / 6, ratio)


@dataclass(frozen=True, slots=True)
class RandomScaling:
    """A pooled average with the scale of its intervals.

    mean: The average iterate, shape (d,).
    scale: sqrt(V_jj / n), shape (d,).
    weights: Shares of the paths, which sum to one; one share for a shared path.
    """

    mean: Vector
    scale: Vector
    weights: tuple[float, ...]

    def half_width(self, level: float) -> Vector:
        """Return half the length of the intervals at `level`, shape (d,)."""
        return critical_value(level, self.weights) * self.scale


def random_scaling(paths: Sequence[tuple[Sums, Vector]], *, shared: bool = False) -> RandomScaling:
    """Return the average of some paths and its scale.

    paths: For each path its sums after the burn-in, and their origin m, shape (d,).
    shared: Whether they are logs of one path.

    Raises NumericError if no path has a record after its burn-in.
    """
    used = [(sums, origin) for sums, origin in paths if sums.records]
    if not used:
        raise NumericError(
            "no record has come after the burn-in, so there is nothing to average yet: "
            "more records are needed"
        )
    total = sum(sums.records for sums, _ in used)
    weights = tuple(sums.records / total for sums, _ in used)
    mean = np.zeros(len(used[0][1]))
    for weight, (sums, origin) in zip(weights, used, strict=True):
        mean = mean + weight * (origin + sums.c / sums.records)
    spread = pooled([(sums, variance(sums)) for sums, _ in used], shared=shared)
    return RandomScaling(mean, np.sqrt(spread), (1.0,) if shared else weights)


def pooled(variances: Sequence[tuple[Sums, Vector]], *, shared: bool) -> Vector:
    """Return the variance of the pooled average, shape (d,), from limit variances of its parts.

    Averages of n_p records of paths of their own have variance V_p / n_p and are independent; of
    one shared path each of them is the whole.
    """
    total = sum(sums.records for sums, _ in variances)
    found = np.zeros(len(variances[0][1]))
    for sums, value in variances:
        found = found + sums.records / total * value / (sums.records if shared else total)
    return found


def variance(sums: Sums) -> Vector:
    """Return the diagonal of V, shape (d,), never below zero."""
    count = sums.records
    centre = sums.c / count
    squares = count * (count + 1) * (2 * count + 1) // 6
    diagonal = np.diag(sums.a) if sums.a.ndim == 2 else sums.a
    found: Vector = (diagonal - 2 * sums.b * centre + squares * centre * centre) / count**2
    return np.maximum(found, 0.0)


def contrast(sums: Sums, direction: Vector) -> tuple[float, float]:
    """Return direction' (thetabar - m) and its scale, for a path that keeps the whole matrix A.

    Raises NumericError if the path keeps the diagonal alone.
    """
    if sums.a.ndim != 2:
        raise NumericError("contrasts need the whole matrix: set estimator.path.full = true")
    count = sums.records
    centre = float(direction @ sums.c) / count
    squares = count * (count + 1) * (2 * count + 1) // 6
    inner = float(direction @ sums.a @ direction) - 2 * float(direction @ sums.b) * centre
    value = max((inner + squares * centre * centre) / count**2, 0.0)
    return centre, math.sqrt(value / count)
