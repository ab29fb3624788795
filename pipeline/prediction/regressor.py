"""The regression of one model file: a linear or a Poisson one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pipeline import losses
from pipeline.errors import ConfigError
from pipeline.losses import Regression, Terms
from pipeline.messages.model_file import ModelFile
from pipeline.prediction.linear import LinearModel
from pipeline.records.columns import Table, by_row
from pipeline.records.response import NumberResponse
from pipeline.types import Vector


class LinearRegressor(LinearModel):
    """A fitted regression of a number or a count; see `LinearModel` for what it reads.

    Parameters
    ----------
    file
        The model file.

    Raises
    ------
    ConfigError
        If the file explains classes.
    """

    explains = frozenset({"number", "count"})
    other = "LinearClassifier"
    learner = "StreamRegressor"
    _estimator_type = "regressor"

    def __init__(self, file: ModelFile) -> None:
        super().__init__(file)
        response = file.response
        self.response = NumberResponse(
            response.name, *response.ends, whole=response.kind == "count"
        )
        terms = Terms(largest=response.ends[1], noised=file.privacy.mechanism != "none")
        loss = losses.build(file.loss, terms)
        if not isinstance(loss, Regression):
            raise ConfigError(f"the loss {file.loss!r} has no expected response")
        self._regression = loss

    def predict(self, X: Table) -> Vector:
        """Return the expected responses in the response's own unit, shape (n,).

        They are finite. A linear regression may pass the public range of the response; a count is
        at least 0, and with noise at most the largest count that the study declares. Errors are
        those of `linear_predictor`.
        """
        return self.mean_of(self.linear_predictor(X))

    @property
    def coef_(self) -> Vector:
        """Slopes of `linear_predictor` in the features' own units, shape (p,)."""
        return self._own[1]

    @property
    def intercept_(self) -> float:
        """Its value where all features are 0."""
        return self._own[0]

    def _score(self, predictor: Vector, labels: Sequence[object], weights: Vector) -> float:
        """Return R^2: 1 - squared errors / squares about the mean, of responses as written.

        Of responses that are all equal it is 1 if they are predicted exactly, else 0.
        """
        known = np.array(by_row(self.response.value_of, labels))
        errors = float(weights @ (known - self.mean_of(predictor)) ** 2)
        if np.ptp(known) == 0:
            return float(errors == 0)
        about = float(weights @ (known - np.average(known, weights=weights)) ** 2)
        return 1.0 - errors / about

    def mean_of(self, predictor: Vector) -> Vector:
        """Return the expected responses of linear predictors, (n,) to (n,)."""
        return self._regression.mean(predictor)
