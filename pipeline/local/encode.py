"""Records to numbers: parse, check, clip to the public ranges, scale."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np

from pipeline.errors import DataError
from pipeline.local.levels import Levels
from pipeline.local.response import Response, response_of
from pipeline.local.values import Record, number_of
from pipeline.study import Study
from pipeline.types import Integers, Matrix, Vector


@dataclass(frozen=True, slots=True)
class Row:
    """One encoded record: features (p,), response, and how many values were clipped.

    `level` is the place of its level of privacy, 0 for the strictest.
    """

    features: Vector
    response: float
    clipped: int
    level: int = 0


class Arrays(NamedTuple):
    """Encoded records as arrays, one for each slot.

    Attributes
    ----------
    features, responses
        Shapes (n, p) and (n,); the response of an empty slot is NaN.
    levels
        Places of their levels of privacy, (n,); None: all have that of empty slots.
    """

    features: Matrix
    responses: Vector
    levels: Integers | None = None

    @property
    def sound(self) -> Arrays:
        """The same without the empty slots."""
        known = ~np.isnan(self.responses)
        if known.all():
            return self
        levels = None if self.levels is None else self.levels[known]
        return Arrays(self.features[known], self.responses[known], levels)


#: The slots of a window, one by one, None for an empty one, or as arrays.
Rows: TypeAlias = Sequence[Row | None] | Arrays


class Features:
    """The features with their public ranges: one code for a record and for many.

    Parameters
    ----------
    ranges
        The lower and upper end of each feature, by name, in the order of the coefficients.
    unit
        Whether ranges are mapped to [-1, 1]; else values keep their units.
    """

    def __init__(self, ranges: Mapping[str, tuple[float, float]], *, unit: bool) -> None:
        self.names = tuple(ranges)
        ends = np.array(list(ranges.values()), dtype=np.float64).reshape(len(ranges), 2)
        self._low, self._high = np.ascontiguousarray(ends.T)
        # halves first: the sum of two ends may overflow where each of them does not
        self._centre = self._low / 2 + self._high / 2
        self._half = self._high / 2 - self._low / 2
        self._unit = unit

    @classmethod
    def of(cls, study: Study) -> Features:
        """Return the features of a study."""
        ranges = {name: (r.min, r.max) for name, r in study.data.features.items()}
        return cls(ranges, unit=study.data.scaling == "unit")

    def check_columns(self, columns: Sequence[str], *others: str) -> None:
        """Refuse a source that lacks a feature, or one of the `others`.

        Raises
        ------
        DataError
            Naming the columns that are missing.
        """
        needed = (*self.names, *others)
        missing = [name for name in needed if name not in columns]
        if missing:
            raise DataError(
                f"the source has no column {', '.join(map(repr, missing))}; the study needs "
                f"{', '.join(needed)}"
            )

    def values(self, record: Record) -> Vector:
        """Return the values of one record in their own units, shape (p,).

        Raises
        ------
        RecordError
            If a column is missing or holds no finite number.
        """
        return np.array([number_of(record.get(name), name) for name in self.names])

    def clip(self, values: Matrix | Vector) -> Matrix:
        """Clip finite values to their public ranges, shape (..., p)."""
        inside: Matrix = np.minimum(np.maximum(values, self._low), self._high)
        return inside

    def outside(self, values: Matrix) -> Counter[str]:
        """Count the values that clipping changes, by feature; of values (n, p) or (p,)."""
        beyond = np.atleast_2d(self.clip(values) != values).sum(axis=0).tolist()
        return Counter({n: count for n, count in zip(self.names, beyond, strict=True) if count})

    def own_units(self, intercept: float, slopes: Vector) -> tuple[float, Vector]:
        """Return the coefficients of the same predictor on values in their own units."""
        if not self._unit:
            return intercept, slopes
        own = slopes / self._half
        return intercept - float(np.sum(own * self._centre)), own

    def scale(self, inside: Matrix | Vector) -> Matrix:
        """Map values of the ranges to [-1, 1], or keep their units; shape (..., p)."""
        if not self._unit:
            return inside
        # the division may leave [-1, 1] by a rounding error; the bound must hold exactly
        scaled = (inside - self._centre) / self._half
        bounded: Matrix = np.minimum(np.maximum(scaled, -1.0), 1.0)
        return bounded


class Encoder:
    """Encodes the records of one study with its public ranges only.

    Attributes
    ----------
    clipped
        How many values `encode` has cut to their public range, by column: counted from raw data.
    """

    def __init__(self, study: Study) -> None:
        self.clipped: Counter[str] = Counter()
        self.features = Features.of(study)
        self.response: Response = response_of(study)
        self._levels = Levels(study.privacy.personal)

    def check_columns(self, columns: Sequence[str]) -> None:
        """Refuse a source that lacks a column of the study.

        Raises
        ------
        DataError
            Naming the columns that are missing.
        """
        self.features.check_columns(columns, self.response.name, *self._levels.columns)

    def encode(self, record: Record) -> Row:
        """Encode one record.

        Raises
        ------
        RecordError
            If a column is missing, a value is no finite number, or the response is none that the
            study knows. The message names the column, never the value.
        """
        values = self.features.values(record)
        inside = self.features.clip(values)
        response, beyond = self.response.of_record(record)
        clipped = int(np.count_nonzero(inside != values)) + beyond
        if clipped:
            self.clipped += self.features.outside(values)
            self.clipped[self.response.name] += beyond
        return Row(self.features.scale(inside), response, clipped, self._levels.of(record))

    def rows(self, values: Matrix, responses: Sequence[tuple[float, bool]]) -> list[Row]:
        """Encode records whose values have been read.

        Parameters
        ----------
        values
            Finite values in their own units, shape (n, p).
        responses
            For each record the encoded response, and whether it was clipped.
        """
        inside = self.features.clip(values)
        clipped = np.count_nonzero(inside != values, axis=1).tolist()
        scaled = self.features.scale(inside)
        return [
            Row(features, response, beyond + count, self._levels.of({}))
            for features, (response, beyond), count in zip(scaled, responses, clipped, strict=True)
        ]


def stack(rows: Rows, features: int) -> Arrays:
    """Return the slots of a window as arrays, with so many features; there may be none."""
    if isinstance(rows, Arrays):
        return rows
    found = Arrays(
        np.zeros((len(rows), features)),
        np.full(len(rows), np.nan),
        np.zeros(len(rows), dtype=np.int64),
    )
    places = [place for place, row in enumerate(rows) if row is not None]
    sound = [row for row in rows if row is not None]
    if sound:
        joined = np.concatenate([row.features for row in sound])
        found.features[places] = joined.reshape(len(sound), features)
        found.responses[places] = [row.response for row in sound]
        if found.levels is not None:
            found.levels[places] = [row.level for row in sound]
    return found
