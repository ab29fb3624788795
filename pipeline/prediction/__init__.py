"""Predictions with an estimate: pure, and without any need for the stream behind it.

- `linear`: what the rules of model files share. `estimators`: the two rules, with the methods that
  scikit-learn expects, and whichever of them a model file or an estimate holds.
- `scores`: record by record, where a bad record must not stop the others, and what it comes to.
"""
