"""Learners: a classifier and a regression, of a study or of declared ranges and a budget.

The latter have parameters that a grid can search. They need scikit-learn for its checks of X and y;
what they learn with is `StreamClassifier` and `StreamRegressor` on a study that `fit` makes from
the parameters.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from numbers import Real
from typing import Any, TypeAlias, TypeGuard

import numpy as np
from numpy.typing import NDArray

from pipeline import losses
from pipeline.errors import ConfigError
from pipeline.learning.learner import (
    CLIENT,
    Classifier,
    Regressor,
    StreamLearner,
    checked,
    checked_again,
)
from pipeline.losses import Likelihood
from pipeline.messages.estimate import EstimateMessage
from pipeline.messages.model_file import ModelFile
from pipeline.prediction.estimators import LinearClassifier, LinearRegressor
from pipeline.records.columns import Table
from pipeline.records.features import Label
from pipeline.records.values import Record
from pipeline.study.model import Study
from pipeline.study_file.load import read_study, study_of
from pipeline.types import Matrix, Vector

#: One range for all features, one for each in order, or one by name; for a pair there may be what
#: a study file declares of a feature, such as {"min": 0, "max": 1e6, "transform": "asinh"}.
Range: TypeAlias = tuple[float, float] | Mapping[str, Any]
Ranges: TypeAlias = Range | Sequence[Range] | Mapping[str, Range]
#: What a record that no caller names is called in the study.
RESPONSE = "response"


class Declared:
    """What `PrivateClassifier` and `PrivateRegressor` share: a study, and the learner behind."""

    _learner: StreamLearner[Any]

    def __init__(
        self,
        *,
        ranges: Ranges | None = None,
        epsilon: float | None = None,
        delta: float | None = None,
        loss: str = "logistic",
        ridge: float | None = None,
        window: int = 250,
        level: float = 0.95,
    ) -> None:
        self.ranges = ranges
        self.epsilon = epsilon
        self.delta = delta
        self.loss = loss
        self.ridge = ridge
        self.window = window
        self.level = level

    @property
    def coef_(self) -> NDArray[np.float64]:
        """Slopes in the features' own units, as scikit-learn shapes them."""
        return self._fitted("coef_").coef_

    @property
    def intercept_(self) -> NDArray[np.float64] | float:
        """The linear predictor where all features are 0."""
        return self._fitted("intercept_").intercept_

    @property
    def estimate_(self) -> EstimateMessage:
        """The estimate with its guarantee, as `veilstream fit` gives it."""
        return self._fitted("estimate_").estimate_

    @property
    def outside_(self) -> dict[str, int]:
        """How many values lay outside their range, by column; from raw data, not private."""
        return self._fitted("outside_").outside_

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "_learner")

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()  # type: ignore[misc]
        tags.non_deterministic = not self._repeats
        tags.input_tags.allow_nan = self.finite == "allow-nan"
        return tags

    @property
    def finite(self) -> bool | str:
        """What scikit-learn asks of X: "allow-nan" where a range declares `missing`."""
        given: Any = self.ranges
        given = list(given.values()) if isinstance(given, Mapping) else given
        given = given if isinstance(given, Sequence) else ()
        gaps = any(isinstance(one, Mapping) and "missing" in one for one in given)
        return "allow-nan" if gaps else True

    def _fitted(self, attribute: str) -> StreamLearner[Any]:
        if not hasattr(self, "_learner"):
            raise AttributeError(f"{attribute}: nothing has been learnt yet; use fit")
        return self._learner

    def _study(self, names: Sequence[str], response: Mapping[str, object]) -> Study:
        penalty = {} if self.ridge is None else {"ridge": self.ridge}
        return study_of(
            {
                "study": {"name": "declared"},
                "data": {"response": response, "features": self._features(names)},
                "estimator": {"loss": self.loss, "level": self.level, **penalty},
                "privacy": self._privacy(),
                "window": {"records": self.window},
            },
            name=type(self).__name__,
        )

    def _features(self, names: Sequence[str]) -> dict[str, dict[str, Any]]:
        if self.ranges is None:
            raise ConfigError(
                "ranges: must be declared and never computed from the data; for example "
                "ranges=(0, 100) for all features, or ranges={'heat': (0, 100)}"
            )
        if isinstance(self.ranges, Mapping):
            missing = [name for name in names if name not in self.ranges]
            if missing:
                raise ConfigError(f"ranges: there is none for {', '.join(map(repr, missing))}")
            given = [self.ranges[name] for name in names]
        elif is_pair(self.ranges):
            given = [self.ranges] * len(names)
        else:
            given = list(self.ranges) if hasattr(self.ranges, "__iter__") else []
        if len(given) != len(names) or not all(
            isinstance(one, Mapping) or is_pair(one) for one in given
        ):
            raise ConfigError(
                f"ranges: must be one pair (low, high), or {len(names)} of them, one for each "
                "feature; in place of a pair, what a study file declares of a feature"
            )
        return {name: _declared(one) for name, one in zip(names, given, strict=True)}

    def _privacy(self) -> dict[str, object]:
        if self.epsilon is None:
            raise ConfigError(
                "epsilon: must be given; there is no default budget; for example epsilon=1.0, or "
                "epsilon=math.inf for no privacy at all"
            )
        epsilon = _number(self.epsilon, "epsilon", "a number above 0, such as 1.0, or math.inf")
        if math.isinf(epsilon):
            return {"mechanism": "none"}
        if self.delta is None:
            return {"mechanism": "discrete-laplace", "epsilon": epsilon}
        delta = _number(self.delta, "delta", "a number from 0 to 1, such as 1e-5, or None")
        return {"mechanism": "discrete-gaussian", "epsilon": epsilon, "delta": delta}

    def _names(self, features: int) -> list[str]:
        named = getattr(self, "feature_names_in_", None)
        return [f"x{i}" for i in range(features)] if named is None else [str(n) for n in named]

    @property
    def _repeats(self) -> bool:
        """Whether two fits of the same records are the same: without noise alone."""
        # whatever it is, conventions ask before a fit can refuse it
        given: Any = self.epsilon
        return isinstance(given, Real) and math.isinf(given)


