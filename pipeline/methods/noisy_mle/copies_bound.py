"""Linear fits near the bound of their norm: when there are no intervals, and how long others are.

Fits that were cut at the bound lie on it, however far beyond it the truth is, so that intervals
come only where fits stay clear of it. Whether they do is seen with the estimate's own noise: near
the bound those estimates come first that chance drew inwards. So the number that decides has the
interval of a normal number that is shown only below a limit (Lee, Sun, Sun and Taylor 2016, Exact
post-selection inference, theorem 5.2), whatever the share of streams that it shows.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.special import ndtri

from pipeline.methods.noisy_mle.copies_near import Fit
from pipeline.methods.noisy_mle.copies_sent import Sent
from pipeline.methods.noisy_mle.copies_task import CopiesTask
from pipeline.methods.noisy_mle.shown import FARTHEST, reach
from pipeline.types import Matrix, Vector

#: Of what can make fits longer than they are on average, so many deviations.
CLEAR = 2.0


def slack(task: CopiesTask, sent: Sent, fit: Fit) -> float:
    """Return by how much the fits of windows stay clear of their bound; infinite without one.

    Their length has two deviations of what can make them longer: their noise, what they vary, and
    what sites differ by. Fits that were cut lie on the bound all together.
    """
    if task.moving:
        return math.inf
    copies, size = sent.copies, len(fit.found.theta)
    mass = fit.weights * copies.records / float(fit.weights @ copies.records)
    full = fit.found.information + copies.ridge * np.eye(size)
    alone = float(np.trace(np.linalg.inv(full))) / copies.records
    repeated = sent.squared / sent.windows
    noise = repeated * (copies.noise * alone + size * copies.rounding)
    middle = _middle(sent, fit)
    squares = ((copies.means - middle) ** 2).sum(axis=1)
    varied = max(float(mass @ (sent.windows * alone)), float(mass @ (squares - noise)))
    unsure = float(mass**2 @ (noise + repeated * alone))
    return task.radius - float(np.linalg.norm(middle)) - CLEAR * math.sqrt(varied + unsure)


def selected(task: CopiesTask, sent: Sent, fit: Fit, clear: float, covariance: Matrix) -> Matrix:
    """Return what the covariance lacks as estimates are shown only where fits stay clear, (d, d).

    clear: What `slack` gives, > 0.
    covariance: Of the coefficients, without a ridge of the study.
    """
    size = len(fit.found.theta)
    if not math.isfinite(clear):
        return np.zeros((size, size))
    middle, information = _middle(sent, fit), fit.found.information
    # the length of mean fits, as a product with coefficients: a fit is short by the sites' ridge
    outward = middle / max(float(np.linalg.norm(middle)), 1e-300)
    full = information + sent.copies.ridge * np.eye(size)
    along = information @ np.linalg.solve(full, outward)
    turned = covariance @ along
    variance = max(float(along @ turned), 1e-300)
    factor = lengthened(clear / math.sqrt(variance), task.study.estimator.level)
    found: Matrix = (factor**2 - 1) / variance * np.outer(turned, turned)
    return found


def lengthened(clear: float, level: float) -> float:
    """Return how many times as long an interval is of a number that is shown below a limit, >= 1.

    clear: How far below the limit it is, in standard errors, > 0.

    The upper end misses the truth in at most 1 - level of all numbers that are shown; the lower
    one, as far away, in next to none of them where it is longer than usual.
    """
    usual = -float(ndtri((1 - level) / 2))
    return reach(clear, level, usual, FARTHEST) / usual


def _middle(sent: Sent, fit: Fit) -> Vector:
    mass = fit.weights * sent.copies.records
    found: Vector = mass @ sent.copies.means / float(mass.sum())
    return found
