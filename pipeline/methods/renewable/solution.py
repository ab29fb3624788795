"""The coefficients from the sums of the newest epochs, and of how many of them they are best made.

theta = tbar - M^-1 (G / N + ridge R tbar - k C / 2), where C is the mean of (H - Abar) (t - tbar):
a score between t and theta follows the mean of the curvatures at both ends, and Abar stands for
that at theta; k is the share of C that is not noise. It has two errors: chance in G, which falls
with the releases, and what is left out, which grows with the square of the distance of their
models. The first models of a stream are far off. So older epochs enter as long as both errors
together become smaller, the oldest of them with a part of its weight if that is best.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np

from pipeline.linalg import sandwiches, solve_positive
from pipeline.methods.renewable.bread import Bread, bread_of
from pipeline.methods.renewable.precision import noise_of, releases_needed
from pipeline.methods.renewable.private_state import Shape
from pipeline.methods.renewable.private_sums import (
    Moments,
    Sums,
    Weighed,
    between_releases,
    curvature_of,
    moments_of,
    newest_epochs,
    spread_about,
)
from pipeline.methods.renewable.task import RenewableTask
from pipeline.types import Matrix, Vector

#: No step moves the predictor of any record further: beyond, curvature says nothing any more.
LONGEST_STEP = 2.0
#: Releases at models so far away that predictors differ by this mean square move the estimate's by
#: half of it: the second order of a score, where the loss's curvature changes as fast as it is.
SECOND_ORDER = 0.5
#: It counts so many times as much as chance: intervals know chance and not the bend.
CAUTION = 2.0
#: Share of the curvature at a release's own model in the one that its score follows.
TRAPEZOID = 0.5
#: Coefficients that are so many standard errors from the mean model of their releases still move.
MOVING = 5.0
#: A step that may be too short by the share s of itself is on its way still where s z^2 is more,
#: with z its standard errors. Chance alone makes it as long in one of seventy, where s is 1.
SHORT = 6.0
#: So many of the newest epochs say how much releases differ by chance: most of all releases.
SPREAD = 3
#: Weights of the oldest epoch that are tried. With half of it chance falls by three quarters or
#: more of what it falls by with the whole, and the mean model is at most two thirds as far away.
SHARES = (1.0, 0.5, 0.25, 0.125)


@dataclass(frozen=True, slots=True)
class Solution:
    """Coefficients from the releases of some epochs.

    moments, bread: Of these releases.
    step: From their mean model to the coefficients, before it was shortened, shape (d,).
    missing: How far the coefficients may be from where the step leads, shape (d,): what was cut
        off it, and what it is too short with more curvature than is certain.
    coefficients: Shape (d,).
    unlike: What was taken off the mean score, shape (d,).
    turned: Variance of the summed score that the noise of the curvature makes, shape (d, d).
    noise: The same with that of the gradients' noise.
    bent: About how far linearised scores bend predictors.
    """

    moments: Moments
    bread: Bread
    step: Vector
    missing: Vector
    coefficients: Vector
    unlike: Vector
    turned: Matrix
    noise: Matrix
    bent: float

    @property
    def spread(self) -> Matrix:
        """Variance of a release's score, shape (d, d): its noise alone while releases are few."""
        moments = self.moments
        if moments.releases < releases_needed(len(self.step)):
            return (self.noise - self.turned) / moments.squares
        return between_releases(moments, self.bread.curvature) / moments.squares

    def variance(self, spread: Matrix) -> Matrix:
        """Return the variance of the coefficients where that of a release's score is `spread`."""
        moments = self.moments
        meat = moments.squares * spread + self.turned
        [covariance] = sandwiches(moments.slots * self.bread.matrix, meat)
        return covariance

    def error(self, variance: Matrix) -> float:
        """Return the mean square error of predictors, records weighed by their curvature."""
        chance = float(np.sum(variance * self.bread.curvature)) / _scale(self.bread)
        return chance + CAUTION**2 * self.bent**2

    @property
    def is_near(self) -> bool:
        """Whether the way from the mean model is known, and short for the noise in it."""
        [least] = sandwiches(self.moments.slots * self.bread.matrix, self.noise)
        return not self.bread.hidden and not self.is_moving(np.diag(least))

    def is_moving(self, variances: Vector) -> bool:
        """Whether the coefficients are on their way still, for their errors.

        They are far from the models of these releases; or those that are known may be far from
        where the releases lead.
        """
        # sums that somebody forged may leave a variance below 0: nothing is near for that
        known = np.maximum(variances, 0.0)
        far = self.step**2 > MOVING**2 * known
        short = (self.step * self.missing > SHORT * known) & ~self.bread.unknown
        return bool(np.any(far | short))


