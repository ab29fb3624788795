"""Of which coefficients there is an interval: by direction, with the reason where there is none.

Intervals that read the path need it to have mixed: fifty relaxation times of each coefficient. The
plug-in with a released curvature moves the average to where the path would come to rest, and needs
that curvature instead. Both suppose that clients took their gradients where the loss is nearly
quadratic. Noise about the minimum bends the average of a curved loss: the plug-in takes that off,
and the others need it to be small.
Source: ldp-sgd for mixing, with thresholds from simulations; the rest is this project's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipeline.methods.ldp_sgd.client import GradientTask
from pipeline.methods.ldp_sgd.plug_in import PooledPlugIn
from pipeline.methods.ldp_sgd.state import SgdPath, Sums
from pipeline.methods.ldp_sgd.step_rule import MIXED
from pipeline.types import Matrix, Vector

#: Intervals need this many records for each coefficient behind the burn-in, noise or none.
RECORDS_PER_COEFFICIENT = 10
#: A standard error may be known to so much of itself.
LARGEST_ERROR = 0.25
#: Mean square of predictors about the minimum, over the square of the loss's scale, at most: what
#: is cut at both ends alike bends nothing.
LARGEST_CLOUD = {"linear": 0.5, "expectile": 0.25, "logistic": 0.25}
#: Of classes, that and the mean square by which chance moves the estimate, at most. Without the
#: latter streams come first whose estimates noise has drawn to their models.
LARGEST_BOTH = 0.45
#: Mean square distance of points from the minimum, over that of their average, at NEWTON steps.
WANDERING = 3.2
#: A bias by noise about the minimum may be this share of a standard error.
LARGEST_BEND = 0.5
#: Logistic averages grow by this share of the mean square of predictors about the minimum (fitted).
GROWTH = 0.25
#: Density of normal residuals at their middle, over their deviation, for bounds of 1.345 of those.
MIDDLE = 0.54


@dataclass(frozen=True, slots=True)
class Lack:
    """What coefficients lack.

    coefficients: Which of them, shape (d,).
    reason: Why, and what would help.
    """

    coefficients: NDArray[np.bool_]
    reason: str


def scale_of(task: GradientTask) -> float:
    """Return how far a predictor may be off before the loss stops being quadratic."""
    if task.classes:
        return 1.0
    return task.loss.slope_bound / task.loss.curvature_bound


def largest_cloud(task: GradientTask) -> float:
    """Return the largest mean square of predictors between clients' models and the estimate."""
    return LARGEST_CLOUD[task.study.estimator.loss] * scale_of(task) ** 2


def largest_distance(task: GradientTask) -> float:
    """Return how far models may be from the estimate with intervals, as `distance`."""
    return LARGEST_BOTH if task.classes else largest_cloud(task)


def wandering(task: GradientTask) -> float:
    """Return `distance` over the mean square error of the average, at NEWTON steps."""
    return WANDERING + 1 if task.classes else WANDERING


def relaxations(curvature: Matrix, matrix: Matrix | None, moved: float) -> Vector:
    """Return how many relaxation times of each coefficient steps of this sum are, shape (d,).

    That of a coefficient is the integrated one of theta_j: its variance of long averages over twice
    its stationary variance, with noise alike in all entries of gradients.

    curvature: A, positive definite, shape (d, d).
    matrix: P in front of the gradients, shape (d, d); None for the identity.
    """
    size = len(curvature)
    values, vectors = np.linalg.eigh(np.eye(size) if matrix is None else matrix)
    root = (vectors * np.sqrt(values)) @ vectors.T
    speeds, directions = np.linalg.eigh(root @ curvature @ root)
    noise = directions.T @ root @ root @ directions
    weights = directions.T @ root
    spread = noise / (speeds[:, None] + speeds[None, :])
    average = noise / np.outer(speeds, speeds)
    times: Vector = np.vecdot(weights.T @ average, weights.T) / (
        2 * np.vecdot(weights.T @ spread, weights.T)
    )
    return moved / times


def unmixed(task: GradientTask, paths: Sequence[SgdPath], parts: Sequence[Sums],
            regressed: PooledPlugIn) -> list[Vector]:  # fmt: skip
    """Return relaxation times of each coefficient, shape (d,), for each path or for a shared one.

    A direction whose regressed curvature had to be raised has none.
    """
    moved = [part.moved for part in parts]
    if task.partition_strategy != "pooled":
        moved = [sum(moved)]
    found = []
    for plug, path, steps in zip(regressed.paths, paths, moved, strict=False):
        times = relaxations(plug.curvature, path.matrix, steps)
        found.append(np.where(plug.floored, np.minimum(times, MIXED / 2), times))
    return found


