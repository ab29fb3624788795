"""Learning in this process, as scikit-learn and River expect it, over the stream's own functions.

- `estimators`: a classifier and a regression, of a study.
- `private`: the same of ranges and a budget, without a study file; `declared`: their study.
- `learner`: what they share.
- `stream`: windows that fill, and the run behind them.
- `watching`: values outside the public ranges.
- `conventions`: what the two libraries ask of a class, if they are there.
"""

from pipeline.learning.estimators import (
    PrivateClassifier,
    PrivateRegressor,
    StreamClassifier,
    StreamRegressor,
)

__all__ = ["PrivateClassifier", "PrivateRegressor", "StreamClassifier", "StreamRegressor"]
