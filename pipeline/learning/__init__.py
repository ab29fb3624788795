"""Learning in this process, as scikit-learn and River expect it, over the stream's own functions.

- `estimators`: a classifier and a regression, of a study, or of ranges and a budget.
- `learner`: what they share. `stream`: windows that fill, and values outside the public ranges.
"""

from pipeline.learning.estimators import (
    PrivateClassifier,
    PrivateRegressor,
    StreamClassifier,
    StreamRegressor,
)

__all__ = ["PrivateClassifier", "PrivateRegressor", "StreamClassifier", "StreamRegressor"]
