"""Records to numbers: parse, check, clip to the public ranges, scale."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import DataError, RecordError
from pipeline.records.levels import Levels
from pipeline.records.response import Response, response_of
from pipeline.records.values import Record, number_of
from pipeline.study import Study
from pipeline.types import Integers, Matrix, Vector

#: Records whose clipped values are counted at once: good and clipped ones take as long.
TOGETHER = 256


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

    @property
    def ends(self) -> tuple[Vector, Vector]:
        """Lower and upper ends of the public ranges, each of shape (p,)."""
        return self._low, self._high

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

    def read(self, record: Record, dummy: Record) -> tuple[list[float], RecordError | None]:
        """Return the values of one record, or its first fault and values that mean nothing.

        Behind a fault the columns of `dummy` are read: the time that a record takes shows in when
        releases come, and must not tell of bad ones.
        """
        values: list[float] = []
        fault: RecordError | None = None
        for name in self.names:
            try:
                values.append(number_of(record.get(name), name))
            except RecordError as error:
                fault, record = error, dummy
                values.append(0.0)
        return values, fault

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
    dummy
        A record that anybody could make up: to be encoded where there is none, so that it takes
        as long.
    """

    def __init__(self, study: Study) -> None:
        self.features = Features.of(study)
        self.response: Response = response_of(study)
        self._levels = Levels(study.privacy.personal)
        self._beyond = np.zeros(len(self.features.names), dtype=np.int64)
        self._responses_beyond = 0
        self._changed: list[NDArray[np.bool_]] = []
        self._unchanged = np.zeros(len(self.features.names), dtype=np.bool_)
        self.dummy = dummy_of(study)

    @property
    def level_columns(self) -> tuple[str, ...]:
        """The column with the levels of records; none where the study has none."""
        return self._levels.columns

    @property
    def clipped(self) -> Counter[str]:
        """How many values `encode` has cut to their range, by column: counted from raw data."""
        self._count()
        counts = dict(zip(self.features.names, self._beyond.tolist(), strict=True))
        found = Counter({name: count for name, count in counts.items() if count})
        if self._responses_beyond:
            found[self.response.name] += self._responses_beyond
        return found

    def _count(self) -> None:
        if self._changed:
            self._beyond += np.sum(self._changed, axis=0)
            self._changed.clear()

    def check_columns(self, columns: Sequence[str]) -> None:
        """Refuse a source that lacks a column of the study.

        Raises
        ------
        DataError
            Naming the columns that are missing.
        """
        self.features.check_columns(columns, self.response.name, *self.level_columns)

    def encode(self, record: Record) -> Row:
        """Encode one record.

        Raises
        ------
        RecordError
            If a column is missing, a value is no finite number, or the response is none that the
            study knows. The message names the column, never the value.
        """
        row, fault = self.attempt(record)
        if fault is not None:
            raise fault
        return row

    def attempt(self, record: Record) -> tuple[Row, RecordError | None]:
        """Return what `encode` returns, or its error with a row that means nothing.

        The same steps are taken for a record that is good, clipped or bad, in about one time.
        """
        found, fault = self.features.read(record, self.dummy)
        values = np.array(found)
        inside = self.features.clip(values)
        try:
            response, beyond = self.response.of_record(record)
        except RecordError as error:
            fault, response, beyond = fault or error, math.nan, False
        changed = inside != values
        clipped = int(np.count_nonzero(changed)) + beyond
        row = Row(self.features.scale(inside), response, clipped, self._levels.of(record))
        usable = fault is None
        self._changed.append(changed if usable else self._unchanged)
        if len(self._changed) == TOGETHER:
            self._count()
        self._responses_beyond += beyond and usable
        return row, fault

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


def dummy_of(study: Study) -> dict[str, str]:
    """Return a record of a study made of public numbers alone: the middle of every range."""
    record = {name: repr(r.min / 2 + r.max / 2) for name, r in study.data.features.items()}
    response = study.data.response
    classes = response.kind == "class"
    record[response.name] = response.classes[0] if classes else repr(response.ends[0])
    return record


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
