"""Stochastic gradient descent on locally private gradients, with intervals while it runs.

- `method`: what the rest knows of it. `task`: its public numbers; `channels`: its noise.
- `client`, `gradients`: a window to the gradients of its records.
- `server`: how releases become a path; `state`, `stored`: the paths of a partition, and as bytes.
- `spec`, `refusals`: what a study says, and what it may not. `settings`: the public rule of its
  path; `steps`: step sizes and their two caps; `scaling`: the matrix before the gradients.
  `forecast`: when intervals can be hoped for.
- `path`, `sums`, `running`: the recursion and its sums, whole batches of releases at once.
- `estimate`, `readiness`: the estimate, and which coefficients have an interval. `bending`: what
  models off the minimum of a curved loss do to it.
- `random_scaling`, `plug_in`, `intervals`: the intervals that those sums give, with
  critical values of one path or of several pooled.

Source of all: ldp-sgd.
"""
