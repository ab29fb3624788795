"""What the file of a new study of this kind says in other words than the template."""

from __future__ import annotations

from typing import Final

TABLES: Final = {
    "estimator": """\
kind = "ldp-sgd"              # each record leaves as a noised gradient of its own
loss = "logistic"             # or "linear" (with residual_bound) and "expectile", of a number
ridge = 0                     # a penalty of the slopes; intervals need none here
level = 0.95

[estimator.path]
clipping_norm = 2.0           # longer records weigh less, so that none needs more noise
releases = "gradients+curvature"    # with each window's curvature, which intervals are made of
""",
    "privacy": """\
mechanism = "discrete-gaussian"     # or "discrete-laplace", without delta
# Each record has noise of its own, so this kind needs a larger epsilon, or more records, than sums.
epsilon = 4.0
delta = 1e-6                  # well below 1 / number of records
unit = "record"               # or "user", with records = the most that one user has
neighbours = "replace-one"
""",
    "stream": """\
partitions = 1                # one path, in the order of the log
retention = "30d"
max_in_flight_windows = 1     # a client waits for a newer model after every release
publish = { releases = 1, seconds = 0.1, pause = 0.0 }
""",
}