def cloud(paths: Sequence[Sums], centre: Vector, curvature: Matrix) -> float:
    """Return the mean square of predictors between points and a centre, by the weights of A."""
    records = sum(sums.records for sums in paths)
    point = np.sum([sums.u for sums in paths], axis=0) / records
    square = np.sum([sums.uu for sums in paths], axis=0) / records
    about = square - np.outer(point, centre) - np.outer(centre, point) + np.outer(centre, centre)
    return float(np.trace(about @ curvature)) / float(curvature[0, 0])


def distance(
    task: GradientTask, paths: Sequence[Sums], centre: Vector, plug: PooledPlugIn
) -> float:
    """Return how far models are from the minimum: `cloud`, and of classes what chance adds to it.

    centre: Before its bend is taken off: one that is not small yet is known badly, and must not
        make models look near.
    """
    square = cloud(paths, centre, plug.paths[0].curvature)
    return square + plug.square if task.classes else square


def bend(task: GradientTask, square: float, coefficients: Vector, curvature: Matrix) -> Vector:
    """Return about how far, and which way, noise of this mean square bends an average, (d,)."""
    if task.classes:
        return GROWTH * square * coefficients
    found, tau = np.zeros(len(coefficients)), task.study.estimator.tau
    if task.study.estimator.loss == "expectile" and tau is not None:
        lean = (2 * tau - 1) * MIDDLE / 2
        found[0] = lean * square / (scale_of(task) * float(curvature[0, 0]))
    return found


def lacks_mixing(times: Vector, name: str, blocks: str) -> Lack:
    """Return which coefficients have not mixed, by their relaxation times, shape (d,)."""
    least = max(float(times.min()), 0.0)
    return Lack(
        times < MIXED,
        f"{name} is too short: {least:.0f} relaxation times of its slowest coefficient, and "
        f"intervals need {MIXED:.0f}{blocks}",
    )


def lacks_records(records: int, size: int) -> str:
    """Return why so few records behind the burn-in give no interval; "" if they are enough."""
    needed = RECORDS_PER_COEFFICIENT * size
    if records >= needed:
        return ""
    return f"intervals need {needed} records behind the burn-in; {records} have come"


def lacks_curvature(plug: PooledPlugIn, records: int) -> Lack:
    """Return of which coefficients the released curvature is not known well enough yet."""
    errors = plug.width_error
    bad = errors > LARGEST_ERROR
    worst = float(errors.max())
    missing = records * max((worst / LARGEST_ERROR) ** 2 - 1, 0.0)
    needed = f"about {_two_digits(missing)} more records, " if np.isfinite(worst) else ""
    return Lack(
        bad,
        "the noise still hides a part of the released curvature that it needs: "
        f"{needed or 'more records, '}a larger privacy.split.curvature or "
        "privacy.epsilon, or larger windows help",
    )


def lacks_nearness(square: float, task: GradientTask, plug: PooledPlugIn, records: int) -> Lack:
    """Return whether clients' models were too far from the estimate, for all coefficients.

    square: As `distance`.
    """
    most = largest_distance(task)
    # capped steps keep points near at first, however long the path is, and one path wanders less
    # than another: what is usual at such an error of the average is the better forecast
    usual = wandering(task) * plug.square
    missing = records * max(square / most - 1, usual / most - 1, 0.0)
    return Lack(
        np.full(len(plug.paths[0].curvature), square > most),
        "models are still too far from the estimate for its loss to be as curved as measured: "
        f"about {_two_digits(missing)} more records, a larger epsilon or fewer features help",
    )


def _two_digits(count: float) -> str:
    """Return a guess of a number without digits that it does not know, rounded up."""
    unit = 10.0 ** max(math.floor(math.log10(max(count, 1.0))) - 1, 0)
    return f"{math.ceil(count / unit) * unit:,.0f}"


def lacks_straightness(bent: Vector, errors: Vector) -> Lack:
    """Return which coefficients the noise about the minimum bends too much."""
    return Lack(
        np.abs(bent) > LARGEST_BEND * errors,
        "noise about the minimum of a curved loss bends the average by more than half a standard "
        'error: estimator.path.releases = "gradients+curvature", smaller steps '
        "(estimator.path.kappa) with more records, or a larger epsilon help",
    )