def solve(task: RenewableTask, parts: Weighed) -> Solution:
    """Return the coefficients from as many of the newest epochs as make the error smaller."""
    shape, newest = parts[0][1].shape, list(newest_epochs(parts))
    whole = [_solved(task, shape, epochs.sums()) for epochs in newest[:SPREAD]]
    spread = whole[-1].spread
    best, error, moves = whole[0], math.inf, True
    for place, epochs in enumerate(newest):
        before = best.moments.releases
        for share in SHARES:
            known = share == 1.0 and place < len(whole)
            found = whole[place] if known else _solved(task, shape, epochs.sums(share))
            variance = found.variance(spread)
            own, moving = found.error(variance), found.is_moving(np.diag(variance))
            # older releases weigh no more than newer ones, unless one of them was forged
            if own <= error and (moves or not moving) and found.moments.releases >= before:
                best, error, moves = found, own, moving
                if share == 1.0:
                    break
        else:
            break
    return best


def shortened(task: RenewableTask, step: Vector) -> Vector:
    """Return a step of the coefficients as far as the longest one."""
    moved = task.norm_bound * float(np.linalg.norm(step))
    return step if moved <= LONGEST_STEP else step * (LONGEST_STEP / moved)


def solve_over(task: RenewableTask, parts: Weighed, epochs: int) -> Solution:
    """Return the coefficients from the releases of so many of the newest epochs, >= 1."""
    *_, found = islice(newest_epochs(parts), epochs)
    return _solved(task, parts[0][1].shape, found.sums())


def _solved(task: RenewableTask, shape: Shape, sums: Sums) -> Solution:
    noise, moments = noise_of(task), moments_of(task, shape, sums)
    mean = moments.expansion / moments.slots
    found = curvature_of(task, shape, sums, mean)
    bread = bread_of(found.mean, found.releases, task.penalty, noise)
    half, size = TRAPEZOID * found.unlike, noise.of_curvature(found.releases)
    chance = _turned(size, TRAPEZOID**2 * spread_about(moments, mean))
    moved, beyond = _moved(bread, half, chance)
    # of a known share, what is taken off has as much chance and bias together as that of its noise
    known = beyond / moved if moved else 0.0
    score = moments.gradient / moments.slots + task.penalty * mean - known * half
    whole = solve_positive(bread.matrix, score)
    step = shortened(task, whole)
    turned = moments.slots**2 * (_turned(size, np.outer(step, step)) + known * chance)
    solution = Solution(
        moments=moments,
        bread=bread,
        step=whole,
        missing=bread.longest(whole) - step,
        coefficients=mean - step,
        unlike=known * half,
        turned=turned,
        noise=moments.squares * noise.gradient**2 * np.eye(task.size) + turned,
        bent=0.0,
    )
    # the scatter of the models is taken off, so that the way from their mean alone bends a score;
    # a long one does so in higher orders, too, and one that is hidden is not known
    way = np.outer(step, step) if solution.is_near else spread_about(moments, mean - step)
    distance = max(float(np.sum(bread.curvature * way)), 0.0) / _scale(bread)
    left = 0.0 if bread.hidden else math.sqrt(beyond / _scale(bread))
    return replace(solution, bent=SECOND_ORDER * task.loss.remainder * distance + left)


def _moved(bread: Bread, score: Vector, chance: Matrix) -> tuple[float, float]:
    """Return how far a score moves predictors, and what of it is beyond its variance by chance.

    Both are squares, weighed by curvature and so not yet over `_scale`, >= 0.

    Half of how curvature goes with the models is taken off, and as much may be left: all of it is
    one of the first order where clients differ, and half where curvature follows the model.
    """
    shift = solve_positive(bread.matrix, score)
    [by_chance] = sandwiches(bread.matrix, chance)
    moved = float(shift @ bread.curvature @ shift)
    return moved, max(moved - float(np.sum(by_chance * bread.curvature)), 0.0)


def _turned(size: float, spread: Matrix) -> Matrix:
    """Return the variance of E x, for noise E of a curvature with the spectral size `size`.

    spread: x x', or its mean where each of the curvatures is turned by an x of its own.

    The diagonal of E has the variance v = size^2 / d, and what is beside it v / 2.
    """
    half = size**2 / len(spread) / 2
    carried: Matrix = half * (float(np.trace(spread)) * np.eye(len(spread)) + spread)
    return carried


def _scale(bread: Bread) -> float:
    """Return the mean curvature of a record, which weighs its predictor."""
    return float(bread.curvature[0, 0]) or 1.0
