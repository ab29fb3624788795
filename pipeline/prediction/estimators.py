"""The linear rules of model files: a classifier and a regressor, read, written, and predicting."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal, NoReturn, TypeAlias, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from pipeline import losses
from pipeline.errors import ConfigError, DataError
from pipeline.losses import Likelihood, Regression, Terms
from pipeline.messages.estimate import EstimateMessage
from pipeline.messages.model_file import (
    ModelFile,
    check_origin,
    compose_model_file,
    features_of,
    read_model_file,
    write_model_file,
)
from pipeline.messages.results import FitMessage
from pipeline.records.columns import Table, by_row, labels_of, values_of
from pipeline.records.features import ClassResponse, Label, NumberResponse
from pipeline.release.task import Task
from pipeline.types import Matrix, Vector

Model = TypeVar("Model", bound="LinearModel")
Made = TypeVar("Made")


def read_rule(path: str | Path, make: Callable[[ModelFile], Made]) -> Made:
    """Read a model file and make its rule; what is wrong with either names the path.

    Raises ConfigError, as `LinearModel.load`.
    """
    try:
        payload = Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot read the model file {path}: {error.strerror}") from error
    try:
        return make(read_model_file(payload))
    except ConfigError as error:
        raise ConfigError(f"the model file {path} cannot be used: {error}") from None


class LinearModel(ABC):
    """The linear predictor of one model file; it only predicts, and never changes.

    Every method takes X as an array (n, k) in the study's order of features, as a data frame with
    columns of their names, or as a list of mappings. Values are clipped to the public ranges and
    scaled as clients do. A prediction for a raw record says something of that record; the guarantee
    of the model does not cover it.

    Parameters
    ----------
    file
        The model file.

    Attributes
    ----------
    feature_names_in_, n_features_in_
        Names of the features, shape (k,), and how many there are.

    Raises
    ------
    ConfigError
        If the file explains another kind of response.
    """

    #: Kinds of responses that a class of models predicts, and the class for the others.
    explains: ClassVar[frozenset[str]]
    other: ClassVar[str]
    #: The class of `pipeline.learning` that learns such models.
    learner: ClassVar[str]
    #: What scikit-learn asks; before its version 1.6 under this very name.
    _estimator_type: ClassVar[Literal["classifier", "regressor"]]

    def __init__(self, file: ModelFile) -> None:
        kind = file.response.kind
        if kind not in self.explains:
            raise ConfigError(
                f"it explains a {kind} (loss {file.loss!r}), which {type(self).__name__} does not "
                f"predict; the caller must use {self.other}"
            )
        self.file = file
        self.features = features_of(file)
        coefficients = np.array([coefficient.value for coefficient in file.coefficients])
        self._intercept, self._slopes = float(coefficients[0]), coefficients[1:]
        #: The same in the features' own units, for records within the ranges: others are clipped.
        self._own = self.features.encoding.own_units(self._intercept, self._slopes)
        self.feature_names_in_ = np.array(self.features.columns, dtype=object)
        self.n_features_in_ = len(self.features.columns)

    @classmethod
    def of(cls: type[Model], task: Task, message: EstimateMessage | FitMessage) -> Model:
        """Return the rule of an estimate, or of the fit of a published method.

        Raises
        ------
        ConfigError
            If the estimate belongs to another study or revision.
        NumericError
            If nothing has been folded yet.
        """
        return cls(compose_model_file(task, message))

    @classmethod
    def load(cls: type[Model], path: str | Path) -> Model:
        """Read a model file.

        Raises
        ------
        ConfigError
            If it cannot be read, is no model file of this version, or explains another kind of
            response.
        """
        return read_rule(path, cls)

    def save(self, path: str | Path) -> None:
        """Write the model file; what was there is replaced in one step.

        Raises
        ------
        ConfigError
            If it cannot be written.
        """
        target = Path(path).resolve()
        if target.exists() and not target.is_file():
            raise ConfigError(f"cannot write the model file {path}: it is not a regular file")
        draft = target.with_name(f"{target.name}.new")
        try:
            draft.write_bytes(write_model_file(self.file))
            draft.replace(target)
        except OSError as error:
            raise ConfigError(f"cannot write the model file {path}: {error.strerror}") from error

    def check_study(self, task: Task) -> None:
        """Refuse a model of another study or revision.

        Raises ConfigError, naming both.
        """
        check_origin(task, self.file.study, self.file.study_revision, "the model file")

    def linear_predictor(self, X: Table) -> Vector:
        """Return intercept + columns of the features times slopes.

        It is >= 0 for the positive class, the expected response of a linear regression in its own
        unit, or the logarithm of an expected count.

        Returns
        -------
        Vector
            Shape (n,), finite. That of a record does not depend on the records beside it.

        Raises
        ------
        DataError
            If X has the wrong shape, lacks a column, or holds a value that is no finite number.
        """
        return self.predictor_of_values(values_of(X, self.features))

    def predictor_of_values(self, values: Matrix) -> Vector:
        """Return the linear predictors of values as `Features` reads them, (n, k) to (n,)."""
        columns = self.features.encode(self.features.clip(np.ascontiguousarray(values)))
        # row by row: a matrix product may round a row otherwise when there are more of them
        predictor: Vector = self._intercept + np.sum(columns * self._slopes, axis=1)
        return predictor

    def score(self, X: Table, y: Any, sample_weight: Any = None) -> float:
        """Return how well records are predicted; what it measures is the subclass's.

        Parameters
        ----------
        X, y
            As for prediction and as for learning.
        sample_weight
            Weights of the records, shape (n,); by default all weigh the same.

        Raises
        ------
        DataError
            If X or y cannot be used, or there are no records.
        """
        predictor = self.linear_predictor(X)
        labels = labels_of(y, len(predictor))
        if not labels:
            raise DataError("X holds no records, so there is nothing to score")
        weights = np.ones(len(predictor)) if sample_weight is None else np.asarray(sample_weight)
        return self._score(predictor, labels, weights)

    @property
    @abstractmethod
    def coef_(self) -> Matrix | Vector:
        """Slopes in the features' own units, as scikit-learn shapes them; one for each column.

        Of a feature with a transform t they are per unit of t(x), of a level beside the base.
        """

    @property
    @abstractmethod
    def intercept_(self) -> Vector | float:
        """The linear predictor where numbers are 0 and categories at their base."""

    @abstractmethod
    def _score(self, predictor: Vector, labels: Sequence[object], weights: Vector) -> float:
        """Return the score of linear predictors (n,) beside responses as the caller writes them."""

    def fit(self, *_: object, **__: object) -> NoReturn:
        """Refuse: scikit-learn takes nothing without this method for an estimator.

        Raises
        ------
        ConfigError
            Always.
        """
        raise ConfigError(
            "a model of a file is not fitted anew; wrap it in sklearn.frozen.FrozenEstimator, or "
            f"use pipeline.learning.{self.learner} to learn"
        )

    def __sklearn_is_fitted__(self) -> bool:
        return True

    def __sklearn_tags__(self) -> object:
        from sklearn.utils import ClassifierTags, RegressorTags, Tags, TargetTags  # noqa: PLC0415

        own = {
            "classifier": {"classifier_tags": ClassifierTags(multi_class=False)},
            "regressor": {"regressor_tags": RegressorTags()},
        }
        kind = self._estimator_type
        return Tags(estimator_type=kind, target_tags=TargetTags(required=True), **own[kind])


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
