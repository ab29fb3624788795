"""The text of a new study file, and other versions of a study beside it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from pipeline.errors import ConfigError
from pipeline.study.load import study_of
from pipeline.study.model import Study

TEMPLATE = """\
[study]
name = "my-study"
description = "What this study estimates, in one line"

[data]
# The column to explain, and its two values. 1.0 and JSON's true stand for "1" as well; every other
# value is refused record by record.
response = { name = "anomaly", positive = "1", negative = "0" }
# Of classes also a public guess of the share of `positive`, for plans alone: typical = 0.1. A rare
# class may need more of the budget for its counts (`veilstream study design`).
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
# Of two classes "logistic": what a feature does to the odds, and probabilities. "gdwd", a line
# between them as support vector machines draw it (distance-weighted discrimination), if it is
# enough which class, which features and in which direction; with privacy it needs a ridge.
# Of numbers "linear" and "expectile", of counts "poisson".
loss = "logistic"
# q = 1.0                     # of gdwd: its tail
# ridge: a number, part of what is estimated; without it none, but for gdwd as much as it needs
# norm_bound: a number, or "typical" to shorten the longest 1 % of a public reference population
# Where one class is rare: both classes weigh alike, none more than the maximum. All noise grows as
# many times, and with it the intervals: `veilstream study design` says how far.
# class_weights = { maximum = 3.0 }
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
records = 250                 # so many records of a client make one release at first
# growth = 0.1                # later windows hold this share of what their client has released
# seconds = 60                # close a window after this long; empty slots are null records

[stream]
partitions = 2
retention = "30d"
publish = { releases = 8, seconds = 0.5 }

[trust]
releases = "authenticated"    # of admitted clients alone; "open": of anybody who reaches the topic
# key = "..."                 # the study's public key, as `veilstream study keys` prints it
# rate = { releases = 10, of = 1000 }   # of one client, among so many records of its partition
"""


def with_features(count: int) -> str:
    """Return the template with so many features x1, x2, ... on [-1, 1]."""
    lines = "\n".join(f"x{number} = {{ min = -1, max = 1 }}" for number in range(1, count + 1))
    return re.sub(r"temperature = .*\npressure = .*", lines, TEMPLATE)


def with_tables(tables: Mapping[str, str]) -> str:
    """Return the template with other lines in some tables, by name; without those that get none."""
    parts = re.split(r"^\[(.+)\]\n", TEMPLATE, flags=re.MULTILINE)
    found = [
        f"[{name}]\n{tables.get(name, lines).strip()}\n"
        for name, lines in zip(parts[1::2], parts[2::2], strict=True)
        if tables.get(name, lines)
    ]
    return "\n".join(found)


def without_privacy(study: Study) -> Study:
    """Return the same study with its privacy off: what the noise costs is the difference."""
    tables = msgspec.to_builtins(study)
    # a name has at most 63 characters
    tables["study"]["name"] = f"{study.name[:58]}-open"
    tables["privacy"] = {"mechanism": "none"}
    return msgspec.convert(tables, Study)


def simulated(study: Study, seed: int) -> Study:
    """Return the same study with noise of the same size from a seed, which protects nobody.

    Raises ConfigError if its noise is not Gaussian, or there is none.
    """
    if study.privacy.mechanism not in ("discrete-gaussian", "insecure-simulation"):
        raise ConfigError(
            f'a simulation needs Gaussian noise, and privacy.mechanism is "'
            f'{study.privacy.mechanism}"; leave the seed out'
        )
    tables = msgspec.to_builtins(study)
    tables["study"]["name"] = f"{study.name[:53]}-simulated"
    tables["privacy"] |= {"mechanism": "insecure-simulation", "seed": seed}
    return msgspec.convert(tables, Study)


def with_keys(study: Study, changes: Mapping[str, Any], *, name: str) -> Study:
    """Return a study with some keys set otherwise; None unsets one.

    changes: Key with its tables, as in `privacy.epsilon`, to its value.
    name: What messages call the changed study.

    Raises ConfigError if a study has no such key, or the value is not allowed.
    """
    if not changes:
        return study
    tables = msgspec.to_builtins(study)
    for key, value in changes.items():
        *steps, last = key.split(".")
        table = tables
        for step in steps:
            if not isinstance(table, dict):
                break
            if table.get(step) is None:
                table[step] = {}
            table = table[step]
        if not isinstance(table, dict) or not last:
            raise ConfigError(f"{key}: a study has no such key")
        if value is None:
            table.pop(last, None)
        else:
            table[last] = value
    return study_of(tables, name=name)
