"""A classifier that learns in this process: the windows, releases and estimates of the stream."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline import losses
from pipeline.errors import ConfigError, DataError, NumericError
from pipeline.learning.conventions import Estimator, tell_river
from pipeline.learning.stream import Stream, StudySource, study_of
from pipeline.local.columns import Table
from pipeline.local.response import Label
from pipeline.local.values import Record
from pipeline.losses import Likelihood
from pipeline.messages.estimate import EstimateMessage
from pipeline.prediction import LinearClassifier
from pipeline.types import Matrix, Vector

#: The client of records that name none.
CLIENT = "client"


class StreamClassifier(Estimator):
    """A linear classifier over windows of records, private if its study is.

    `fit` starts afresh and releases the last window even if it is short. `partial_fit` and
    `learn_one` go on: a window is released when it is full, and until then its records wait in
    memory and enter no estimate; `close_windows` releases short ones.

    **Privacy.** With a private study every window is noised before it enters a sum, with fresh
    noise of a cryptographic generator. `estimate_`, `to_model()` and predictions for other records
    then keep the study's guarantee: for one `privacy.unit` (a record, or all records of a user),
    against anyone who sees them and all other records but not this process, under
    `privacy.neighbours`. Nothing is charged to any ledger: every `fit` on the same records is one
    more release of them, the costs add up, and nobody counts them; a cross-validation with k folds
    releases each record k - 1 times. Not protected: the memory of this process; predictions for
    raw records, and scores computed from them; whatever was fitted to the data before (a scaler,
    a choice of features); how many windows there are.

    Parameters
    ----------
    study
        A study, the path of a study file, or its text (a string with a line break).
    """

    _supervised = True
    _multiclass = False

    def __init__(self, study: StudySource) -> None:
        self.study = study
        self._stream: Stream | None = None
        tell_river(type(self))

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the parameters by name."""
        del deep
        return {"study": self.study}

    def set_params(self, **params: Any) -> StreamClassifier:
        """Set parameters; they count from the next `fit` on.

        Raises
        ------
        ConfigError
            If there is no such parameter.
        """
        for name, value in params.items():
            if name != "study":
                raise ConfigError(f"StreamClassifier has no parameter {name!r}; allowed: 'study'")
            self.study = value
        return self

    def fit(self, X: Table, y: Any) -> StreamClassifier:
        """Forget everything and learn from X and y, as one client, in this order.

        Parameters
        ----------
        X
            An array (n, p) in the study's order of features, a data frame with their names, or a
            list of records; n >= 1.
        y
            n labels, as texts of the study file or as the numbers or truth values they stand for.

        Raises
        ------
        DataError
            If X or y has the wrong shape, or holds a value or label that cannot be used.
        NumericError
            If no estimate can be formed.
        """
        self._stream = Stream(study_of(self.study))
        self._stream.take(X, y, CLIENT, ())
        self._stream.close_windows()
        if not self._stream.released:
            raise DataError("X holds no records")
        return self

    def partial_fit(
        self, X: Table, y: Any, *, client: str = CLIENT, classes: Sequence[Label] = ()
    ) -> StreamClassifier:
        """Go on with more records of a client, and release the windows that they fill.

        Without noise, any split of the same records into calls gives the same sums, bit by bit.

        Parameters
        ----------
        X, y
            As in `fit`; n may be 0.
        client
            Whose records they are: a window holds records of one client.
        classes
            Labels to expect, as some tools of scikit-learn give them. The study names its classes
            itself; these are only compared with them.

        Raises
        ------
        DataError
            As `fit`; then none of these records has been taken.
        NumericError
            As `fit`.
        """
        self._started().take(X, y, client, classes)
        return self

    def learn_one(self, x: Record, y: Label, *, client: str = CLIENT) -> None:
        """Go on with one record.

        Raises
        ------
        RecordError
            If a feature is missing or no finite number, or the label is unknown.
        """
        self._started().take_one(x, y, client)

    def close_windows(self) -> StreamClassifier:
        """Release the windows that are not full, each as a release of its own."""
        self._started().close_windows()
        return self

    def linear_predictor(self, X: Table) -> Vector:
        """Return intercept + features times slopes, >= 0 for the positive class; shape (n,)."""
        return self._rule().linear_predictor(X)

    def decision_function(self, X: Table) -> Vector:
        """Return a score for `classes_[1]`, shape (n,): the linear predictor or its opposite."""
        return self._rule().decision_function(X)

    def predict(self, X: Table) -> NDArray[Any]:
        """Return the predicted labels, in the type of y, shape (n,).

        Raises
        ------
        NumericError
            If no window has been released yet, or no estimate can be formed.
        DataError
            If X cannot be used.
        """
        return self._rule().predict(X)

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

    def to_model(self) -> LinearClassifier:
        """Return the newest estimate as a model that can be saved, in the study's own labels.

        Raises
        ------
        NumericError
            As `predict`.
        """
        return LinearClassifier(self._rule().file)

    @property
    def estimate_(self) -> EstimateMessage:
        """The newest estimate with its guarantee, as `veilstream fit` gives it."""
        if self._stream is None or not self._stream.released:
            raise AttributeError("estimate_: no window has been released yet; use fit")
        return self._stream.estimate()

    @property
    def classes_(self) -> NDArray[Any]:
        """The two labels in ascending order, in the type in which y first gave one."""
        if self._stream is None or self._stream.labels is None:
            raise AttributeError("classes_: no label has come yet; use fit")
        return np.unique(self._stream.labels)

    @property
    def feature_names_in_(self) -> NDArray[Any]:
        """Names of the features, shape (p,)."""
        if self._stream is None:
            raise AttributeError("feature_names_in_: no record has come yet; use fit")
        return np.array(self._stream.plan.study.feature_names, dtype=object)

    @property
    def n_features_in_(self) -> int:
        """How many features there are."""
        return len(self.feature_names_in_)

    def __sklearn_is_fitted__(self) -> bool:
        return self._stream is not None and self._stream.released

    def _started(self) -> Stream:
        if self._stream is None:
            self._stream = Stream(study_of(self.study))
        return self._stream

    def _rule(self) -> LinearClassifier:
        if self._stream is None or not self._stream.released:
            raise NumericError(
                "no window has been released yet: the caller must use fit, or close_windows after "
                "partial_fit or learn_one"
            )
        return self._stream.rule()

    def _probabilities(self, X: Table) -> Matrix:
        return self._rule().predict_proba(X)

    def _probabilities_of_one(self, x: Record) -> dict[Label, float]:
        if not self.__sklearn_is_fitted__():
            return {}
        [chances] = self._probabilities([x]).tolist()
        return dict(zip(self.classes_.tolist(), chances, strict=True))

    def _require_likelihood(self, method: str) -> None:
        study = study_of(self.study) if self._stream is None else self._stream.plan.study
        loss = study.estimator.loss
        probable = isinstance(losses.build(loss), Likelihood)
        if not probable:
            raise AttributeError(f"{method}: the loss {loss!r} gives no probabilities")
