"""What scikit-learn and River ask of a class; neither is needed."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:

    class Estimator:
        """The base class of a classifier: scikit-learn's own, where it is installed."""

else:
    try:
        from sklearn.base import BaseEstimator, ClassifierMixin

        class Estimator(ClassifierMixin, BaseEstimator):
            """A classifier of scikit-learn for two classes."""

            def __sklearn_tags__(self):
                tags = super().__sklearn_tags__()
                tags.classifier_tags.multi_class = False
                return tags

    except ImportError:

        class Estimator:
            """A plain class: scikit-learn is not installed."""


def tell_river(kind: type) -> None:
    """Make River's metrics take a class for a classifier, where River has been imported."""
    river = sys.modules.get("river.base")
    if river is not None:
        river.Classifier.register(kind)
