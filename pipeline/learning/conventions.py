"""What scikit-learn and River ask of a class; neither is needed."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Literal

from pipeline.errors import ConfigError

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
    value is missing or not finite.
    """
    _require("fit")
    from sklearn.utils.multiclass import (  # noqa: PLC0415  scikit-learn is optional
        check_classification_targets,
        type_of_target,
    )
    from sklearn.utils.validation import column_or_1d, validate_data  # noqa: PLC0415

    X, y = validate_data(learner, X, y, dtype="float64", y_numeric=not classes)
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
    return validate_data(learner, X, reset=False, dtype="float64")


def _require(method: str) -> None:
    try:
        import sklearn  # noqa: F401, PLC0415
    except ImportError:
        raise ConfigError(
            f"{method}: learners with declared ranges need scikit-learn, which is not installed; "
            "the operator must install it, or use StreamClassifier or StreamRegressor"
        ) from None
