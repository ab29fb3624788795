"""The linear rule of one model file, with the methods and attributes that scikit-learn expects."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from pipeline import losses
from pipeline.errors import ConfigError
from pipeline.local.columns import Table, values_of
from pipeline.local.encode import Features
from pipeline.local.plan import Plan
from pipeline.local.response import ClassResponse, Label
from pipeline.losses import Likelihood
from pipeline.messages.estimate import EstimateMessage
from pipeline.messages.model_file import (
    ModelFile,
    check_origin,
    compose_model_file,
    read_model_file,
    write_model_file,
)
from pipeline.types import Matrix, Vector


class LinearClassifier:
    """A fitted linear classifier; it only predicts, and never changes.

    Every method takes X as an array (n, p) in the study's order of features, as a data frame with
    columns of their names, or as a list of mappings. Values are clipped to the public ranges and
    scaled as clients do. A prediction for a raw record says something of that record; the guarantee
    of the model does not cover it.

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
    feature_names_in_, n_features_in_
        Names of the features, shape (p,), and how many there are.

    Raises
    ------
    ConfigError
        If the file names a loss that this program does not know, or one of no classes.
    """

    #: What scikit-learn before 1.6 asks.
    _estimator_type = "classifier"

    def __init__(self, file: ModelFile, labels: tuple[Label, Label] | None = None) -> None:
        self.file = file
        self.features = Features(
            {feature.name: (feature.min, feature.max) for feature in file.features},
            unit=file.scaling == "unit",
        )
        negative_text, positive_text = file.response.classes
        self.response = ClassResponse(file.response.name, positive_text, negative_text)
        loss = losses.build(file.loss)
        if loss.responses != "class":
            raise ConfigError(f"the loss {file.loss!r} explains no classes")
        self._likelihood = loss if isinstance(loss, Likelihood) else None
        coefficients = np.array([coefficient.value for coefficient in file.coefficients])
        self._intercept, self._slopes = float(coefficients[0]), coefficients[1:]
        negative, positive = labels or self.response.labels()
        self.classes_: NDArray[Any] = np.unique([negative, positive])
        self.feature_names_in_ = np.array(self.features.names, dtype=object)
        self.n_features_in_ = len(self.features.names)
        #: +1 if the positive class is the second one of `classes_`, else -1.
        self._direction = 1.0 if self.classes_[1] == positive else -1.0

    @classmethod
    def of(cls, plan: Plan, message: EstimateMessage) -> LinearClassifier:
        """Return the rule of an estimate.

        Raises
        ------
        ConfigError
            If the estimate belongs to another study or revision.
        NumericError
            If nothing has been folded yet.
        """
        return cls(compose_model_file(plan, message))

    @classmethod
    def load(cls, path: str | Path) -> LinearClassifier:
        """Read a model file.

        Raises
        ------
        ConfigError
            If it cannot be read, or is no model file of this version.
        """
        try:
            payload = Path(path).read_bytes()
        except OSError as error:
            raise ConfigError(f"cannot read the model file {path}: {error.strerror}") from error
        try:
            return cls(read_model_file(payload))
        except ConfigError as error:
            raise ConfigError(f"the model file {path} cannot be used: {error}") from None

    def save(self, path: str | Path) -> None:
        """Write the model file; what was there is replaced in one step.

        Raises
        ------
        ConfigError
            If it cannot be written.
        """
        target = Path(path).resolve()
        if target.exists() and not target.is_file():
            raise ConfigError(f"cannot write the model file {path}: it is no regular file")
        draft = target.with_name(f"{target.name}.new")
        try:
            draft.write_bytes(write_model_file(self.file))
            draft.replace(target)
        except OSError as error:
            raise ConfigError(f"cannot write the model file {path}: {error.strerror}") from error

    def check_study(self, plan: Plan) -> None:
        """Refuse a model of another study or revision.

        Raises
        ------
        ConfigError
            Naming both.
        """
        check_origin(plan, self.file.study, self.file.study_revision, "the model file")

    def linear_predictor(self, X: Table) -> Vector:
        """Return intercept + features times slopes; it is >= 0 for the study's positive class.

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
        """Return the linear predictors of finite values in their own units, (n, p) to (n,)."""
        scaled = self.features.scale(self.features.clip(np.ascontiguousarray(values)))
        # row by row: a matrix product may round a row otherwise when there are more of them
        predictor: Vector = self._intercept + np.sum(scaled * self._slopes, axis=1)
        return predictor

    def decision_function(self, X: Table) -> Vector:
        """Return a score for `classes_[1]`, shape (n,): the linear predictor, or its opposite.

        Raises
        ------
        DataError
            As `linear_predictor`.
        """
        return self._direction * self.linear_predictor(X)

    def predict(self, X: Table) -> NDArray[Any]:
        """Return the predicted labels, shape (n,).

        Raises
        ------
        DataError
            As `linear_predictor`.
        """
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

    def fit(self, *_: object, **__: object) -> NoReturn:
        """Refuse: scikit-learn takes nothing without this method for an estimator.

        Raises
        ------
        ConfigError
            Always.
        """
        raise ConfigError(
            "a model of a file is not fitted anew; wrap it in sklearn.frozen.FrozenEstimator, or "
            "use pipeline.learning.StreamClassifier to learn"
        )

    def __sklearn_is_fitted__(self) -> bool:
        return True

    def __sklearn_tags__(self) -> object:
        from sklearn.utils import ClassifierTags, Tags, TargetTags  # noqa: PLC0415  only it asks

        return Tags(
            estimator_type="classifier",
            target_tags=TargetTags(required=True),
            classifier_tags=ClassifierTags(multi_class=False),
        )
