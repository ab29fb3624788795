"""What is simulated for paper ldp-sgd: records of a loss, and the limit law of its average.

An intercept and three standard normal features, weights min(1, 2 / |(1, x)|^2). The linear
records are those of the paper's simulation, as far as its figures let it be recovered:
coefficients of one, normal errors of deviation 1/2, Huber's slope at 1.345 deviations. The
expectile has the same records at tau = 0.3, and the logistic model coefficients (0.5, 1, -1, 0.5).
Source: ldp-sgd, Table 1; what it does not print is recovered from its numbers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import expit, ndtri

from benchmarks.limit_law import covariance, moments
from pipeline.losses import Expectile, Linear, Logistic, Loss
from pipeline.types import Matrix, Vector

SIZE = 4
DEVIATION = 0.5
BEND = 1.345 * DEVIATION
#: Squared radius: the weight of a record is at most this over its squared length.
RADIUS = 2.0
TAU = 0.3
#: Records that stand for the population where a mean has no formula.
_MANY = 10**6
Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Model:
    """A loss with the records that it is fitted to.

    Attributes
    ----------
    loss
        Its slope bounds the gradients.
    coefficients
        Of the mean response, or of the log-odds of class +1; shape (d,).
    """

    loss: Loss
    coefficients: tuple[float, ...]

    @property
    def truth(self) -> Vector:
        """What the path goes to, shape (d,): the root of the mean weighted gradient."""
        found = np.array(self.coefficients)
        if self.loss.name == "expectile":
            # errors do not depend on features, so that the intercept alone moves
            found[0] += _expectile_of_errors()
        return found

    @property
    def slope(self) -> float:
        """Largest norm B of a gradient."""
        return math.sqrt(RADIUS) * self.loss.slope_bound

    @property
    def curvature(self) -> float:
        """Largest norm of a record's curvature."""
        return RADIUS * self.loss.curvature_bound

    def draw(self, rng: np.random.Generator, shape: tuple[int, ...]) -> tuple[Array, Array]:
        """Draw records: rows (1, features) of shape (*shape, d), responses of `shape`."""
        x = rng.normal(size=(*shape, SIZE))
        x[..., 0] = 1.0
        predictor = x @ np.array(self.coefficients)
        if self.loss.responses == "class":
            return x, np.where(rng.random(shape) < expit(predictor), 1.0, -1.0)
        return x, predictor + rng.normal(0, DEVIATION, shape)

    def limit(self, mu: float) -> Vector:
        """Return the standard errors of one record that the limit law gives, shape (d,).

        Those of an average of n records are these over the root of n.
        """
        return np.sqrt(np.diag(covariance(*_moments(self), 2 * self.slope / mu, 1)))


LINEAR = Model(Linear(BEND), (1.0, 1.0, 1.0, 1.0))
LOGISTIC = Model(Logistic(), (0.5, 1.0, -1.0, 0.5))
EXPECTILE = Model(Expectile(TAU, BEND), (1.0, 1.0, 1.0, 1.0))


def weights_of(x: Array) -> Array:
    """Return Mallows weights of rows (1, features), without their last axis."""
    return np.minimum(1.0, RADIUS / np.vecdot(x, x))


@lru_cache(maxsize=8)
def _moments(model: Model) -> tuple[Matrix, Matrix]:
    x, y = model.draw(np.random.default_rng(0), (_MANY,))
    return moments(model.loss, x, y, model.truth, math.sqrt(RADIUS))


@lru_cache(maxsize=1)
def _expectile_of_errors() -> float:
    """Return where the mean slope over the errors vanishes, from their quantiles."""
    errors = DEVIATION * ndtri((np.arange(_MANY) + 0.5) / _MANY)

    def slope(at: float) -> float:
        return float(EXPECTILE.loss.slope(np.full(_MANY, at), errors).mean())

    return float(brentq(slope, -DEVIATION, DEVIATION))
