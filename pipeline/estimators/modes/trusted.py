"""The renewable estimate with an aggregator's noise (OnWDP).

theta_b = (A_b + rho I)^-1 (A_b theta_{b-1} - g_b - xi_b): rho pulls towards zero again in every
batch, so the limit has the penalty lambda + rho / n_b with n_b records in a batch, and the noise
inflates the variance by a factor that does not fall with b. Kept as published, to compare
with. Source: dwd, eq. (45), Algorithm 2.
"""

from __future__ import annotations

import numpy as np

from pipeline.estimators.modes.objective import Records, Sums
from pipeline.estimators.modes.online import OnlineFit
from pipeline.estimators.modes.ridge import Ridge
from pipeline.estimators.modes.trusted_noise import TrustedNoise
from pipeline.linalg import solve_positive
from pipeline.losses import Loss
from pipeline.types import Vector


class TrustedOnlineFit(OnlineFit):
    """`OnlineFit` with noise in each batch; it starts at zero with one step, as published.

    Parameters
    ----------
    noise
        Its law, its scale and the sentence about it. Records are clipped to its bounds.
    rng
        Source of the noise; a simulation's, not a release's.
    """

    def __init__(
        self,
        loss: Loss,
        ridge: Ridge,
        size: int,
        noise: TrustedNoise,
        rng: np.random.Generator,
    ) -> None:
        super().__init__(loss, ridge, size, first="one-step")
        self.noise, self._rng = noise, rng

    @property
    def guarantee(self) -> str:
        """What is kept private, in one sentence."""
        return self.noise.guarantee

    def _prepared(self, client: Records) -> Records:
        l1, l2 = self.noise.bounds
        return client.clipped(l1=l1, l2=l2)

    def _step(self, at: Vector, total: Sums) -> None:
        records = self.records + total.records
        penalty = records * float(np.min(self.ridge.of_curvature(self.size)))
        noise = self.noise.draw(self._rng, self.size, self.loss.curvature_bound, penalty)
        curvature = self.curvature + total.curvature
        curvature += np.diag(total.records * self.ridge.of_curvature(self.size))
        gradient = total.gradient + total.records * self.ridge.of_gradient(self.size) * at
        held = curvature + self.noise.stabiliser * np.eye(self.size)
        self.coefficients = solve_positive(held, curvature @ at - gradient - noise)
        self.curvature, self.records = curvature, records
        self.batches += 1
