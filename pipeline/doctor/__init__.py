"""A study on simulated records: whether its intervals cover as often as they say, at its size.

- `population`: the records that are drawn, from public numbers alone, and the exact target.
- `streams`: one stream of them through the study's own noise, steps and estimator.
- `coverage`: what many streams say together, with Monte Carlo errors.
- `sizes`: the rule of thumb that stands beside it.
- `verdict`: both in words.

Nothing is read and nothing is protected: noise comes from a seeded generator.
"""
