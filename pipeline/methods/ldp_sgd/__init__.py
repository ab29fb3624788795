"""Stochastic gradient descent on locally private gradients, with intervals while it runs.

- `spec`, `method`: what a study says, and what it may not.
- `client`: public numbers, noise, and the gradients of single records.
- `step_rule`: step sizes, their caps, and the matrix before the gradients.
- `path`, `state`: the recursion and its sums; the paths of a partition, also as bytes.
- `estimate`, `readiness`: the estimate, and which coefficients have an interval.
- `intervals`, `plug_in`: the intervals that those sums give, of one path or of several pooled, and
  what models off the minimum of a curved loss do to them.
- `plan`: when intervals can be hoped for.

Source of all: ldp-sgd.
"""
