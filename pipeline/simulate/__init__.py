"""A study on simulated records: whether its intervals cover as often as they say, at its size.

- `coverage`: streams of them through the study's own noise, steps and estimator, and what many of
  them say together, with Monte Carlo errors, and in words.
- `method_checks`: what every method must keep; those of others can be tested with it, too.

Nothing is read and nothing is protected: noise comes from a seeded generator.
"""
