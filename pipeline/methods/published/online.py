"""One Newton step for each batch, records forgotten (OnWP), and with an aggregator's noise (OnWDP).

A_b = A_{b-1} + H_b and theta_b = theta_{b-1} - A_b^-1 g_b, with g_b and H_b taken at
theta_{b-1}, ridge included. With noise theta_b = (A_b + rho I)^-1 (A_b theta_{b-1} - g_b - xi_b):
rho pulls towards zero again in every batch, so the limit has the penalty lambda + rho / n_b with
n_b records in a batch, and the noise inflates the variance by a factor that does not fall with b.
Kept as published, to compare with. Class weights n / (2 n_class), from running counts, are an
extension: the paper has none. Source: dwd, eq. (37) and (45), Algorithm 2.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from pipeline.errors import DataError
from pipeline.estimators.estimate import class_weights
from pipeline.linalg import solve_positive
from pipeline.losses import Loss
from pipeline.methods.published.offline import federated_fit
from pipeline.methods.published.records import Records, Ridge, Sums, sums_at
from pipeline.methods.published.trusted_noise import TrustedNoise
from pipeline.types import Matrix, Vector

#: Damped rounds on the first batch, at most: eight serve a long tail, a hinge needs more.
FIRST_ROUNDS = 40


class ClassBalance:
    """Counts of both classes over the batches so far, and the weights they give to the next.

    `largest` > 1 is the public maximum of a weight: with privacy it enters the sensitivity. Each of
    the two counts of a message gets normal noise of `deviation` >= 0 from `rng`.
    """

    def __init__(
        self,
        largest: float = 8.0,
        *,
        deviation: float = 0.0,
        rng: np.random.Generator | None = None,
    ) -> None:
        self.largest, self.deviation, self._rng = largest, deviation, rng
        self._counts = np.zeros(2)

    @property
    def weights(self) -> tuple[float, float]:
        """Weights of the negative and the positive class; (1, 1) before the first count."""
        negative, positive = self._counts.tolist()
        return class_weights(negative, positive, self.largest)

    def add(self, negative: int, positive: int) -> None:
        """Add the counts of one message, with its own noise."""
        self._counts += (negative, positive)
        if self._rng is not None and self.deviation > 0:
            self._counts += self._rng.normal(0.0, self.deviation, size=2)


class OnlineFit:
    """Coefficients (d,), zero at the start, and summed curvature (d, d) of a stream of batches.

    size: d, the number of coefficients with the intercept.
    first: "fitted" linearises the first batch at its own damped fit. "one-step" is the paper's:
        from zero, where its loss has no curvature and the ridge alone sets the length of the step.
    balance: Class weights of each batch from the counts of the batches before; None for none. It
        belongs to this fit, which adds to it.
    """

    def __init__(
        self,
        loss: Loss,
        ridge: Ridge,
        size: int,
        *,
        first: Literal["fitted", "one-step"] = "fitted",
        balance: ClassBalance | None = None,
    ) -> None:
        self.loss, self.ridge, self.size = loss, ridge, size
        self.first, self.balance = first, balance
        self.coefficients = np.zeros(size)
        self.curvature = np.zeros((size, size))
        self.records = self.batches = 0

    def update(self, clients: Sequence[Records]) -> Vector:
        """Fold one batch, given as the records of each client; return the new coefficients.

        NumericError if the summed curvature is singular, or the first batch alone has no
        best fit. The state is then as it was.
        """
        if any(client.size != self.size for client in clients):
            raise DataError(f"clients must have {self.size - 1} features, as the first batch had")
        if sum(len(client) for client in clients) == 0:
            raise DataError("clients must hold at least one record")
        batch = [self._prepared(client) for client in clients]
        at = self.coefficients
        if self.batches == 0 and self.first == "fitted":
            at = federated_fit(self.loss, batch, self.ridge, rounds=FIRST_ROUNDS).coefficients
        self._step(at, sums_at(self.loss, batch, at))
        if self.balance is not None:
            for client in clients:
                self.balance.add(*client.class_counts())
        return self.coefficients

    def _prepared(self, client: Records) -> Records:
        return client if self.balance is None else client.weighted(self.balance.weights)

    def _step(self, at: Vector, total: Sums) -> None:
        curvature = self.curvature + total.curvature
        curvature += np.diag(total.records * self.ridge.of_curvature(self.size))
        gradient = total.gradient + total.records * self.ridge.of_gradient(self.size) * at
        records = self.records + total.records
        self.coefficients = self._moved(at, curvature, gradient, records)
        self.curvature, self.records = curvature, records
        self.batches += 1

    def _moved(self, at: Vector, curvature: Matrix, gradient: Vector, records: int) -> Vector:
        del records
        return at - solve_positive(curvature, gradient)


class TrustedOnlineFit(OnlineFit):
    """`OnlineFit` with noise in each batch; it starts at zero with one step, as published.

    Records are clipped to the bounds of the noise, which is drawn from a simulation's generator.
    """

    def __init__(
        self, loss: Loss, ridge: Ridge, size: int, noise: TrustedNoise, rng: np.random.Generator
    ) -> None:
        super().__init__(loss, ridge, size, first="one-step")
        self.noise, self._rng = noise, rng

    def _prepared(self, client: Records) -> Records:
        l1, l2 = self.noise.bounds
        return client.clipped(l1=l1, l2=l2)

    def _moved(self, at: Vector, curvature: Matrix, gradient: Vector, records: int) -> Vector:
        penalty = records * float(np.min(self.ridge.of_curvature(self.size)))
        noise = self.noise.draw(self._rng, self.size, self.loss.curvature_bound, penalty)
        held = curvature + self.noise.stabiliser * np.eye(self.size)
        return solve_positive(held, curvature @ at - gradient - noise)
