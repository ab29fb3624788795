"""What the linear rules of model files share: reading, writing, and the linear predictor."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal, NoReturn, TypeVar

import numpy as np

from pipeline.errors import ConfigError, DataError
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
from pipeline.records.columns import Table, labels_of, values_of
from pipeline.release.task import Task
from pipeline.types import Matrix, Vector

Model = TypeVar("Model", bound="LinearModel")
Rule = TypeVar("Rule")


def read_rule(path: str | Path, make: Callable[[ModelFile], Rule]) -> Rule:
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
