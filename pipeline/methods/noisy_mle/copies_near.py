"""What an estimate of copies leaves out: by sites' ridges, and as fits of few records err."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from pipeline.linalg import floor_eigenvalues
from pipeline.methods.noisy_mle import near
from pipeline.methods.noisy_mle.copies_sent import Sent
from pipeline.methods.noisy_mle.copies_task import CopiesTask
from pipeline.methods.noisy_mle.infembler import Assembled
from pipeline.types import Matrix, Vector

#: Rounds in which ways are found that what is left out has made short.
LENGTHENED = 3
#: No way is said to be longer, so that its square is a number in each of them.
LONGEST = 1e9
#: Why there are no intervals where fits were not near.
FAR = (
    "the sites' ridge holds fits of windows too far from this estimate, near the models that they "
    "began at, so that intervals would be too short: they come when three quarters of the sites "
    "have sent windows at newer models; make models sooner (stream.publish), or use larger windows "
    "(window.records), which a ridge holds less"
)


@dataclass(frozen=True, slots=True)
class Fit:
    """The estimate of some sites: their weights, and squared distances, (M,)."""

    found: Assembled
    weights: Vector
    squared: Vector


def left_out(task: CopiesTask, sent: Sent, fit: Fit, covariance: Matrix) -> tuple[float, Vector]:
    """Return how far predictors move at most by what is left out, in mean, and each coefficient.

    The curvature of a fit is that where it ended, short of theta. The ways are those that ridges
    hold fits back, of public models and the common information: a site's own mean would have its
    noise in them. What is left out draws the estimate to the models, so that ways to it are too
    short by as much, and chance by a standard error along them: else intervals would come to those
    streams first whose estimates chance drew to the models.
    """
    bent, moved = 0.0, np.zeros(task.size)
    if (drawn := sent.drawn) is None:
        return bent, moved
    theta, information, ridge = fit.found.theta, fit.found.information, sent.copies.ridge
    held = ridge * np.linalg.inv(information + ridge * np.eye(task.size))
    bread = floor_eigenvalues(information + np.diag(task.penalty), 1e-12).matrix
    scale = max(float(information[0, 0]), 1e-12)
    mass = fit.weights[drawn.site] * drawn.windows / float(fit.weights @ sent.windows)
    away, chance = drawn.mean - theta, held @ covariance @ held.T
    for _ in range(LENGTHENED):
        ways = (away + np.sign(away) * moved) @ held.T
        ways *= near.longer(ways, information, chance)[:, None]
        half = _half(task, theta, float(np.max(np.sum(np.abs(ways), axis=1))))
        squares, products = near.ways(task, ways, drawn.scatter, information / scale)
        bent = half * float(mass @ products)
        moved = np.minimum(near.of_each(half * float(mass @ squares), bent, scale, bread), LONGEST)
    return bent, moved


def askew(task: CopiesTask, fit: Fit) -> Vector:
    """Return by how much the fits of windows err on average at most, of each coefficient, (d,).

    A fit errs by half the mean of its loss's third derivative times the square of what it varies,
    which goes down with the records of a window, and not with how many windows come. Linear fits
    do not.
    """
    theta, information = fit.found.theta, fit.found.information
    if not task.classes:
        return np.zeros(len(theta))
    inverse = np.linalg.inv(information + task.ridge / task.slots * np.eye(task.size))
    varied = inverse @ information @ inverse / task.slots
    scale = max(float(information[0, 0]), 1e-12)
    square = float(np.sum(information * varied)) / scale
    longest = min(
        float(np.sum(np.abs(varied))), task.longest**2 * float(np.linalg.eigvalsh(varied)[-1])
    )
    half = _half(task, theta, 0.0)
    bread = floor_eigenvalues(information + np.diag(task.penalty), 1e-12).matrix
    return near.of_each(half * square, half * math.sqrt(longest * square), scale, bread)


def _half(task: CopiesTask, theta: Vector, beyond: float) -> float:
    """Return half of the loss's third derivative over its second one, at most.

    beyond: How much farther than those of theta predictors lie.
    """
    farthest = float(np.sum(np.abs(theta))) + beyond
    # that of the logistic loss is tanh(u / 2)
    return math.tanh(farthest / 2) * task.loss.remainder / 2
