"""Event time: columns of times to seconds since 1970, in the order of arrival, and delays.

A time is read as `produce --event-time` reads it, to the millisecond.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import ConfigError, DataError
from pipeline.records.values import LARGEST_NUMBER, MILLISECONDS_FROM, milliseconds_of
from pipeline.types import Vector

#: Seconds since 1970 at the ends of the years 1 and 9500.
EARLIEST, LATEST = -62_135_596_800, 237_000_000_000


def seconds_of(text: str, option: str) -> float:
    """Return a time that a person wrote, RFC 3339 or seconds since 1970.

    ConfigError if it is neither.
    """
    found = _second(text)
    if math.isnan(found):
        raise ConfigError(
            f"{option}: it must be a time with a zone, such as 2013-06-01T00:00:00Z, or seconds "
            "since 1970"
        )
    return found


class EventTime:
    """The times of a history, batch by batch.

    Records arrive in the order of the history. One whose time lies before that of an earlier
    record is late: refused, or counted as arriving at the newest time before it. One without a
    readable time keeps its slot at that time too, as a record that cannot be used.

    keep_late: Whether late records are kept.

    newest: The newest time so far, seconds since 1970; None before the first.
    late, untimed: How many records were late, and had no readable time.
    """

    def __init__(self, column: str, *, keep_late: bool = False) -> None:
        self.column, self._keep_late = column, keep_late
        self.newest: float | None = None
        self.late = self.untimed = self._rows = 0

    def read(self, values: NDArray[Any], lost: NDArray[np.bool_]) -> tuple[Vector, Vector]:
        """Return the times of the next records, and the same with NaN where there is none.

        values, lost: The column, and which slots hold no record; shape (n,).

        Returns: Arrival times, shape (n,), finite and never falling, and which of them were read.

        Raises DataError if records are late and not kept, or nothing says when the history begins.
        """
        found = self._parse(values)
        known = ~np.isnan(found)
        wild = np.flatnonzero(known & ~((found >= EARLIEST) & (found <= LATEST)))
        if len(wild):
            raise DataError(
                f"record {self._rows + int(wild[0]) + 1}: column {self.column!r} is outside the "
                "years 1 to 9500; numbers are seconds or milliseconds since 1970, and the data "
                "owner must convert other units"
            )
        self.untimed += int(np.count_nonzero(~known & ~lost))
        if self.newest is None:
            if not known.any():
                raise DataError(
                    f"column {self.column!r}: none of the first {len(found)} records has a time; "
                    "the data owner must give RFC 3339 texts with a zone, or seconds since 1970"
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
            # a typed time has no zone of its own: it is UTC
            stamps = values.astype("datetime64[ms]")
            return np.where(np.isnat(stamps), np.nan, stamps.astype(np.int64) / 1000)
        if values.dtype.kind in "fiu":
            numbers = values.astype(np.float64)
            known = np.isfinite(numbers) & (np.abs(numbers) <= LARGEST_NUMBER)
            scaled = np.where(np.abs(numbers) >= MILLISECONDS_FROM, numbers, numbers * 1000)
            return np.where(known, np.floor(scaled) / 1000, np.nan)
        return np.array([_second(value) for value in values.tolist()])


def _second(value: object) -> float:
    """Return seconds since 1970, NaN if it is no time."""
    found = milliseconds_of(value)
    return math.nan if found is None else found / 1000


#: Units of time.
SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


@dataclass(frozen=True, slots=True)
class Delay:
    """How late something comes.

    mean: >= 0, in seconds of event time or in records of the history.
    of: "seconds" or "records".
    exponential: Whether each delay is drawn from an exponential law with this mean; else all are
        equal.
    """

    mean: float = 0.0
    of: str = "records"
    exponential: bool = False

    def draw(self, rng: np.random.Generator) -> float:
        """Return the next delay."""
        return float(rng.exponential(self.mean)) if self.exponential and self.mean else self.mean

    def __str__(self) -> str:
        return f"{self.mean:g} {self.of}{', exponential' if self.exponential else ''}"


def delay_of(text: str, option: str) -> Delay:
    """Return the delay that a person wrote: "30s", "12h", "500 records", "exponential:2.5s".

    ConfigError if it is none.
    """
    units = "|".join((*SECONDS, "seconds?", "r", "records?"))
    pattern = rf"(exponential:|constant:)?([0-9.]+(?:e[+-]?[0-9]+)?) ?({units})?"
    found = re.fullmatch(pattern, text.strip())
    try:
        mean = float(found[2]) if found else -1.0
    except ValueError:
        mean = -1.0
    if found is None or not 0 <= mean <= 1e12 or (found[3] is None and mean > 0):
        raise ConfigError(
            f"{option}: {text!r} is not a delay; write a number with its unit, such as 30s (s, m, "
            "h or d) or 500 records, and exponential: before it for random ones"
        )
    unit = found[3] or "r"
    if unit.startswith("r"):
        return Delay(mean, "records", exponential=found[1] == "exponential:")
    seconds = mean * SECONDS[unit[0]]
    return Delay(seconds, "seconds", exponential=found[1] == "exponential:")
