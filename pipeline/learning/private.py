"""Learners made from declared bounds alone: no study file, and parameters that a grid can search.

They need scikit-learn for its checks of X and y; what they learn with is `StreamClassifier` and
`StreamRegressor` on a study that `fit` makes from the parameters.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import ConfigError
from pipeline.learning.conventions import Classifier, Regressor, checked, checked_again
from pipeline.learning.declared import RESPONSE, Declared, Ranges, is_pair
from pipeline.learning.estimators import StreamClassifier, StreamRegressor
from pipeline.records.columns import Table
from pipeline.types import Matrix, Vector


class PrivateClassifier(Declared, Classifier):
    """A linear classifier of two classes under differential privacy, from declared bounds.

    `fit` releases one model under the guarantee, with fresh noise. Nothing is charged to any
    ledger: every `fit` on the same records is one more release of them. A grid search with k folds
    and m settings releases each record m (k - 1) times, and once more where it refits; its scores
    are computed from raw records. The two labels count as public.

    Parameters
    ----------
    ranges
        Public ranges of the features: one pair for all, a pair for each in order, or by name; in
        place of a pair what a study file declares, such as `{"min": 0, "max": 1e6, "transform":
        "asinh", "unit": 100}`. Never compute them from the data. X holds numbers: levels of a
        category are such texts as "1".
    epsilon
        Of one record, in [1e-4, 20]; `math.inf` for no privacy.
    delta
        In (0, 0.5), well below one over the number of records; None: a pure epsilon.
    loss
        "logistic", or "gdwd" (no probabilities).
    ridge
        Penalty per record.
    window
        Records of one release: later ones are linearised at what earlier ones found.
    level
        Of the intervals in `estimate_`.

    Attributes
    ----------
    study_
        The study that `fit` has made of the parameters.

    Raises
    ------
    ConfigError
        By `fit`, if a parameter is missing or not allowed.

    Warns
    -----
    RangeWarning, NotReadyWarning
        As `StreamClassifier`.
    """

    _learner: StreamClassifier

    def fit(self, X: Table, y: Any) -> PrivateClassifier:
        """Learn from X (n, p) and n labels of two classes, and forget what was before."""
        X, y = checked(self, X, y, classes=True)
        self.classes_, codes = np.unique(y, return_inverse=True)
        if len(self.classes_) != 2:
            raise ValueError(
                f"Only binary classification is supported: y has {len(self.classes_)} class(es), "
                "and there must be 2"
            )
        response = {"name": RESPONSE, "positive": "1", "negative": "0"}
        self.study_ = self._study(self._names(X.shape[1]), response)
        self._learner = StreamClassifier(self.study_).fit(X, codes)
        return self

    def predict(self, X: Table) -> NDArray[Any]:
        """Return the labels of X (n, p), in the type of y, shape (n,)."""
        X = checked_again(self, X)
        labels: NDArray[Any] = self.classes_[self._learner.predict(X)]
        return labels

    def decision_function(self, X: Table) -> Vector:
        """Return the linear predictor, in favour of `classes_[1]`, shape (n,)."""
        X = checked_again(self, X)
        return self._learner.decision_function(X)

    def predict_proba(self, X: Table) -> Matrix:
        """Return probabilities in the order of `classes_`, shape (n, 2); logistic loss only."""
        X = checked_again(self, X)
        return self._learner.predict_proba(X)


class PrivateRegressor(Declared, Regressor):
    """A linear or Poisson regression under differential privacy, from declared bounds.

    What `fit` releases, and what nobody counts, is as for `PrivateClassifier`.

    Parameters
    ----------
    ranges, epsilon, delta, ridge, window, level
        As for `PrivateClassifier`.
    response_range
        Public range (low, high) of the responses; those beyond are clipped. For counts (0, most).
    loss
        "linear" for numbers, "poisson" for counts.

    Attributes
    ----------
    study_
        The study that `fit` has made of the parameters.

    Raises
    ------
    ConfigError
        By `fit`, if a parameter is missing or not allowed.

    Warns
    -----
    RangeWarning, NotReadyWarning
        As `StreamRegressor`.
    """

    _learner: StreamRegressor

    def __init__(
        self,
        *,
        ranges: Ranges | None = None,
        response_range: tuple[float, float] | None = None,
        epsilon: float | None = None,
        delta: float | None = None,
        loss: str = "linear",
        ridge: float = 1e-3,
        window: int = 250,
        level: float = 0.95,
    ) -> None:
        super().__init__(
            ranges=ranges, epsilon=epsilon, delta=delta, loss=loss, ridge=ridge, window=window,
            level=level,
        )  # fmt: skip
        self.response_range = response_range

    def fit(self, X: Table, y: Any) -> PrivateRegressor:
        """Learn from X (n, p) and n numbers or counts, and forget what was before."""
        X, y = checked(self, X, y, classes=False)
        if not is_pair(self.response_range):
            raise ConfigError(
                "response_range: must be declared, as a pair of numbers that are never computed "
                "from the data; for example response_range=(0, 100)"
            )
        low, high = map(float, self.response_range)
        response: dict[str, object] = {"name": RESPONSE, "kind": "number", "min": low, "max": high}
        if self.loss == "poisson":
            response = {"name": RESPONSE, "kind": "count", "max": high}
        self.study_ = self._study(self._names(X.shape[1]), response)
        self._learner = StreamRegressor(self.study_).fit(X, y)
        return self

    def predict(self, X: Table) -> Vector:
        """Return the expected responses of X (n, p) in their own unit, shape (n,)."""
        X = checked_again(self, X)
        return self._learner.predict(X)
