"""Predictions with an estimate: pure, and without any need for the stream behind it.

- `classifier`: the rule of one model file, with the methods that scikit-learn expects.
- `records`: record by record, where a bad record must not stop the others.
"""

from pipeline.prediction.classifier import LinearClassifier
from pipeline.prediction.records import Confusion, Prediction, predict_records

__all__ = ["Confusion", "LinearClassifier", "Prediction", "predict_records"]
