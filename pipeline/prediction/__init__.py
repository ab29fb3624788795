"""Predictions with an estimate: pure, and without any need for the stream behind it.

- `estimators`: the two rules of model files and what they share, with the methods that
  scikit-learn expects, and whichever of them a model file or an estimate holds.
- `scores`: record by record, where a bad record must not stop the others, and what it comes to.
"""
