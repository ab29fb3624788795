"""Learning in this process, as scikit-learn and River expect it, over the stream's own functions.

- `classifier`: the estimator.
- `stream`: windows that fill, and the run behind them.
- `conventions`: what the two libraries ask of a class, if they are there.
"""

from pipeline.learning.classifier import StreamClassifier

__all__ = ["StreamClassifier"]
