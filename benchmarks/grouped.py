"""A population of two groups of interchangeable features, whose penalised minimiser is exact.

A record has a hidden common cause z in {-1, 1}. Given z, each feature takes one of some levels x
between -1 and 1 with probability in proportion to x^4 exp(0.4 z x), so that all features are
correlated. "fine" features have 41 levels, 0.05 apart: margins of records are as good as
continuous. "coarse" ones are -1 or 1, with which few margins are possible when p is small. The
response is +1 with probability 1 / (1 + exp(-(0.3 + slope (sum of the first group - sum of the
second)))). The loss is convex and the law does not change when features of a group are exchanged,
so the minimiser gives each group one slope; a predictor with such slopes depends on the two groups'
sums alone, whose joint law is a table. Nothing is drawn to find the target.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.optimize import minimize

from pipeline.losses import Loss
from pipeline.types import Matrix, Vector

#: Steps between 0 and 1.
STEPS = {"fine": 20, "coarse": 1}
INTERCEPT, TILT = 0.3, 0.4


@dataclass(frozen=True)
class Grouped:
    """Features in two groups; records are the same at all clients.

    Attributes
    ----------
    first, second
        How many features each group has, >= 1.
    kind
        "fine" or "coarse".
    """

    first: int
    second: int
    kind: str = "fine"

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
        levels, chances = _law(1.0, self.kind)
        steps = np.cumsum(chances)
        # given z = -1, the mirror image of z = 1
        x = levels[np.searchsorted(steps[:-1], rng.random((records, self.features)))]
        x *= np.where(up, 1.0, -1.0)[:, None]
        sums = x[:, : self.first].sum(axis=1), x[:, self.first :].sum(axis=1)
        return x, np.where(rng.random(records) < self._positive(*sums), 1.0, -1.0)

    @cached_property
    def table(self) -> tuple[Vector, Vector, Vector, Vector]:
        """Sums of both groups, the response, and the probability of each such record."""
        one, other = (
            np.linspace(-count, count, 2 * STEPS[self.kind] * count + 1)
            for count in (self.first, self.second)
        )
        mass = np.zeros((len(one), len(other)))
        for z in (-1.0, 1.0):
            sides = (_sum_law(z, count, self.kind) for count in (self.first, self.second))
            mass += 0.5 * np.outer(*sides)
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


def _law(z: float, kind: str) -> tuple[Vector, Vector]:
    """Return the levels of a feature and their probabilities given z."""
    levels = np.linspace(-1.0, 1.0, 2 * STEPS[kind] + 1)
    weights = levels**4 * np.exp(TILT * z * levels)
    return levels, weights / weights.sum()


def _sum_law(z: float, count: int, kind: str) -> Vector:
    """Return the law of the sum of `count` features given z, from -count to count."""
    law = np.ones(1)
    for _ in range(count):
        law = np.convolve(law, _law(z, kind)[1])
    return law
