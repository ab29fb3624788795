"""One value of a record: text or a finite number; errors name its column, never the value."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import RecordError
from pipeline.types import Vector

#: What a source yields: column names to text or numbers.
Record = Mapping[str, object]


def plain(value: object) -> object:
    """Return a number, text or truth value of NumPy as Python's own; all else as it is."""
    # a time is no number, although NumPy gives it as one
    if isinstance(value, np.generic) and value.dtype.kind in "fiubU":
        return value.item()
    return value


def text_of(value: object, name: str) -> str:
    """Return a value as text without blanks at its ends; true and false are "1" and "0".

    Raises RecordError if there is none.
    """
    if isinstance(value, str):
        return value.strip()
    value = plain(value)
    if value is None:
        raise RecordError(f"column {name!r}: missing")
    if isinstance(value, bool):
        return str(int(value))
    return str(value).strip()


def number_of(value: object, name: str) -> float:
    """Return a value as a finite number; RecordError if it is missing or no finite number."""
    if not isinstance(value, (str, float, int)):
        value = plain(value)
    if not isinstance(value, (float, int)) or isinstance(value, bool):
        value = text_of(value, name)
        if "_" in value:
            # Python reads 1_000 as a number; no other program does
            raise RecordError(f"column {name!r}: not a number")
    try:
        number = float(value)
    except (ValueError, OverflowError):
        raise RecordError(f"column {name!r}: not a number") from None
    if not math.isfinite(number):
        raise RecordError(f"column {name!r}: not a finite number")
    return number


def numbers_of(column: NDArray[Any], name: str) -> Vector:
    """Return a column as `number_of` reads each of its values, NaN where it refuses; shape (n,)."""
    if column.dtype.kind in "fiub":
        numbers = column.astype(np.float64)
        return np.where(np.isfinite(numbers), numbers, np.nan)
    values = column.tolist()
    if all(type(value) is str for value in values) and not any("_" in text for text in values):
        # all at once, unless one of them is no number
        with contextlib.suppress(ValueError):
            numbers = np.array(values, dtype=str).astype(np.float64)
            return np.where(np.isfinite(numbers), numbers, np.nan)
    return np.array([_number_or_nan(value, name) for value in values], dtype=np.float64)


def _number_or_nan(value: object, name: str) -> float:
    try:
        return number_of(value, name)
    except RecordError:
        return math.nan
