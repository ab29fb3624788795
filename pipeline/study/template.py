"""The commented study file that `veilstream study init` writes."""

from __future__ import annotations

import re

TEMPLATE = """\
[study]
name = "my-study"
description = "What this study estimates, in one line"

[data]
# The column to explain, and its two values. 1.0 and JSON's true stand for "1" as well; every other
# value is refused record by record.
response = { name = "anomaly", positive = "1", negative = "0" }
# A number, for loss = "linear": { name = "power", kind = "number", min = 0, max = 100 }
# A count, for loss = "poisson": { name = "visits", kind = "count", max = 50 }
# interactions = ["temperature:pressure"]
scaling = "unit"              # public ranges are mapped to [-1, 1]; "none" keeps units

[data.features]
# Public ranges: what the instrument or the form can show. Never compute them from the data.
# Noise is made for the range: say where in it the values are (docs/features.md).
temperature = { min = -40, max = 120 }
pressure = { min = 0, max = 10 }
# amount = { min = 0, max = 1e6, transform = "asinh", unit = 100, typical = 2000 }
# region = { kind = "category", levels = ["north", "south"], base = "north" }

[estimator]
# kind = "ldp-sgd"     # or a published method for `veilstream fit`: docs/methods/published.md
loss = "gdwd"                 # generalised DWD, or "logistic"; "linear", "poisson"
q = 1.0
# ridge: a number, part of what is estimated; without it, with privacy, as much as intervals need
# norm_bound: a number, or "typical" to shorten the longest 1 % of a public reference population
class_weights = { maximum = 8.0 }   # remove the line for unweighted classes
# residual_bound = 5          # of linear: the largest residual that counts in full; sets the noise
# noise_scale = 2             # of linear: the residuals' standard deviation, if it is known
level = 0.95
# Let old releases fade, by half after so many records of all clients (or "seconds"):
# forgetting = { half_life = 50000, of = "records" }

[privacy]
mechanism = "discrete-gaussian"     # "none" (without epsilon and delta): no privacy, loudly
epsilon = 1.0
delta = 1e-6                  # well below 1 / number of records
unit = "record"               # or "user", with records = the most that one user has
neighbours = "zero-out"       # or "replace-one"

[window]
records = 250                 # so many records of a client make one release
# seconds = 60                # close a window after this long; empty slots are null records

[stream]
partitions = 2
retention = "30d"
publish = { releases = 8, seconds = 0.5 }

[trust]
releases = "authenticated"    # of admitted clients alone; "open": of anybody who reaches the topic
# key = "..."                 # the study's public key, as `veilstream study keys` prints it
"""


def with_features(count: int) -> str:
    """Return the template with so many features x1, x2, ... on [-1, 1]."""
    lines = "\n".join(f"x{number} = {{ min = -1, max = 1 }}" for number in range(1, count + 1))
    return re.sub(r"temperature = .*\npressure = .*", lines, TEMPLATE)
