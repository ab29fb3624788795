"""Learning in this process, as scikit-learn and River expect it, over the stream's own functions.

- `classifier`, `regressor`: the estimators.
- `learner`: what they share.
- `stream`: windows that fill, and the run behind them.
- `conventions`: what the two libraries ask of a class, if they are there.
"""

from pipeline.learning.classifier import StreamClassifier
from pipeline.learning.regressor import StreamRegressor

__all__ = ["StreamClassifier", "StreamRegressor"]
