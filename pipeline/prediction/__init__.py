"""Predictions with an estimate: pure, and without any need for the stream behind it.

- `linear`: what the rules of model files share.
- `classifier`, `regressor`: the two rules, with the methods that scikit-learn expects.
- `files`: whichever of the two a model file or an estimate holds.
- `records`: record by record, where a bad record must not stop the others.
- `scores`: what predictions come to.
"""

from pipeline.prediction.classifier import LinearClassifier
from pipeline.prediction.files import Rule, load_model, rule_of
from pipeline.prediction.linear import LinearModel
from pipeline.prediction.records import Prediction, predict_records
from pipeline.prediction.regressor import LinearRegressor
from pipeline.prediction.scores import Confusion, Errors, Ranking

__all__ = [
    "Confusion",
    "Errors",
    "LinearClassifier",
    "LinearModel",
    "LinearRegressor",
    "Prediction",
    "Ranking",
    "Rule",
    "load_model",
    "predict_records",
    "rule_of",
]
