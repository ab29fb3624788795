"""The classifier of one model file, with the methods and attributes that scikit-learn expects."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline import losses
from pipeline.losses import Likelihood
from pipeline.messages.model_file import ModelFile
from pipeline.prediction.linear import LinearModel
from pipeline.records.columns import Table, by_row
from pipeline.records.response import ClassResponse, Label
from pipeline.types import Matrix, Vector


class LinearClassifier(LinearModel):
    """A fitted linear classifier; see `LinearModel` for what it reads and how it scales.

    Parameters
    ----------
    file
        The model file.
    labels
        Labels of the negative and the positive class; by default the texts of the study file.

    Attributes
    ----------
    classes_
        The two labels in ascending order, as scikit-learn needs them, shape (2,).

    Raises
    ------
    ConfigError
        If the file explains a number or a count.
    """

    explains = frozenset({"class"})
    other = "LinearRegressor"
    learner = "StreamClassifier"
    _estimator_type = "classifier"

    def __init__(self, file: ModelFile, labels: tuple[Label, Label] | None = None) -> None:
        super().__init__(file)
        negative_text, positive_text = file.response.classes
        self.response = ClassResponse(file.response.name, positive_text, negative_text)
        loss = losses.build(file.loss)
        self._likelihood = loss if isinstance(loss, Likelihood) else None
        negative, positive = labels or self.response.labels()
        self.classes_: NDArray[Any] = np.unique([negative, positive])
        #: +1 if the positive class is the second one of `classes_`, else -1.
        self._direction = 1.0 if self.classes_[1] == positive else -1.0

    def decision_function(self, X: Table) -> Vector:
        """Return a score for `classes_[1]`, shape (n,): the linear predictor, or its opposite."""
        return self._direction * self.linear_predictor(X)

    def predict(self, X: Table) -> NDArray[Any]:
        """Return the predicted labels, shape (n,); errors as `linear_predictor`."""
        positive = self.linear_predictor(X) >= 0
        labels: NDArray[Any] = self.classes_[(positive == (self._direction > 0)).astype(np.intp)]
        return labels

    @property
    def predict_proba(self) -> Callable[[Table], Matrix]:
        """The method that gives probabilities, shape (n, 2), columns in the order of `classes_`.

        Only a loss that is a likelihood has it: for generalised DWD the attribute does not exist.

        Raises
        ------
        AttributeError
            If the loss gives no probabilities.
        """
        if self._likelihood is None:
            raise AttributeError(
                f"predict_proba: the loss {self.file.loss!r} gives no probabilities; use "
                "decision_function, or a study with the loss 'logistic'"
            )
        return self._probabilities

    @property
    def coef_(self) -> Matrix:
        """Slopes of `decision_function` in the features' own units, shape (1, p)."""
        return self._direction * self._own[1][None]

    @property
    def intercept_(self) -> Vector:
        """Its value where all features are 0, shape (1,)."""
        return np.array([self._direction * self._own[0]])

    def _score(self, predictor: Vector, labels: Sequence[object], weights: Vector) -> float:
        """Return the accuracy."""
        known = np.array([sign for sign, _ in by_row(self.response.of_label, labels)])
        return float(np.average(np.where(predictor >= 0, 1.0, -1.0) == known, weights=weights))

    def positive_probability(self, predictor: Vector) -> Vector | None:
        """Return probabilities of the positive class from linear predictors, None without any."""
        if self._likelihood is None:
            return None
        return self._likelihood.probability(predictor, np.ones(len(predictor)))

    def _probabilities(self, X: Table) -> Matrix:
        likelihood = self._likelihood
        assert likelihood is not None  # noqa: S101  `predict_proba` has asked
        predictor = self.linear_predictor(X)
        signs = (-self._direction, self._direction)
        columns = [likelihood.probability(predictor, np.full(len(predictor), s)) for s in signs]
        return np.column_stack(columns)