def _number(given: Any, name: str, allowed: str) -> float:
    """Return a parameter that is a number; ConfigError, with what is allowed, if it is none."""
    if isinstance(given, Real) and given is not True and given is not False:
        return float(given)
    raise ConfigError(f"{name}: must be {allowed}; it is a {type(given).__name__}")


def is_pair(given: Any) -> TypeGuard[tuple[float, float]]:
    """Whether a parameter is a pair of numbers; texts, and what is True or False, are none."""
    try:
        ends = np.asarray(given)
    except (TypeError, ValueError):
        return False
    return ends.shape == (2,) and all(
        isinstance(end, Real) and not isinstance(end, bool) for end in ends.tolist()
    )


def _declared(given: Any) -> dict[str, Any]:
    """Return a range as a study file has it."""
    if isinstance(given, Mapping):
        return {key: float(v) if type(v) is int else v for key, v in given.items()}
    low, high = given
    return {"min": float(low), "max": float(high)}


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
    _made_of = LinearClassifier
    _supervised = True
    _multiclass = False

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
        if self._stream is None or self._stream.labels is None or not self._stream.released:
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

    def _make_own(self, file: ModelFile) -> LinearClassifier:
        return LinearClassifier(file, self._started().labels)

    def _probabilities(self, X: Table) -> Matrix:
        return self._ready_rule().predict_proba(X)

    def _probabilities_of_one(self, x: Record) -> dict[Label, float]:
        if self._stream is None or self._stream.labels is None or not self._stream.released:
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
    _made_of = LinearRegressor
    _supervised = True

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
        Penalty per record; None: that of a study that names none, 0 but for "gdwd".
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
        ridge: float | None = None,
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
