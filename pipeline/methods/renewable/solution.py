"""The coefficients from the sums of the newest epochs, and of how many of them they are best made.

theta = tbar - M^-1 (G / N + ridge R tbar) has two errors: chance in G, which falls with the
releases, and what linearised scores leave out, which grows with the square of the distance of
their models. The first models of a stream are far off. So older epochs enter as long as both
errors together become smaller.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, islice

import numpy as np

from pipeline.linalg import sandwiches, solve_positive
from pipeline.methods.renewable.bread import Bread, bread_of
from pipeline.methods.renewable.precision import Noise, noise_of, releases_needed
from pipeline.methods.renewable.private_state import Shape
from pipeline.methods.renewable.private_sums import (
    Moments,
    Sums,
    Weighed,
    between_releases,
    curvature_of,
    distance_of,
    moments_of,
    sums_of_newest,
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
#: Coefficients that are so many standard errors from the mean model of their releases still move.
MOVING = 5.0
#: So many of the newest epochs say how much releases differ by chance: most of all releases.
SPREAD = 3


@dataclass(frozen=True, slots=True)
class Epoch:
    """What one epoch alone adds: its slots, releases, n t, and its noisy curvature summed."""

    slots: float
    releases: float
    expansion: Vector
    curvature: Matrix


@dataclass(frozen=True, slots=True)
class Solution:
    """Coefficients from the releases of some epochs.

    moments, bread: Of these releases.
    step: From their mean model to the coefficients, before it was shortened, shape (d,).
    coefficients: Shape (d,).
    turned: Variance of the summed score that the noise of the curvature makes, shape (d, d).
    noise: The same with that of the gradients' noise.
    bent: About how far linearised scores bend predictors.
    epochs: The epochs of these releases, newest first; none where releases are weighed by age.
    """

    moments: Moments
    bread: Bread
    step: Vector
    coefficients: Vector
    turned: Matrix
    noise: Matrix
    bent: float
    epochs: tuple[Epoch, ...]

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
        return chance + (CAUTION * self.bent) ** 2

    def is_moving(self, variances: Vector) -> bool:
        """Whether the coefficients are far from the models of these releases, for their errors."""
        return bool(np.any(np.abs(self.step) > MOVING * np.sqrt(variances)))


def solve(task: RenewableTask, parts: Weighed) -> Solution:
    """Return the coefficients from as many of the newest epochs as make the error smaller."""
    solutions = _solutions(task, parts)
    solved = list(islice(solutions, SPREAD))
    most, best, error, moves = solved[-1], None, math.inf, True
    for found in chain(solved, solutions):
        variance = found.variance(most.spread)
        own, moving = found.error(variance), found.is_moving(np.diag(variance))
        if best is not None and (own >= error or (moving and not moves)):
            break
        # older releases weigh no more than newer ones, unless one of them was forged
        if best is not None and found.moments.releases < best.moments.releases:
            break
        best, error, moves = found, own, moving
    return best or most


def shortened(task: RenewableTask, step: Vector) -> Vector:
    """Return a step of the coefficients as far as the longest one."""
    moved = task.norm_bound * float(np.linalg.norm(step))
    return step if moved <= LONGEST_STEP else step * (LONGEST_STEP / moved)


def solve_over(task: RenewableTask, parts: Weighed, epochs: int) -> Solution:
    """Return the coefficients from the releases of so many of the newest epochs, >= 1."""
    *_, found = islice(_solutions(task, parts), epochs)
    return found


def _solutions(task: RenewableTask, parts: Weighed) -> Iterator[Solution]:
    """Yield what the newest epoch says, the two newest, and so on."""
    epochs: tuple[Epoch, ...] = ()
    for sums in sums_of_newest(parts):
        found = _solved(task, parts[0][1].shape, sums, epochs)
        epochs = found.epochs
        yield found


def _solved(task: RenewableTask, shape: Shape, sums: Sums, newer: tuple[Epoch, ...]) -> Solution:
    noise, moments = noise_of(task), moments_of(task, shape, sums)
    curvature, releases = curvature_of(task, shape, sums)
    bread = bread_of(curvature, releases, task.penalty, noise)
    mean = moments.expansion / moments.slots
    score = moments.gradient / moments.slots + task.penalty * mean
    whole = solve_positive(bread.matrix, score)
    step = shortened(task, whole)
    turned = moments.slots**2 * _turned(noise.of_curvature(releases), step)
    distance = distance_of(moments, mean - step, bread.curvature)
    epochs: tuple[Epoch, ...] = ()
    # with weights, what an old epoch adds is lost in the digits of the sums
    if task.study.estimator.forgetting is None:
        epochs = (*newer, _added(newer, moments, releases, moments.slots * curvature))
    bent = SECOND_ORDER * task.loss.remainder * max(distance, 0.0)
    return Solution(
        moments=moments,
        bread=bread,
        step=whole,
        coefficients=mean - step,
        turned=turned,
        noise=moments.squares * noise.gradient**2 * np.eye(task.size) + turned,
        bent=bent + _mixed(bread, noise, epochs),
        epochs=epochs,
    )


def _added(newer: tuple[Epoch, ...], moments: Moments, releases: float, curvature: Matrix) -> Epoch:
    """Return what the oldest epoch adds to the newer ones."""
    return Epoch(
        moments.slots - sum(epoch.slots for epoch in newer),
        max(releases - sum(epoch.releases for epoch in newer), 1.0),
        moments.expansion - sum((epoch.expansion for epoch in newer), np.zeros(len(curvature))),
        curvature - sum((epoch.curvature for epoch in newer), np.zeros_like(curvature)),
    )


def _mixed(bread: Bread, noise: Noise, epochs: tuple[Epoch, ...]) -> float:
    """Return how far predictors move since all epochs share one curvature, beyond its noise.

    Scores are linearised with the mean curvature. Where clients differ and send unlike shares of
    each epoch, curvature goes with the models, and that is an error of the first order. Nothing is
    said of it where the noise hides a direction: what moves along it may be noise alone.
    """
    if bread.hidden or len(epochs) < 2:
        return 0.0
    slots = sum(epoch.slots for epoch in epochs)
    mean = np.sum([epoch.expansion for epoch in epochs], axis=0) / slots
    score, meat = np.zeros(len(mean)), np.zeros_like(bread.matrix)
    for epoch in epochs:
        apart = epoch.expansion / epoch.slots - mean
        score = score + epoch.curvature @ apart / slots
        size = noise.of_curvature(epoch.releases) * epoch.slots / slots
        meat = meat + _turned(size, apart)
    [by_chance] = sandwiches(bread.matrix, meat)
    shift = solve_positive(bread.matrix, score)
    excess = np.outer(shift, shift) - by_chance
    return math.sqrt(max(float(np.sum(excess * bread.curvature)), 0.0) / _scale(bread))


def _turned(size: float, step: Vector) -> Matrix:
    """Return the variance of E step, for noise E of a curvature with the spectral size `size`.

    Its diagonal has the variance v = size^2 / d, and what is beside it v / 2.
    """
    half = size**2 / len(step) / 2
    carried: Matrix = half * (float(step @ step) * np.eye(len(step)) + np.outer(step, step))
    return carried


def _scale(bread: Bread) -> float:
    """Return the mean curvature of a record, which weighs its predictor."""
    return float(bread.curvature[0, 0]) or 1.0
