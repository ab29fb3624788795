"""Streams of single records' gradients without payloads, with noise of the release's deviation."""

from __future__ import annotations

import math

import numpy as np

from pipeline.estimators.estimate import Estimate
from pipeline.methods.ldp_sgd.estimate import estimate_sgd
from pipeline.methods.ldp_sgd.settings import rule_of
from pipeline.methods.ldp_sgd.state import GradientBatch, SgdState
from pipeline.methods.ldp_sgd.task import GradientTask
from pipeline.records.blocks import predictors, with_intercept
from pipeline.release.model import round_model
from pipeline.types import Matrix, Vector


class GradientStream:
    """As `methods.base.Simulation`."""

    def __init__(self, task: GradientTask, rng: np.random.Generator) -> None:
        self._task, self._rng = task, rng
        self._state, self._model = SgdState(rule_of(task)), task.first_model

    def fold(self, features: Matrix, responses: Vector, clients: int) -> None:
        """Move along the gradients of a round."""
        task, model = self._task, self._model
        design = with_intercept(features)
        slope = task.loss.slope(predictors(design, model.coefficients), responses)
        factors = task.record_weights(design) * slope
        gradients = design * factors[:, None]
        if task.study.noised:
            gradients = gradients + self._noise(gradients.shape)
        watermarks = np.full(clients, model.watermark, dtype=np.int64)
        self._state.fold(
            GradientBatch(
                gradients.reshape(clients, task.slots, task.size),
                np.tile(model.coefficients, (clients, 1)),
                watermarks, watermarks, np.zeros((clients, 0)),
            )
        )  # fmt: skip

    def publish(self) -> None:
        """Let clients linearise at the newest iterate."""
        self._model = round_model(
            self._model.version + 1, self._state.path.theta, (1.0, 1.0), self._state.slots
        )

    def estimate(self) -> Estimate:
        """Return the estimate of the path so far."""
        return estimate_sgd(self._task, self._state)

    def _noise(self, shape: tuple[int, ...]) -> Matrix:
        deviations = np.array([part.standard_deviation for part in self._task.record_channels])
        # levels of privacy in equal shares
        deviation = deviations[self._rng.integers(len(deviations), size=(shape[0], 1))]
        if self._task.study.privacy.mechanism == "discrete-laplace":
            return deviation / math.sqrt(2) * self._rng.laplace(0.0, 1.0, shape)
        noise: Matrix = deviation * self._rng.standard_normal(shape)
        return noise
