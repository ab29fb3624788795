"""The renewable estimate from noised messages.

theta <- theta - (floor(A) + N lambda R)^-1 (g + n lambda R theta) with A the sum of the noised
curvatures. The curvature sets length and direction of a step alone. Steps end where the gradient is
zero whatever it is, so its noise does not change where they end. Its eigenvalues are raised to half
the spectral size of that noise, without which single directions run away.
The first round is at the public start, where the loss has no curvature: it spends the whole budget
on the gradient and takes one step against a public guess. Source: dwd, eq. (37), rewritten.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from pipeline.errors import DataError
from pipeline.linalg import floor_eigenvalues, solve_positive
from pipeline.losses import Loss
from pipeline.methods.published.message_noise import MessageNoise, normal_symmetric
from pipeline.methods.published.online import ClassBalance
from pipeline.methods.published.records import Records, Ridge, sums_at
from pipeline.types import Matrix, Vector

#: Least eigenvalue of the curvature: this part of their mean, and of the noise's spectral size.
FLOOR_SHARE = 0.02
FLOOR_NOISE = 0.5


class PrivateOnlineFit:
    """Coefficients (d,), zero at the start, and noised curvature of a stream of rounds.

    noise: Budget, and who shares it. Records are clipped to its bound, and the noise of a round is
        drawn as one draw of the summed variance of its `clients` messages.
    balanced: Whether classes are weighted, from noised counts up to the largest weight of `noise`.

    floored: How many eigenvalues of the curvature were raised in the last round.
    """

    def __init__(
        self,
        loss: Loss,
        ridge: Ridge,
        size: int,
        noise: MessageNoise,
        rng: np.random.Generator,
        *,
        balanced: bool = False,
    ) -> None:
        self.loss, self.ridge, self.size, self.noise = loss, ridge, size, noise
        self._rng = rng
        factor = noise.total_factor()
        self._gradient_deviations = tuple(
            factor * noise.gradient_deviation(loss, first=first) for first in (False, True)
        )
        self._curvature_deviation = factor * noise.curvature_deviation(loss)
        self._balance: ClassBalance | None = None
        if balanced:
            deviation = factor * noise.counts_deviation()
            self._balance = ClassBalance(noise.largest_weight, deviation=deviation, rng=rng)
        self.coefficients = np.zeros(size)
        self.curvature = np.zeros((size, size))
        self.records = self.rounds = self.floored = 0

    @property
    def weights(self) -> tuple[float, float]:
        """Weights of the negative and the positive class for the next round."""
        return (1.0, 1.0) if self._balance is None else self._balance.weights

    def update(self, clients: Sequence[Records], slots: int | None = None) -> Vector:
        """Fold one round, given as the records of its clients; return the new coefficients.

        `slots` is the public number of record slots of the round, by default that of the records;
        slots without a record contribute nothing.
        """
        if any(client.size != self.size for client in clients):
            raise DataError(f"clients must have {self.size - 1} features, as the first round had")
        slots = sum(len(client) for client in clients) if slots is None else slots
        if slots == 0:
            raise DataError("clients must hold at least one record")
        weights = self.weights
        batch = [client.clipped(l2=self.noise.l2_bound).weighted(weights) for client in clients]
        point, first = self.coefficients, self.rounds == 0
        total = sums_at(self.loss, batch, point)
        noised = total.gradient + self._rng.normal(0.0, self._gradient_deviations[first], self.size)
        if first:
            level = self.loss.start_curvature * self.noise.l2_bound**2 / self.size
            bread, held = slots * level * np.eye(self.size), slots
        else:
            noise = normal_symmetric(self._rng, self.size, self._curvature_deviation)
            self.curvature += total.curvature + noise
            self.records += slots
            bread, held = self._floored(), self.records
        penalty = self.ridge.of_gradient(self.size)
        gradient = noised + slots * penalty * point
        self.coefficients = point - solve_positive(bread + np.diag(held * penalty), gradient)
        self.rounds += 1
        if self._balance is not None:
            self._balance.add(*np.sum([c.class_counts() for c in clients], axis=0))
        return self.coefficients

    def _floored(self) -> Matrix:
        """Return the curvature with its eigenvalues raised."""
        # the round of the start has no curvature, so `rounds` counts those that have
        deviation = self._curvature_deviation * math.sqrt(self.rounds)
        share = FLOOR_SHARE * float(np.trace(self.curvature)) / self.size
        least = max(share, FLOOR_NOISE * deviation * math.sqrt(2 * self.size))
        repaired, self.floored, *_ = floor_eigenvalues(self.curvature, least)
        return repaired
