"""The text of a new study file, and keys set in one whose other lines stay as they are."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping
from string import Template
from typing import Any

import numpy as np

from pipeline.errors import ConfigError
from pipeline.methods.base import Spec
from pipeline.study.model import Study
from pipeline.study.reference import Seen
from pipeline.study.versions import tables_with
from pipeline.study_file.load import parse_study, study_of
from pipeline.types import Matrix, Vector

#: How a comment begins that says why a key is set, and how it goes on: both are replaced when the
#: key is set again.
WHY, ON = "# proposed: ", "#   "
#: Longest line of such a comment.
WIDTH = 100

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
# A record with an empty cell is left out, unless `missing` says what is read there, typically the
# typical value; `indicator` adds a column that says so (docs/missing.md):
# humidity = { min = 0, max = 100, typical = 60, missing = 60, indicator = true }
# region = { kind = "category", levels = ["north", "south"], base = "north" }

[estimator]
# kind: a method, if not the one that most studies need: docs/methods/index.md
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


def template_of(spec: Spec, clients: int) -> str:
    """Return the template as a kind has it, for so many clients, without tables that it has not."""
    tables = {
        name: Template(text).substitute(clients=clients) for name, text in spec.template.items()
    }
    parts = re.split(r"^\[(.+)\]\n", TEMPLATE, flags=re.MULTILINE)
    found = [
        f"[{name}]\n{tables.get(name, lines).strip()}\n"
        for name, lines in zip(parts[1::2], parts[2::2], strict=True)
        if tables.get(name, lines)
    ]
    return "\n".join(found)


def with_keys(study: Study, changes: Mapping[str, Any], *, name: str) -> Study:
    """Return a study with some keys set otherwise; None unsets one.

    changes: Key with its tables, as in `privacy.epsilon`, to its value.
    name: What messages call the changed study.

    Raises ConfigError if a study has no such key, or the value is not allowed.
    """
    return study_of(tables_with(study, changes), name=name) if changes else study


#: A study with the classes of records, and these records, like which a plan expects its own; None:
#: as ranges and typical values say.
Like = tuple[Study, Seen | None]


def like(study: Study, features: Matrix, responses: Vector) -> Like:
    """Return what a plan by records is of.

    features: Encoded, shape (n, p), n >= 1.
    responses: Encoded, shape (n,); NaN where a record has none.

    Responses stand in the plan if all are there, and classes if there are both.
    """
    if not np.isfinite(responses).all():
        return study, Seen(features)
    if study.data.response.kind == "class":
        share = float(np.mean(responses > 0))
        if share in {0.0, 1.0}:
            return study, Seen(features)
        study = with_keys(study, {"data.response.typical": share}, name="the sample")
    return study, Seen(features, responses)


def edited(text: str, changes: Mapping[str, Any], reasons: Mapping[str, str] | None = None) -> str:
    """Return the text of a study file with some keys set.

    A comment behind a value that names the old value goes with it, as it would be false.

    changes: Keys of a table, as in "window.records", with numbers, texts, or tables of these.
    reasons: What a comment above a key says, by key.

    Raises ConfigError if a table is not written as `[table]` with one key a line, so that it cannot
    be edited.
    """
    lines = text.splitlines()
    for key, value in changes.items():
        table, _, name = key.rpartition(".")
        _set(lines, table, name, f"{name} = {_toml(value)}", (reasons or {}).get(key, ""))
    found = "\n".join(lines) + "\n"
    wanted = with_keys(parse_study(text), changes, name="the design")
    try:
        if parse_study(found) == wanted:
            return found
    except ConfigError:
        pass
    raise ConfigError(
        f"the study file cannot be edited: write the tables of {', '.join(changes)} as [table] "
        "with one key a line, or set these keys by hand"
    )


def _set(lines: list[str], table: str, name: str, line: str, why: str) -> None:
    """Replace the line of a key, or add one: behind a comment on it, else at its table's head."""
    heads = [i for i, old in enumerate(lines) if re.match(rf"\s*\[{re.escape(table)}\]", old)]
    if not heads:
        lines += ["", f"[{table}]", *_because(why), line]
        return
    place = start = heads[0] + 1
    for i in range(start, len(lines)):
        if re.match(r"\s*\[", lines[i]):
            break
        if re.match(rf"# {re.escape(name)}:", lines[i]):
            place = i + 1
        if re.match(rf"\s*{re.escape(name)}\s*=", lines[i]):
            first = i
            while why and lines[first - 1].startswith((WHY, ON)):
                first -= 1
            lines[first : i + 1] = [*_because(why), _with_comment(line, lines[i])]
            return
    lines[place:place] = [*_because(why), line]


def _with_comment(line: str, old: str) -> str:
    """Return a line with the comment of an old one, unless that names the old value."""
    said, mark, comment = old.partition("#")
    value = said.partition("=")[2].strip()
    if not mark or re.search(rf"(?<![\w.]){re.escape(value)}(?![\w.])", comment):
        return line
    return f"{line:<29} #{comment}"


def _because(why: str) -> list[str]:
    return textwrap.wrap(WHY + why, WIDTH, subsequent_indent=ON) if why else []


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {_toml(inner)}" for key, inner in value.items()) + " }"
    return f'"{value}"' if isinstance(value, str) else repr(value)
