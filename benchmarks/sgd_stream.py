"""A stream of single records' gradients without payloads, with noise of the release's deviation.

It skips the log, and can be looked at anywhere.
"""

from __future__ import annotations

import math

import numpy as np

from pipeline.estimators.estimate import Estimate
from pipeline.methods.ldp_sgd.client import GradientTask
from pipeline.methods.ldp_sgd.estimate import estimate_sgd
from pipeline.methods.ldp_sgd.state import GradientBatch, SgdState
from pipeline.methods.ldp_sgd.step_rule import rule_of
from pipeline.privacy.mechanism import Channel
from pipeline.records.blocks import predictors, with_intercept
from pipeline.release.model import round_model
from pipeline.types import Matrix, Vector


class GradientStream:
    """One path along all windows, each at the newest iterate that was published."""

    def __init__(self, task: GradientTask, rng: np.random.Generator) -> None:
        self._task, self._rng = task, rng
        self._state, self._model = SgdState(rule_of(task)), task.first_model
        self._upper = np.triu_indices(task.size)

    def fold(self, features: Matrix, responses: Vector, clients: int) -> None:
        """Take one full window of each client: encoded, shapes (n, p) and (n,)."""
        task, model = self._task, self._model
        design = with_intercept(features)
        slope = task.loss.slope(predictors(design, model.coefficients), responses)
        factors = task.record_weights(design) * slope
        gradients = design * factors[:, None]
        beside = self._beside(design, slope, responses)
        if task.study.noised:
            gradients = gradients + self._noise(gradients.shape)
        watermarks = np.full(clients, model.watermark, dtype=np.int64)
        self._state.fold(
            GradientBatch(
                gradients.reshape(clients, task.slots, task.size),
                np.tile(model.coefficients, (clients, 1)),
                watermarks, watermarks, beside,
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

    def _beside(self, design: Matrix, slope: Vector, responses: Vector) -> Matrix:
        """Return the noised matrices of each window, packed, shape (windows, m)."""
        task, windows = self._task, len(design) // self._task.slots
        weights = np.broadcast_to(task.record_weights(design), slope.shape)
        factors = {"curvature": weights, "products": weights * weights * slope * slope}
        if "curvature" in task.shares:
            predictor = predictors(design, self._model.coefficients)
            factors["curvature"] = weights * task.loss.curvature(predictor, responses)
        rows = design.reshape(windows, task.slots, task.size)
        parts = [np.zeros((windows, 0))]
        for name in (name for name in factors if name in task.shares):
            weighted = rows * factors[name].reshape(windows, task.slots, 1)
            sums = np.matmul(weighted.transpose(0, 2, 1), rows)[:, *self._upper]
            if task.study.noised:
                channel = {"curvature": task.channels.curvature, "products": task.channels.products}
                sums = sums + self._matrix_noise(channel[name], windows)
            parts.append(sums)
        return np.concatenate(parts, axis=1)

    def _matrix_noise(self, channel: Channel | None, windows: int) -> Matrix:
        assert channel is not None
        beside = channel.off_diagonal().standard_deviation
        deviations = np.where(self._upper[0] == self._upper[1], channel.standard_deviation, beside)
        return deviations * self._standard((windows, len(deviations)))

    def _noise(self, shape: tuple[int, ...]) -> Matrix:
        deviations = np.array([part.standard_deviation for part in self._task.record_channels])
        # levels of privacy in equal shares
        deviation = deviations[self._rng.integers(len(deviations), size=(shape[0], 1))]
        noise: Matrix = deviation * self._standard(shape)
        return noise

    def _standard(self, shape: tuple[int, ...]) -> Matrix:
        """Return noise of variance one, of the mechanism's law."""
        if self._task.study.privacy.mechanism == "discrete-laplace":
            return self._rng.laplace(0.0, 1 / math.sqrt(2), shape)
        return self._rng.standard_normal(shape)
