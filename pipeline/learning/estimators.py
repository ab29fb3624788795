"""A classifier and a regression that learn in this process, by the stream's own functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline import losses
from pipeline.learning.conventions import Classifier, Regressor, tell_river
from pipeline.learning.learner import CLIENT, StreamLearner
from pipeline.losses import Likelihood
from pipeline.messages.model_file import ModelFile
from pipeline.prediction.classifier import LinearClassifier
from pipeline.prediction.regressor import LinearRegressor
from pipeline.records.columns import Table
from pipeline.records.response import Label
from pipeline.records.values import Record
from pipeline.study_file.load import StudySource, read_study
from pipeline.types import Matrix, Vector


class StreamClassifier(StreamLearner[LinearClassifier], Classifier):
    """A linear classifier over windows of records, private if its study is.

    Windows, the guarantee and what it does not cover are those of `StreamLearner`.
    Nothing is charged to any ledger: every `fit` on the same records is one more release of them.

    Parameters
    ----------
    study
        A study, the path of a study file, or its text (a string with a line break).
    """

    explains = frozenset({"class"})
    other = "StreamRegressor"
    _supervised = True
    _multiclass = False

    def __init__(self, study: StudySource) -> None:
        super().__init__(study)
        tell_river(type(self), "Classifier")

    def partial_fit(
        self, X: Table, y: Any, *, client: str = CLIENT, classes: Sequence[Label] = ()
    ) -> StreamClassifier:
        """Go on with more records, as `StreamLearner.partial_fit`.

        Parameters
        ----------
        classes
            Labels to expect, as some tools of scikit-learn give them. The study names its classes
            itself; these are only compared with them.
        """
        self._started().check_labels(classes)
        return super().partial_fit(X, y, client=client)

    def decision_function(self, X: Table) -> Vector:
        """Return a score for `classes_[1]`, shape (n,): the linear predictor or its opposite."""
        return self._ready_rule().decision_function(X)

    def predict(self, X: Table) -> NDArray[Any]:
        """Return the predicted labels, in the type of y, shape (n,).

        Raises
        ------
        NumericError
            If no window has been released yet, or no estimate can be formed.
        DataError
            If X cannot be used.
        """
        return self._ready_rule().predict(X)

    @property
    def predict_proba(self) -> Callable[[Table], Matrix]:
        """The method for probabilities (n, 2) in the order of `classes_`; logistic loss only."""
        self._require_likelihood("predict_proba")
        return self._probabilities

    def predict_one(self, x: Record) -> Label | None:
        """Return the predicted label of one record; None before the first release."""
        if not self.__sklearn_is_fitted__():
            return None
        label: Label = self.predict([x]).tolist()[0]
        return label

    @property
    def predict_proba_one(self) -> Callable[[Record], dict[Label, float]]:
        """The method for the probability of each label; logistic loss only.

        It returns an empty dictionary before the first release.
        """
        self._require_likelihood("predict_proba_one")
        return self._probabilities_of_one

    @property
    def classes_(self) -> NDArray[Any]:
        """The two labels in ascending order, in the type in which y first gave one."""
        if self._stream is None or self._stream.labels is None:
            raise AttributeError("classes_: no label has come yet; use fit")
        return np.unique(self._stream.labels)

    def _make(self, file: ModelFile) -> LinearClassifier:
        return LinearClassifier(file)

    def _make_own(self, file: ModelFile) -> LinearClassifier:
        return LinearClassifier(file, self._started().labels)

    def _probabilities(self, X: Table) -> Matrix:
        return self._ready_rule().predict_proba(X)

    def _probabilities_of_one(self, x: Record) -> dict[Label, float]:
        if not self.__sklearn_is_fitted__():
            return {}
        [chances] = self._probabilities([x]).tolist()
        return dict(zip(self.classes_.tolist(), chances, strict=True))

    def _require_likelihood(self, method: str) -> None:
        study = read_study(self.study) if self._stream is None else self._stream.task.study
        loss = study.estimator.loss
        probable = isinstance(losses.build(loss), Likelihood)
        if not probable:
            raise AttributeError(f"{method}: the loss {loss!r} gives no probabilities")


class StreamRegressor(StreamLearner[LinearRegressor], Regressor):
    """A linear or Poisson regression over windows of records, private if its study is.

    Windows, the guarantee and what it does not cover are those of `StreamLearner`.
    Nothing is charged to any ledger: every `fit` on the same records is one more release of them.

    Responses are numbers or counts in their own unit, and so are predictions; while learning,
    responses beyond the public range of the study are clipped to it.

    Parameters
    ----------
    study
        A study, the path of a study file, or its text (a string with a line break).
    """

    explains = frozenset({"number", "count"})
    other = "StreamClassifier"
    _supervised = True

    def __init__(self, study: StudySource) -> None:
        super().__init__(study)
        tell_river(type(self), "Regressor")

    def predict(self, X: Table) -> Vector:
        """Return the expected responses in the response's own unit, shape (n,).

        Raises
        ------
        NumericError
            If no window has been released yet, or no estimate can be formed.
        DataError
            If X cannot be used.
        """
        return self._ready_rule().predict(X)

    def predict_one(self, x: Record) -> float | None:
        """Return the expected response of one record; None before the first release."""
        if not self.__sklearn_is_fitted__():
            return None
        [value] = self.predict([x]).tolist()
        return float(value)

    def _make(self, file: ModelFile) -> LinearRegressor:
        return LinearRegressor(file)
