"""Predictions with an estimate: pure, and without any need for the stream behind it.

- `linear`: what the rules of model files share.
- `classifier`, `regressor`: the two rules, with the methods that scikit-learn expects.
- `files`: whichever of the two a model file or an estimate holds.
- `records`: record by record, where a bad record must not stop the others.
- `scores`: what predictions come to.
"""
