"""The two rules that predict, and whichever of them a file holds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from pipeline import losses
from pipeline.errors import ConfigError
from pipeline.losses import Likelihood, Regression, Terms
from pipeline.messages.estimate import EstimateMessage
from pipeline.messages.model_file import ModelFile, compose_model_file
from pipeline.messages.results import FitMessage
from pipeline.prediction.linear import LinearModel, read_rule
from pipeline.records.columns import Table, by_row
from pipeline.records.features import ClassResponse, Label, NumberResponse
from pipeline.release.task import Task
from pipeline.types import Matrix, Vector


class LinearClassifier(LinearModel):
    """A fitted linear classifier; see `LinearModel` for what it reads and how it scales.

    Parameters
    ----------
    file
        The model file.
    labels
        Labels of the negative and the positive class; by default those of the file.

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
        negative, positive = labels or file.labels or self.response.labels()
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


Rule: TypeAlias = LinearClassifier | LinearRegressor


def load_model(path: str | Path) -> Rule:
    """Read a model file: a `LinearClassifier` of classes, a `LinearRegressor` of all else.

    Raises
    ------
    ConfigError
        If it cannot be read, or is no model file of this version.
    """
    return read_rule(path, rule_of_file)


def rule_of(task: Task, message: EstimateMessage | FitMessage, like: object = "") -> Rule:
    """Return the rule of an estimate or a fit, by the kind of response of its study.

    like: A label in the type in which labels are predicted: see `ClassResponse.labels`.

    Raises ConfigError if the estimate belongs to another study or revision; NumericError if nothing
    has been folded yet.
    """
    rule = rule_of_file(compose_model_file(task, message))
    if isinstance(rule, LinearClassifier) and not isinstance(like, str):
        labels = list(rule.response.labels(like))
        return LinearClassifier(msgspec.structs.replace(rule.file, labels=labels))
    return rule


def rule_of_file(file: ModelFile) -> Rule:
    """Return the rule of a model file that has been read."""
    return LinearClassifier(file) if file.response.kind == "class" else LinearRegressor(file)
