"""A population of two groups of interchangeable features, whose penalised minimiser is exact.

A record has a hidden common cause z in {-1, 1}. Given z, each feature is -1, 0 or 1 with
probabilities in proportion to 0.45 exp(-0.4 z), 0.1 and 0.45 exp(0.4 z), so that all features are
correlated. The response is +1 with probability 1 / (1 + exp(-(0.3 + sum of the first group's slopes
less the second's))). The loss is convex and the law does not change when features of a group are
exchanged, so the minimiser gives each group one slope; and a predictor with such slopes depends on
the two groups' sums alone, whose joint law is a short table. Nothing is drawn to find the target.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.optimize import minimize

from pipeline.losses import Loss
from pipeline.types import Matrix, Vector

LEVELS = np.array([-1.0, 0.0, 1.0])
INTERCEPT, TILT = 0.3, 0.4


@dataclass(frozen=True)
class Grouped:
    """Features in two groups; records are the same at all clients.

    Attributes
    ----------
    first, second
        How many features each group has, >= 1.
    """

    first: int
    second: int

    @property
    def features(self) -> int:
        """Number p of features."""
        return self.first + self.second

    @property
    def slope(self) -> float:
        """Slope of the response's log odds in a feature: the same spread for any p."""
        return 2.0 / math.sqrt(self.features)

    def draw(self, rng: np.random.Generator, records: int) -> tuple[Matrix, Vector]:
        """Return features (n, p) in [-1, 1] and responses (n,)."""
        up = rng.random(records) < 0.5
        steps = np.cumsum(_chances(1.0))
        # given z = -1, the mirror image of z = 1
        x = np.searchsorted(steps[:-1], rng.random((records, self.features))) - 1.0
        x *= np.where(up, 1.0, -1.0)[:, None]
        sums = x[:, : self.first].sum(axis=1), x[:, self.first :].sum(axis=1)
        return x, np.where(rng.random(records) < self._positive(*sums), 1.0, -1.0)

    @cached_property
    def table(self) -> tuple[Vector, Vector, Vector, Vector]:
        """Sums of both groups, the response, and the probability of each such record."""
        one, other = (
            np.arange(-self.first, self.first + 1.0),
            np.arange(-self.second, self.second + 1.0),
        )
        mass = np.zeros((len(one), len(other)))
        for z in (-1.0, 1.0):
            mass += 0.5 * np.outer(_sum_law(z, self.first), _sum_law(z, self.second))
        s, t = (grid.ravel() for grid in np.meshgrid(one, other, indexing="ij"))
        positive = self._positive(s, t)
        chance = np.concatenate([mass.ravel() * positive, mass.ravel() * (1 - positive)])
        responses = np.repeat([1.0, -1.0], len(s))
        return np.tile(s, 2), np.tile(t, 2), responses, chance

    def target(self, loss: Loss, ridge: float) -> Vector:
        """Return the minimiser of the mean loss plus ridge / 2 squared slopes, shape (p + 1,)."""
        s, t, responses, chance = self.table

        def objective(theta: Vector) -> tuple[float, Vector]:
            predictor = theta[0] + theta[1] * s + theta[2] * t
            sizes = ridge * np.array([0.0, self.first, self.second])
            pull = chance * loss.slope(predictor, responses)
            value = float(chance @ loss.value(predictor, responses) + sizes @ theta**2 / 2)
            return value, np.array([pull.sum(), pull @ s, pull @ t]) + sizes * theta

        point = np.zeros(3)
        for _ in range(5):
            point = minimize(objective, point, jac=True, method="BFGS", options={"gtol": 1e-13}).x
        error = float(np.abs(objective(point)[1]).max())
        if error > 1e-6:
            raise RuntimeError(f"the target was not found: its gradient is {error:.1e}")
        return np.repeat(point, [1, self.first, self.second])

    def _positive(self, first: Vector, second: Vector) -> Vector:
        odds = INTERCEPT + self.slope * (first - second)
        positive: Vector = 1.0 / (1.0 + np.exp(-odds))
        return positive


def _chances(z: float) -> Vector:
    weights = np.array([0.45, 0.1, 0.45]) * np.exp(TILT * z * LEVELS)
    return weights / weights.sum()


def _sum_law(z: float, count: int) -> Vector:
    """Return the law of the sum of `count` features given z, from -count to count."""
    law = np.ones(1)
    for _ in range(count):
        law = np.convolve(law, _chances(z))
    return law
