"""A population of two Gaussian classes whose features are correlated 0.7^|j - k|.

Records are those of `papers.populations.autoregressive`, both classes equally frequent. A client
shortens them to the study's norm bound sqrt(1 + p), which nearly half of them pass, and so does the
target. The loss is a function of the margin, so a record (x, y) counts as z = y x does: the best
intercept is 0, and the best slopes minimise the mean loss of z. That mean is over scrambled Sobol
points, whose error is that of a far larger number of draws.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.optimize import minimize
from scipy.special import ndtri
from scipy.stats.qmc import Sobol

from benchmarks.papers.populations import Correlated, autoregressive
from pipeline.losses import Loss
from pipeline.types import Matrix, Vector

#: Points of one scrambling, which are held at a time: 2 to this power.
POWER = 18
#: Steps over all points, from the minimiser over those of one chunk, and the gradient that may be
#: left at the last one: that of a stream of 100,000 records deviates by 100 times as much.
STEPS, LEFT = 4, 1e-5


@dataclass(frozen=True)
class Autoregressive:
    """Two Gaussian classes; records are the same at all clients.

    Attributes
    ----------
    features
        Number p of features.
    scramblings
        How many of the points the target rests on.
    """

    features: int
    scramblings: int = 8

    @property
    def norm_bound(self) -> float:
        """Public bound of the norm of (1, features)."""
        return math.sqrt(1.0 + self.features)

    @cached_property
    def classes(self) -> Correlated:
        """Means and correlations."""
        return autoregressive(1, self.features)

    def draw(self, rng: np.random.Generator, records: int) -> tuple[Matrix, Vector]:
        """Return features (n, p) and responses (n,)."""
        y = np.where(rng.random(records) < 0.5, 1.0, -1.0)
        return y[:, None] * self._towards(rng.standard_normal((records, self.features))), y

    def target(self, loss: Loss, ridge: float) -> Vector:
        """Return the minimiser of the mean loss plus ridge / 2 squared slopes, shape (p + 1,)."""

        def objective(slopes: Vector, z: Matrix) -> tuple[float, Vector]:
            margin, ones = z @ slopes, np.ones(len(z))
            value = float(loss.value(margin, ones).mean()) + ridge * float(slopes @ slopes) / 2
            return value, loss.slope(margin, ones) @ z / len(z) + ridge * slopes

        first = next(self._chunks())
        slopes: Vector = minimize(objective, self.classes.mean, (first,), jac=True, method="BFGS").x
        curvature_weight = loss.curvature(first @ slopes, np.ones(len(first)))[:, None]
        curvature = (first * curvature_weight).T @ first / len(first) + ridge * np.eye(
            self.features
        )
        for _ in range(STEPS):
            gradient = np.mean([objective(slopes, z)[1] for z in self._chunks()], axis=0)
            slopes = slopes - np.linalg.solve(curvature, gradient)
        if (error := float(np.abs(gradient).max())) > LEFT:
            raise RuntimeError(f"the target was not found: its gradient is {error:.1e}")
        return np.append(0.0, slopes)

    def _chunks(self) -> Iterator[Matrix]:
        """Yield the points of the target, clipped, always the same."""
        for number in range(self.scramblings):
            points = Sobol(self.features, rng=np.random.default_rng([98, number]))
            z = self._towards(ndtri(points.random_base2(POWER)))
            norms = np.linalg.norm(z, axis=1)
            room = math.sqrt(self.norm_bound**2 - 1.0)
            yield z * np.minimum(1.0, room / norms)[:, None]

    def _towards(self, normal: Matrix) -> Matrix:
        """Return y x, records as the positive class has them, of standard normal numbers."""
        noise: Matrix = normal @ self.classes.root.T
        return noise + self.classes.mean
