"""Two estimates of the same log positions: the first field in which they differ, bit by bit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from pipeline.messages.estimate import EstimateMessage

#: Not of the log: the clock, the count of models, and words whose numbers stand elsewhere.
APART = frozenset({"published_at", "model_version", "reason"})


@dataclass(frozen=True, slots=True)
class Difference:
    """A field in which two estimates differ, with both values as JSON."""

    field: str
    live: str
    replayed: str


def difference(live: EstimateMessage, replayed: EstimateMessage) -> Difference | None:
    """Return the first field in which two estimates differ, or None.

    Numbers are compared as JSON writes them, in which two finite floats look alike only if all
    their bits are the same.
    """
    one, other = msgspec.to_builtins(live), msgspec.to_builtins(replayed)
    for name in APART:
        one.pop(name), other.pop(name)
    for progress in filter(None, (one["progress"], other["progress"])):
        # by the clock of the worker
        progress.pop("records_per_second"), progress.pop("seconds")
    for row in [*one["coefficients"], *other["coefficients"]]:
        # what noise hides was written as 0 before it was null
        row["sampling_se"] = row["sampling_se"] or None
    return _first(one, other, "")


def _first(one: Any, other: Any, path: str) -> Difference | None:
    if isinstance(one, dict) and isinstance(other, dict) and one.keys() == other.keys():
        pairs = [(f"{path}.{key}".lstrip("."), one[key], other[key]) for key in one]
    elif (
        isinstance(one, list | tuple) and isinstance(other, list | tuple) and len(one) == len(other)
    ):
        pairs = [(f"{path}[{i}]", a, b) for i, (a, b) in enumerate(zip(one, other, strict=True))]
    else:
        left, right = (msgspec.json.encode(value).decode() for value in (one, other))
        return None if left == right else Difference(path, left, right)
    found = (_first(a, b, name) for name, a, b in pairs)
    return next((item for item in found if item is not None), None)
