"""Stochastic gradient descent on locally private gradients, with intervals while it runs.

- `steps`: step sizes, their two caps, and how far a path has mixed.
- `path`: the recursion and its running sums, whole batches of releases at once.
- `critical`: critical values of random scaling, of one path or of several pooled.
- `random_scaling`, `plug_in`, `batch_means`: the intervals that those sums give.

Source of all: ldp-sgd.
"""
