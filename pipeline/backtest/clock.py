"""Event time: columns of times to seconds since 1970, in the order in which records arrive."""

from __future__ import annotations

import contextlib
import math
from datetime import UTC, datetime
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import ConfigError, DataError
from pipeline.types import Vector

#: How times may be written; a history keeps to one of them.
AWARE, NAIVE, NUMBERS = "with a zone", "without a zone", "as numbers"
#: Seconds since 1970 at the ends of the years 1 and 9500.
EARLIEST, LATEST = -62_135_596_800, 237_000_000_000


def seconds_of(text: str, option: str) -> float:
    """Return a time that a person wrote, RFC 3339 or seconds since 1970.

    Raises
    ------
    ConfigError
        If it is neither.
    """
    found, _ = _second(text)
    if math.isnan(found):
        raise ConfigError(
            f"{option}: it must be a time such as 2013-06-01T00:00:00Z or seconds since 1970"
        )
    return found


class EventTime:
    """The times of a history, batch by batch.

    Records arrive in the order of the history. One whose time lies before that of an earlier
    record is late: refused, or counted as arriving at the newest time before it. One without a
    readable time keeps its slot at that time too, as a record that cannot be used.

    Parameters
    ----------
    column
        Its name.
    keep_late
        Whether late records are kept.

    Attributes
    ----------
    newest
        The newest time so far, seconds since 1970; None before the first.
    late, untimed
        How many records were late, and had no readable time.
    """

    def __init__(self, column: str, *, keep_late: bool = False) -> None:
        self.column, self._keep_late = column, keep_late
        self.newest: float | None = None
        self.late = self.untimed = self._rows = 0
        self._zone: str | None = None

    def read(self, values: NDArray[Any], lost: NDArray[np.bool_]) -> tuple[Vector, Vector]:
        """Return the times of the next records, and the same with NaN where there is none.

        Parameters
        ----------
        values, lost
            The column, and which slots hold no record; shape (n,).

        Returns
        -------
        tuple
            Arrival times, shape (n,), finite and never falling, and which of them were read.

        Raises
        ------
        DataError
            If records are late and not kept, texts with and without a zone are mixed, or nothing
            says when the history begins.
        """
        found = self._parse(values)
        known = ~np.isnan(found)
        wild = np.flatnonzero(known & ~((found >= EARLIEST) & (found <= LATEST)))
        if len(wild):
            raise DataError(
                f"record {self._rows + int(wild[0]) + 1}: column {self.column!r} is outside the "
                "years 1 to 9500; numbers are seconds since 1970, and the data owner must convert "
                "milliseconds"
            )
        self.untimed += int(np.count_nonzero(~known & ~lost))
        if self.newest is None:
            if not known.any():
                raise DataError(
                    f"column {self.column!r}: none of the first {len(found)} records has a time; "
                    "the data owner must give RFC 3339 texts or seconds since 1970"
                )
            self.newest = float(found[known][0])
        arrived = np.maximum.accumulate(np.append(self.newest, np.where(known, found, -np.inf)))
        late = np.flatnonzero(known & (found < arrived[:-1]))
        if len(late) and not self._keep_late:
            raise DataError(
                f"record {self._rows + int(late[0]) + 1}: the time in column {self.column!r} lies "
                "before that of an earlier record; the data owner must sort the history by it, or "
                "keep late records (--late keep): they then count as arriving when they stand"
            )
        self.late += len(late)
        self._rows += len(found)
        self.newest = float(arrived[-1])
        return arrived[1:], np.where(known, found, np.nan)

    def _parse(self, values: NDArray[Any]) -> Vector:
        if values.dtype.kind == "M":
            stamps = values.astype("datetime64[us]")
            return np.where(np.isnat(stamps), np.nan, stamps.astype(np.int64) / 1e6)
        if values.dtype.kind in "fiu":
            numbers = values.astype(np.float64)
            return np.where(np.isfinite(numbers), numbers, np.nan)
        found = np.empty(len(values))
        for place, value in enumerate(values.tolist()):
            found[place], zone = _second(value)
            if zone is None:
                continue
            if self._zone not in (None, zone):
                raise DataError(
                    f"record {self._rows + place + 1}: column {self.column!r} mixes times "
                    f"{self._zone} and {zone}; the data owner must write all in one form (those "
                    f"{NAIVE} are read as UTC)"
                )
            self._zone = zone
        return found


def _second(value: object) -> tuple[float, str | None]:
    """Return seconds since 1970, NaN if it is no time; and how it is written, None if so."""
    moment = _moment(value.strip()) if isinstance(value, str) else value
    if isinstance(moment, datetime):
        if moment.tzinfo is None:
            return moment.replace(tzinfo=UTC).timestamp(), NAIVE
        return moment.timestamp(), AWARE
    if isinstance(moment, (int, float)) and not isinstance(moment, bool):
        number = float(moment)
        return (number, NUMBERS) if math.isfinite(number) else (math.nan, None)
    return math.nan, None


def _moment(text: str) -> object:
    """Return the number or the time that a text holds, None if neither."""
    # numbers first: to Python eight digits are a date as well
    with contextlib.suppress(ValueError):
        return None if "_" in text else float(text)
    with contextlib.suppress(ValueError):
        return datetime.fromisoformat(text)
    return None
