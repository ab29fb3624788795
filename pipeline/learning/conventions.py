"""What scikit-learn and River ask of a class; neither is needed."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Literal

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
