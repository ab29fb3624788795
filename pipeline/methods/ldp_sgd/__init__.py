"""Stochastic gradient descent on locally private gradients, with intervals while it runs.

- `method`: what the rest knows of it. `task`: its public numbers; `channels`: its noise.
- `client`, `gradients`: a window to the gradients of its records.
- `server`: how releases become a path; `state`, `stored`: the paths of a partition, and as bytes.
- `settings`: the public rule of a study's path; `steps`: step sizes, their two caps, and how far a
  path has mixed.
- `path`, `sums`: the recursion and its running sums, whole batches of releases at once.
- `critical`: critical values of random scaling, of one path or of several pooled.
- `random_scaling`, `plug_in`, `batch_means`, `intervals`: the intervals that those sums give;
  `limit_law`: the exact one, for comparison.

Source of all: ldp-sgd.
"""
