"""What plans suppose of classes: how much a loss bends, and when models are near.

A class that is rare lies far from the public start, which takes more models, and there a logistic
loss bends less. Derived in docs/methods/noisy-mle.md.
"""

from __future__ import annotations

import math

import numpy as np

from pipeline.methods.noisy_mle import near
from pipeline.methods.noisy_mle.copies_task import CopiesTask
from pipeline.methods.noisy_mle.estimate import LONGEST_STEP
from pipeline.methods.noisy_mle.task import SiteTask
from pipeline.study.reference import evenness, kept_moments, rarer_share
from pipeline.types import Matrix

#: At the reference, logistic losses bend at least this share of what they do at 0.
BEND = 0.55
#: Windows of every site before models are near, of even classes: at 0 and at a first model. Then as
#: many near the estimate as it takes at least: one, and one more, which a tenth to four fifths of
#: the streams of steep slopes and rare levels need (benchmarks.sites_coverage).
FIRST, LATER = 2, 2
#: What models off the estimate may move, in shares of what is allowed at most. Nine of ten streams
#: of 8 % positives had intervals at 0.7, half of them at 0.9, and one of ten at 1.4.
CLEAR = 0.8
#: No plan looks further ahead.
MOST_WINDOWS = 10_000
#: What a residual's standard deviation is taken for where a study says nothing, in encoded units.
RESIDUAL = 0.1
#: So many logits from that of the rarer class, a model is as near as a first one of even classes.
FIRST_NEAR = 0.25


def bend_of(task: SiteTask | CopiesTask) -> float:
    """Return the guess of a record's mean curvature at the reference, over that at 0."""
    # the mean of p (1 - p) is at most that of the mean
    return min(BEND, evenness(task.study)) if task.loss.name == "logistic" else 1.0


def first_windows(task: SiteTask) -> int:
    """Return how many windows of every site are usually taken before models are near."""
    # of even classes the first model is one step off, since slopes are
    return FIRST + (max(_steps(task) - 1, 0) if task.classes else 0)


def near_windows(task: SiteTask) -> int:
    """Return how many windows of every site it takes until scores are usually near."""
    first, later, moved = first_windows(task), LATER, _moved(task)
    while moved * _scatter(later) > CLEAR and later < MOST_WINDOWS:
        later = math.ceil(1.05 * later)
    return first + later


def _steps(task: SiteTask) -> int:
    """Return after how many of Newton's steps an intercept is near that of the rarer class."""
    share, most = rarer_share(task.study), LONGEST_STEP / task.norm_bound
    goal, at, steps = math.log(share / (1 - share)), 0.0, 0
    while at - goal > FIRST_NEAR:
        here = 1 / (1 + math.exp(-at))
        at -= min((here - share) / (here * (1 - here)), most)
        steps += 1
    return steps


def _moved(task: SiteTask) -> float:
    """Return by how much a model of one round moves coefficients, in shares of what is allowed.

    Such a model is as far off as the noise and the records of one window of each site make it. The
    most of all coefficients, over the standard error of one round.
    """
    curvature = planned_curvature(task)
    chance = covariance(task, curvature, task.slots * task.spec.sites)
    scale, half = float(curvature[0, 0]), task.loss.remainder / 2
    deviations = np.sqrt(np.diag(chance))
    square = float(np.sum(chance * curvature)) / scale
    longest = min(
        # the mean length of a normal number
        math.sqrt(2 / math.pi) * float(deviations.sum()),
        task.longest * float(np.linalg.norm(deviations)),
    )
    bread = curvature + np.diag(task.penalty)
    moved = near.of_each(half * square, half * longest * math.sqrt(square), scale, bread)
    return float((moved / deviations).max()) / near.NEAR


def _scatter(rounds: int) -> float:
    """Return what so many rounds make of it, the models of which are means of all before them.

    A mean of m rounds, all but one of them among the J that count, has the variance 1 / m + 1 / J -
    2 (m - 1) / (m J) about their mean; the standard error falls with the root of J.
    """
    harmonic = sum(1 / m for m in range(1, rounds + 1))
    mean = (harmonic - 1 + 2 * harmonic / rounds) / rounds
    return mean * math.sqrt(rounds)


def planned_curvature(task: SiteTask) -> Matrix:
    """Return the mean curvature of a record at the reference, shape (d, d)."""
    bend = bend_of(task) * task.loss.start_curvature
    return bend * kept_moments(task.encoding, task.norm_bound)


def covariance(task: SiteTask, curvature: Matrix, counted: float) -> Matrix:
    """Return the covariance of the coefficients after so many record slots, shape (d, d)."""
    inverse = np.linalg.pinv(curvature + np.diag(task.penalty), hermitian=True)
    releases = max(counted / task.slots, 1.0)
    noise = task.channels(1).gradient.standard_deviation / (task.slots * math.sqrt(releases))
    sampling = dispersion(task) / counted * curvature
    found: Matrix = inverse @ (sampling + noise**2 * np.eye(task.size)) @ inverse
    return found


def dispersion(task: SiteTask) -> float:
    """Return the guess of the variance of a record's score over its curvature."""
    estimator, unit = task.study.estimator, task.response_scale[1]
    if task.classes:
        return 1.0
    return (RESIDUAL if estimator.noise_scale is None else estimator.noise_scale / unit) ** 2
