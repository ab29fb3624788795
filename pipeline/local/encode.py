"""Records to numbers: parse, check, clip to the public ranges, scale."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from pipeline.errors import DataError, RecordError
from pipeline.study import Study
from pipeline.types import Matrix, Vector

#: What a source yields: column names to text or numbers.
Record = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Row:
    """One encoded record: features (p,), response -1 or +1, and how many values were clipped."""

    features: Vector
    response: float
    clipped: int


class Column:
    """One feature with its public range, and how it is scaled."""

    __slots__ = ("centre", "half", "high", "low", "name", "unit")

    def __init__(self, name: str, low: float, high: float, *, unit: bool) -> None:
        self.name, self.low, self.high, self.unit = name, low, high, unit
        # halves first: the sum of two ends may overflow where each of them does not
        self.centre = low / 2 + high / 2
        self.half = high / 2 - low / 2

    def scale(self, value: float) -> float:
        """Map a value of the range to [-1, 1], or keep its unit."""
        if not self.unit:
            return value
        # the division may leave [-1, 1] by a rounding error; the bound must hold exactly
        return min(max((value - self.centre) / self.half, -1.0), 1.0)


class Encoder:
    """Encodes the records of one study with its public ranges only."""

    def __init__(self, study: Study) -> None:
        unit = study.data.scaling == "unit"
        self._names = study.feature_names
        self._columns = [
            Column(name, r.min, r.max, unit=unit) for name, r in study.data.features.items()
        ]
        response = study.data.response
        self._response = response.name
        self._classes = {response.positive: 1.0, response.negative: -1.0}

    def check_columns(self, columns: list[str]) -> None:
        """Refuse a source that lacks a column of the study.

        Raises
        ------
        DataError
            Naming the columns that are missing.
        """
        missing = [name for name in (*self._names, self._response) if name not in columns]
        if missing:
            raise DataError(
                f"the source has no column {', '.join(map(repr, missing))}; the study needs "
                f"{', '.join((*self._names, self._response))}"
            )

    def encode(self, record: Record) -> Row:
        """Encode one record.

        Raises
        ------
        RecordError
            If a column is missing, a value is no finite number, or the class is unknown. The
            message names the column, never the value.
        """
        clipped = 0
        features = []
        for column in self._columns:
            value = _number(record, column.name)
            if not column.low <= value <= column.high:
                value = min(max(value, column.low), column.high)
                clipped += 1
            features.append(column.scale(value))
        response = self._classes.get(_text(record, self._response))
        if response is None:
            raise RecordError(
                f"column {self._response!r}: unknown class; allowed: "
                f"{', '.join(map(repr, self._classes))}"
            )
        return Row(np.array(features), response, clipped)


def stack(rows: Sequence[Row], features: int) -> tuple[Matrix, Vector]:
    """Return the features (n, p) and responses (n,) of some rows; n may be 0."""
    if not rows:
        return np.zeros((0, features)), np.zeros(0)
    joined = np.concatenate([row.features for row in rows])
    return joined.reshape(len(rows), features), np.array([row.response for row in rows])


def _text(record: Record, name: str) -> str:
    if name not in record or record[name] is None:
        raise RecordError(f"column {name!r}: missing")
    value = record[name]
    if isinstance(value, bool):
        return str(int(value))
    return str(value).strip()


def _number(record: Record, name: str) -> float:
    value = record.get(name)
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        value = _text(record, name)
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
