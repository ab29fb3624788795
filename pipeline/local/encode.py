"""Records to numbers: parse, check, clip to the public ranges, scale."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from pipeline.errors import DataError
from pipeline.local.levels import Levels
from pipeline.local.response import Response, response_of
from pipeline.local.values import Record, number_of
from pipeline.study import Study
from pipeline.types import Matrix, Vector


@dataclass(frozen=True, slots=True)
class Row:
    """One encoded record: features (p,), response, and how many values were clipped.

    `level` is the place of its level of privacy, 0 for the strictest.
    """

    features: Vector
    response: float
    clipped: int
    level: int = 0


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

    def scale(self, inside: Matrix | Vector) -> Matrix:
        """Map values of the ranges to [-1, 1], or keep their units; shape (..., p)."""
        if not self._unit:
            return inside
        # the division may leave [-1, 1] by a rounding error; the bound must hold exactly
        scaled = (inside - self._centre) / self._half
        bounded: Matrix = np.minimum(np.maximum(scaled, -1.0), 1.0)
        return bounded


class Encoder:
    """Encodes the records of one study with its public ranges only."""

    def __init__(self, study: Study) -> None:
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
        self.features.check_columns(columns, self.response.name)

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


def stack(rows: Sequence[Row], features: int) -> tuple[Matrix, Vector]:
    """Return the features (n, p) and responses (n,) of some rows; n may be 0."""
    if not rows:
        return np.zeros((0, features)), np.zeros(0)
    joined = np.concatenate([row.features for row in rows])
    return joined.reshape(len(rows), features), np.array([row.response for row in rows])
