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


class Encoder:
    """Encodes the records of one study with its public ranges only."""

    def __init__(self, study: Study) -> None:
        self._names = study.feature_names
        ranges = list(study.data.features.values())
        self._low = np.array([r.min for r in ranges])
        self._high = np.array([r.max for r in ranges])
        self._unit = study.data.scaling == "unit"
        # halves first: the sum of two ends may overflow where each of them does not
        self._centre = self._low / 2 + self._high / 2
        self._half = self._high / 2 - self._low / 2
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
        values = np.array([_number(record, name) for name in self._names])
        response = self._classes.get(_text(record, self._response))
        if response is None:
            raise RecordError(
                f"column {self._response!r}: unknown class; allowed: "
                f"{', '.join(map(repr, self._classes))}"
            )
        inside = np.clip(values, self._low, self._high)
        clipped = int(np.count_nonzero(inside != values))
        if self._unit:
            # the division may leave [-1, 1] by a rounding error; the bound must hold exactly
            inside = np.clip((inside - self._centre) / self._half, -1.0, 1.0)
        return Row(inside, response, clipped)


def stack(rows: Sequence[Row], features: int) -> tuple[Matrix, Vector]:
    """Return the features (n, p) and responses (n,) of some rows; n may be 0."""
    if not rows:
        return np.zeros((0, features)), np.zeros(0)
    return np.stack([row.features for row in rows]), np.array([row.response for row in rows])


def _text(record: Record, name: str) -> str:
    if name not in record or record[name] is None:
        raise RecordError(f"column {name!r}: missing")
    value = record[name]
    if isinstance(value, bool):
        return str(int(value))
    return str(value).strip()


def _number(record: Record, name: str) -> float:
    text = _text(record, name)
    try:
        number = float(text)
    except ValueError:
        raise RecordError(f"column {name!r}: not a number") from None
    if not math.isfinite(number):
        raise RecordError(f"column {name!r}: not a finite number")
    return number
