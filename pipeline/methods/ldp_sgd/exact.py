"""How long an interval is that knows all but the noise, before any record is seen.

It is the limit law's, A^-1 M A^-1 / n, with the curvature of the public reference population and
the noise of the study's own gradients. What a path does not know as well makes real ones longer.
Source: ldp-sgd, limit; the population is this project's guess.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import scipy

from pipeline.errors import NumericError
from pipeline.linalg import sandwich
from pipeline.methods.base import Exact
from pipeline.methods.ldp_sgd.forecast import records_needed
from pipeline.methods.ldp_sgd.settings import CURVATURE, mean_products, planned_share
from pipeline.methods.ldp_sgd.task import GradientTask
from pipeline.types import Matrix, Vector

#: An interval that reaches further to either side says little: in logits, or in deviations of the
#: residuals.
HALF = 0.5
#: Residual bounds are so many deviations of the residuals, if chosen as recommended.
HUBER = 1.345
#: Normal residuals stand for all by so many quantiles.
POINTS = 2000
#: Estimates are ready at the latest at so many times the records of an exact interval of `HALF`.
LATEST = 2.0


def exact(task: GradientTask, records: int, products: Matrix | None = None) -> Exact:
    """Return how long an exact interval is at so many records, and when it says something.

    products: E[x x'] of (1, features), shape (d, d); by default that of `mean_products`.

    Raises NumericError if they hold no information of a coefficient.
    """
    loss, unit = task.loss, task.response_scale[1]
    wanted = HALF
    if not task.classes:
        # the largest curvature is how much an asymmetric loss weighs one side at most
        wanted *= unit * loss.slope_bound / loss.curvature_bound / HUBER
    found = mean_products(task) if products is None else products
    if np.linalg.matrix_rank(found, hermitian=True) < task.size:
        # what is left of such a combination is rounding, and its inverse any number
        raise NumericError("some feature follows from the others")
    reach = float(scipy.special.ndtri((1 + task.study.estimator.level) / 2))
    widest = unit * reach * float(_deviations(task, found).max())
    enough = math.ceil((widest / wanted) ** 2)
    ready = max(math.ceil(LATEST * enough), records_needed(task, found))
    return Exact(widest / math.sqrt(records), wanted, enough, ready)


def _deviations(task: GradientTask, products: Matrix) -> Vector:
    """Return deviations of the coefficients after one record, in encoded units, shape (d,)."""
    weight = min(1.0, task.clipping_norm**2 / float(np.trace(products)))
    tau = task.study.estimator.tau if task.loss.name == "expectile" else 0.5
    if task.classes:
        # their slopes are as spread as they are curved
        curved = square = CURVATURE["logistic"]
    else:
        curved, square = of_residuals(tau or 0.5)
        curved *= task.loss.curvature_bound
    curvature = planned_share(task) * (task.path.curvature or curved) * weight * products
    noise = task.record_noise if task.study.noised else 0.0
    own = square * (weight * task.loss.slope_bound) ** 2 * products
    middle = own + noise**2 * np.eye(task.size)
    deviations: Vector = np.sqrt(np.diag(sandwich(curvature, middle)))
    return deviations


@lru_cache(maxsize=8)
def of_residuals(tau: float) -> tuple[float, float]:
    """Return mean curvature and mean square slope of an expectile, over their largest values.

    Of normal residuals about their expectile of level tau, in (0, 1), cut at `HUBER` deviations.
    """
    normal = scipy.special.ndtri((np.arange(POINTS) + 0.5) / POINTS)

    def slopes(centre: float) -> tuple[Vector, Vector]:
        off = normal - centre
        sides = np.where(off > 0, tau, 1 - tau) / max(tau, 1 - tau)
        return sides, sides * np.clip(off / HUBER, -1, 1)

    centre = scipy.optimize.brentq(lambda at: float(slopes(at)[1].sum()), -10, 10)
    sides, found = slopes(centre)
    curved = sides * (np.abs(normal - centre) <= HUBER)
    return float(curved.mean()), float((found**2).mean())
