"""The renewable estimate: one Newton step for each batch, records forgotten (OnWP).

A_b = A_{b-1} + H_b and theta_b = theta_{b-1} - A_b^-1 g_b, with g_b and H_b taken at
theta_{b-1}, ridge included. Source: dwd, eq. (37).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from pipeline.errors import ConfigError, DataError
from pipeline.estimators.modes.class_balance import ClassBalance
from pipeline.estimators.modes.federated import federated_fit
from pipeline.estimators.modes.objective import Records, Sums, add_up, sums_at
from pipeline.estimators.modes.result import FEDERATED
from pipeline.estimators.modes.ridge import Ridge
from pipeline.linalg import solve_positive
from pipeline.losses import Loss
from pipeline.types import Vector

#: Damped rounds on the first batch, at most: eight serve a long tail, a hinge needs more.
FIRST_ROUNDS = 40


class OnlineFit:
    """Coefficients and summed curvature of a stream of batches.

    Parameters
    ----------
    size
        d, the number of coefficients with the intercept.
    first
        "fitted" linearises the first batch at its own damped fit. "one-step" is the paper's: from
        zero, where its loss has no curvature and the ridge alone sets the length of the step.
    balance
        Class weights of each batch from the counts of the batches before; None for none. It
        belongs to this fit, which adds to it.

    Attributes
    ----------
    coefficients
        Shape (d,); zero at the start.
    curvature
        Summed curvature with its ridge, shape (d, d).
    records, batches
        How many were folded.

    Raises
    ------
    ConfigError
        If size < 1 or `first` is unknown.
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
        if size < 1:
            raise ConfigError("size must be >= 1")
        if first not in ("fitted", "one-step"):
            raise ConfigError("first must be fitted or one-step")
        self.loss, self.ridge, self.size = loss, ridge, size
        self.first, self.balance = first, balance
        self.coefficients = np.zeros(size)
        self.curvature = np.zeros((size, size))
        self.records = self.batches = 0

    @property
    def guarantee(self) -> str:
        """What is kept private, in one sentence."""
        return FEDERATED

    def update(self, clients: Sequence[Records]) -> Vector:
        """Fold one batch, given as the records of each client; return the new coefficients.

        Raises
        ------
        NumericError
            If the summed curvature is singular, or the first batch alone has no best fit. The
            state is then as it was.
        DataError
            If a client's records do not have d coefficients, or there are none.
        """
        if any(client.size != self.size for client in clients):
            raise DataError(f"clients must have {self.size - 1} features, as the first batch had")
        if sum(len(client) for client in clients) == 0:
            raise DataError("clients must hold at least one record")
        batch = [self._prepared(client) for client in clients]
        at = self.coefficients
        if self.batches == 0 and self.first == "fitted":
            at = federated_fit(self.loss, batch, self.ridge, rounds=FIRST_ROUNDS).coefficients
        self._step(at, add_up((sums_at(self.loss, client, at) for client in batch), self.size))
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
        self.coefficients = at - solve_positive(curvature, gradient)
        self.curvature = curvature
        self.records += total.records
        self.batches += 1
