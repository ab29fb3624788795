"""What all learners share, and the conventions of scikit-learn and River that they keep."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import ConfigError, DataError, NumericError
from pipeline.learning.stream import Stream
from pipeline.messages.estimate import EstimateMessage
from pipeline.messages.model_file import ModelFile
from pipeline.prediction.estimators import LinearModel
from pipeline.records.columns import Table
from pipeline.records.values import Record
from pipeline.study.model import Study
from pipeline.study_file.load import StudySource, read_study
from pipeline.types import Vector

if TYPE_CHECKING:

    class Classifier:
        """The base class of a classifier: scikit-learn's own, where it is installed."""

    class Regressor:
        """The base class of a regression, likewise."""

else:
    try:
        from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin

        class Classifier(ClassifierMixin, BaseEstimator):
            """A classifier of scikit-learn for two classes."""

            def __sklearn_tags__(self):
                tags = super().__sklearn_tags__()
                tags.classifier_tags.multi_class = False
                return tags

        class Regressor(RegressorMixin, BaseEstimator):
            """A regression of scikit-learn."""

    except ImportError:

        class Classifier:
            """A plain class: scikit-learn is not installed."""

        class Regressor:
            """A plain class: scikit-learn is not installed."""


def tell_river(kind: type, role: Literal["Classifier", "Regressor"]) -> None:
    """Make River's metrics take a class for what it is, where River has been imported."""
    river = sys.modules.get("river.base")
    if river is not None:
        getattr(river, role).register(kind)


def checked(learner: Any, X: Any, y: Any, *, classes: bool) -> tuple[Any, Any]:
    """Check X and y of a fit as scikit-learn does, and keep what it keeps of their columns.

    Returns: X as floats of shape (n, p), and y of shape (n,).

    Raises ConfigError if scikit-learn is not installed; ValueError if their shapes do not fit, or a
    value is missing or not finite; of X it may be missing where a range says what is read then.
    """
    _require("fit")
    from sklearn.utils.multiclass import (  # noqa: PLC0415  scikit-learn is optional
        check_classification_targets,
        type_of_target,
    )
    from sklearn.utils.validation import column_or_1d, validate_data  # noqa: PLC0415

    X, y = validate_data(
        learner, X, y, dtype="float64", y_numeric=not classes, ensure_all_finite=learner.finite
    )
    if classes:
        check_classification_targets(y)
        kind = type_of_target(y, input_name="y", raise_unknown=True)
        if kind != "binary":
            raise ValueError(
                f"Only binary classification is supported. The type of the target is {kind}."
            )
    return X, column_or_1d(y, warn=True)


def checked_again(learner: Any, X: Any) -> Any:
    """Check X of a prediction against that of the fit; errors as in `checked`.

    Raises NotFittedError if there has been no fit; scikit-learn's own.
    """
    _require("predict")
    from sklearn.utils.validation import check_is_fitted, validate_data  # noqa: PLC0415

    check_is_fitted(learner)
    return validate_data(learner, X, reset=False, dtype="float64", ensure_all_finite=learner.finite)


def _require(method: str) -> None:
    try:
        import sklearn  # noqa: F401, PLC0415
    except ImportError:
        raise ConfigError(
            f"{method}: learners with declared ranges need scikit-learn, which is not installed; "
            "the operator must install it, or use StreamClassifier or StreamRegressor"
        ) from None


#: The client of records that name none.
CLIENT = "client"
Rule = TypeVar("Rule", bound=LinearModel)
Learner = TypeVar("Learner", bound="StreamLearner[Any]")


