"""Parameters of a learner to the study that they mean: public ranges, a budget, a loss."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any, TypeAlias, TypeGuard

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import ConfigError
from pipeline.learning.learner import StreamLearner
from pipeline.messages.estimate import EstimateMessage
from pipeline.study.model import Study
from pipeline.study_file.load import study_of

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
        ridge: float = 1e-3,
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
        return tags

    def _fitted(self, attribute: str) -> StreamLearner[Any]:
        if not hasattr(self, "_learner"):
            raise AttributeError(f"{attribute}: nothing has been learnt yet; use fit")
        return self._learner

    def _study(self, names: Sequence[str], response: Mapping[str, object]) -> Study:
        return study_of(
            {
                "study": {"name": "declared"},
                "data": {"response": response, "features": self._features(names)},
                "estimator": {"loss": self.loss, "ridge": self.ridge, "level": self.level},
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
        return {key: float(v) if isinstance(v, int) else v for key, v in given.items()}
    low, high = given
    return {"min": float(low), "max": float(high)}
