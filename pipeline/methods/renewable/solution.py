"""The coefficients from the sums of the last epochs, and of how many of them they are best made.

theta = tbar - M^-1 (G / N + ridge R tbar) has two errors: the noise of G, which falls with the
releases, and what linearised scores leave out, which grows with the square of the distance of
their models. The first models of a stream are far off. So older epochs enter as long as that
makes the sum of both errors' squares smaller.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pipeline.linalg import sandwiches, solve_positive
from pipeline.methods.renewable.bread import Bread, bread_of
from pipeline.methods.renewable.precision import noise_of
from pipeline.methods.renewable.private_sums import (
    Moments,
    Weighed,
    curvature_of,
    distance_of,
    last_epochs,
    moments_of,
)
from pipeline.methods.renewable.task import RenewableTask
from pipeline.types import Matrix, Vector

#: No step moves the predictor of any record further: beyond, curvature says nothing any more.
LONGEST_STEP = 2.0
#: Releases at models so far away that predictors differ by this mean square move the estimate's by
#: half of it: the second order of a score, where the loss's curvature changes as fast as it is.
SECOND_ORDER = 0.5
#: The oldest epoch of three holds a seventh of their models or more: an error below this share of
#: the noise is not worth its loss.
WORTHWHILE = 1 / 7


@dataclass(frozen=True, slots=True)
class Solution:
    """Coefficients from the releases of some epochs.

    moments, bread: Of these releases.
    step: From their mean model to the coefficients, before it was shortened, shape (d,).
    coefficients: Shape (d,).
    turned: Variance of the summed score that the noise of the curvature makes, shape (d, d).
    noise: The same with that of the gradients' noise.
    bent: About how far linearised scores bend predictors.
    """

    moments: Moments
    bread: Bread
    step: Vector
    coefficients: Vector
    turned: Matrix
    noise: Matrix
    bent: float

    def noise_of_predictors(self) -> float:
        """Return the mean variance of predictors by noise, records weighed by their curvature."""
        [privacy] = sandwiches(self.moments.slots * self.bread.matrix, self.noise)
        curvature = self.bread.curvature
        return float(np.sum(privacy * curvature)) / (float(curvature[0, 0]) or 1.0)


def solve(task: RenewableTask, parts: Weighed) -> Solution:
    """Return the coefficients from those last epochs that leave the least error."""
    last = last_epochs(parts)
    best = _solved(task, parts, last)
    noise = best.noise_of_predictors()
    error = noise + best.bent**2
    if best.bent**2 <= WORTHWHILE * noise:
        return best
    for first in range(1, len(last)):
        found = _solved(task, parts, last[first:])
        own = found.noise_of_predictors() + found.bent**2
        if own < error:
            best, error = found, own
    return best


def shortened(task: RenewableTask, step: Vector) -> Vector:
    """Return a step of the coefficients as far as the longest one."""
    moved = task.norm_bound * float(np.linalg.norm(step))
    return step if moved <= LONGEST_STEP else step * (LONGEST_STEP / moved)


def _solved(task: RenewableTask, parts: Weighed, epochs: Sequence[int]) -> Solution:
    """Return the coefficients from the releases of these epochs."""
    noise, (curvature, releases) = noise_of(task), curvature_of(task, parts, epochs)
    bread, moments = (
        bread_of(curvature, releases, task.penalty, noise),
        moments_of(task, parts, epochs),
    )
    mean = moments.expansion / moments.slots
    score = moments.gradient / moments.slots + task.penalty * mean
    whole = solve_positive(bread.matrix, score)
    step = shortened(task, whole)
    turned = moments.slots**2 * _turned(noise.of_curvature(releases), step)
    distance = distance_of(moments, mean - step, bread.curvature)
    return Solution(
        moments=moments,
        bread=bread,
        step=whole,
        coefficients=mean - step,
        turned=turned,
        noise=moments.squares * noise.gradient**2 * np.eye(task.size) + turned,
        bent=SECOND_ORDER * task.loss.remainder * max(distance, 0.0),
    )


def _turned(size: float, step: Vector) -> Matrix:
    """Return the variance of E step, for noise E of a curvature with the spectral size `size`.

    Its diagonal has the variance v = size^2 / d, and what is beside it v / 2.
    """
    half = size**2 / len(step) / 2
    carried: Matrix = half * (float(step @ step) * np.eye(len(step)) + np.outer(step, step))
    return carried