class StreamLearner(Generic[Rule]):
    """A linear model over windows of records, private if its study is.

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

    Warns
    -----
    DataWarning
        While learning, once of each column without a value in a record: docs/missing.md.
    RangeWarning
        While learning, once of each feature whose values lie outside the declared range, or use
        only a sliver of it; how many there are is in `outside_`, and stays in this process.
    NotReadyWarning
        By a prediction from an estimate that is not ready, once for each status.

    Raises
    ------
    ConfigError
        By the first method that needs the study: if its response is of a kind for another class.
    """

    #: Kinds of responses that are learnt, and the class for the others.
    explains: ClassVar[frozenset[str]]
    other: ClassVar[str]
    _made_of: type[Rule]

    def __init__(self, study: StudySource) -> None:
        self.study = study
        tell_river(type(self), "Regressor" if "number" in self.explains else "Classifier")
        self._stream: Stream | None = None
        self._made: tuple[ModelFile, Rule] | None = None

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the parameters by name."""
        del deep
        return {"study": self.study}

    def set_params(self: Learner, **params: Any) -> Learner:
        """Set parameters; they count from the next `fit` on.

        Raises
        ------
        ConfigError
            If there is no such parameter.
        """
        for name, value in params.items():
            if name != "study":
                raise ConfigError(
                    f"{type(self).__name__} has no parameter {name!r}; allowed: 'study'"
                )
            self.study = value
        return self

    def fit(self: Learner, X: Table, y: Any) -> Learner:
        """Forget everything and learn from X and y, as one client, in this order.

        Parameters
        ----------
        X
            An array (n, p) in the study's order of features, a data frame with their names, or a
            list of records; n >= 1.
        y
            n responses: numbers or counts in their own unit; or labels, as texts of the study file
            or as the numbers or truth values that they stand for.

        Raises
        ------
        DataError
            If X or y has the wrong shape, holds a value or response that cannot be used, or no
            record with all of them.
        NumericError
            If no estimate can be formed.
        """
        self._stream = Stream(self._study())
        self._stream.take(X, y, CLIENT)
        if not self._stream.watch.records:
            raise DataError("X holds no records with a response and all values that they need")
        self._stream.close_windows()
        self._stream.watch.tell()
        return self

    def partial_fit(self: Learner, X: Table, y: Any, *, client: str = CLIENT) -> Learner:
        """Go on with more records of a client, and release the windows that they fill.

        Without noise, any split of the same records into calls gives the same sums, bit by bit.

        Parameters
        ----------
        X, y
            As in `fit`; n may be 0.
        client
            Whose records they are: a window holds records of one client.

        Raises
        ------
        DataError
            As `fit`; then none of these records has been taken.
        NumericError
            As `fit`.
        """
        stream = self._started()
        stream.take(X, y, client)
        stream.watch.tell()
        return self

    def learn_one(self, x: Record, y: Any, *, client: str = CLIENT) -> None:
        """Go on with one record.

        Raises
        ------
        RecordError
            If a feature is no finite number, or the response cannot be used.
        """
        stream = self._started()
        stream.take_one(x, y, client)
        stream.watch.tell()

    def close_windows(self: Learner) -> Learner:
        """Release the windows that are not full, each as a release of its own."""
        self._started().close_windows()
        return self

    def linear_predictor(self, X: Table) -> Vector:
        """Return intercept + features times slopes, shape (n,); see `LinearModel`."""
        return self._ready_rule().linear_predictor(X)

    def score(self, X: Table, y: Any, sample_weight: Any = None) -> float:
        """Return the accuracy of a classifier, or R^2 of a regression; see `LinearModel.score`."""
        return self._ready_rule().score(X, y, sample_weight)

    @property
    def coef_(self) -> NDArray[np.float64]:
        """Slopes in the features' own units, as scikit-learn shapes them; see the rule's."""
        return self._fitted("coef_").coef_

    @property
    def intercept_(self) -> NDArray[np.float64] | float:
        """The linear predictor where all features are 0."""
        return self._fitted("intercept_").intercept_

    def to_model(self) -> Rule:
        """Return the newest estimate as a model that can be saved, in the study's own terms.

        Errors as `predict`.
        """
        return self._made_of(self._file())

    @property
    def estimate_(self) -> EstimateMessage:
        """The newest estimate with its guarantee, as `veilstream fit` gives it."""
        if self._stream is None or not self._stream.released:
            raise AttributeError("estimate_: no window has been released yet; use fit")
        return self._stream.estimate()

    @property
    def outside_(self) -> dict[str, int]:
        """How many values lay outside their public range, by column; from raw data, not private."""
        return {} if self._stream is None else dict(self._stream.watch.outside)

    @property
    def feature_names_in_(self) -> NDArray[Any]:
        """Names of the features, shape (p,)."""
        if self._stream is None:
            raise AttributeError("feature_names_in_: no record has come yet; use fit")
        return np.array(self._stream.task.study.feature_names, dtype=object)

    @property
    def n_features_in_(self) -> int:
        """How many features there are."""
        return len(self.feature_names_in_)

    def __sklearn_is_fitted__(self) -> bool:
        return self._stream is not None and self._stream.released

    def _started(self) -> Stream:
        if self._stream is None:
            self._stream = Stream(self._study())
        return self._stream

    def _study(self) -> Study:
        study = read_study(self.study)
        kind = study.data.response.kind
        if kind not in self.explains:
            raise ConfigError(
                f"data.response.kind: this study explains a {kind}, which {type(self).__name__} "
                f"does not learn; the caller must use {self.other}"
            )
        return study

    def _file(self) -> ModelFile:
        if self._stream is None or not self._stream.released:
            raise NumericError(
                "no window has been released yet: the caller must use fit, or close_windows after "
                "partial_fit or learn_one"
            )
        return self._stream.file()

    def _fitted(self, attribute: str) -> Rule:
        if not self.__sklearn_is_fitted__():
            raise AttributeError(f"{attribute}: no window has been released yet; use fit")
        return self._rule()

    def _ready_rule(self) -> Rule:
        """Return the newest rule for predictions, and warn if its estimate is not ready."""
        rule = self._rule()
        stream = self._started()
        stream.watch.tell_unready(stream.estimate())
        return rule

    def _rule(self) -> Rule:
        """Return the newest rule; made once for each estimate."""
        file = self._file()
        if self._made is None or self._made[0] is not file:
            self._made = file, self._make_own(file)
        return self._made[1]

    def _make_own(self, file: ModelFile) -> Rule:
        """Return the rule of a model file, as the caller writes responses."""
        return self._made_of(file)
