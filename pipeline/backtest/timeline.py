"""A history cut into bins of time: never more than a given number, whatever its length."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from pipeline.backtest.scoring import Tally
from pipeline.estimators.estimate import Estimate
from pipeline.types import Vector


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What an estimate said when it was published.

    clock: When: seconds since 1970, or a record's number.
    privacy_share: Share of the variance due to privacy, median over coefficients.
    coefficients: On encoded features, shape (d,).
    ends: Lower and upper ends of the intervals on encoded features, each (d,), with NaN where one
        is not known; None without intervals.
    """

    clock: float
    status: str
    records: int
    releases: int
    privacy_share: float | None
    coefficients: Vector
    ends: tuple[Vector, Vector] | None

    @classmethod
    def of(cls, estimate: Estimate, clock: float, level: float) -> Snapshot:
        """Return what an estimate says."""
        ready = estimate.status == "ready"
        return cls(
            clock=clock,
            status=estimate.status,
            records=estimate.records,
            releases=estimate.releases,
            privacy_share=estimate.privacy_share if ready else None,
            coefficients=estimate.coefficients,
            ends=estimate.intervals(level) if ready else None,
        )

    @property
    def width(self) -> float | None:
        """Median width of the intervals; None without any."""
        if self.ends is None or np.isnan(self.ends[0]).all():
            return None
        return float(np.nanmedian(self.ends[1] - self.ends[0]))

    def coverage(self, target: Vector) -> float | None:
        """Return the share of coefficients whose interval holds its target, shape (d,)."""
        if self.ends is None:
            return None
        known = ~np.isnan(self.ends[0])
        if not known.any():
            return None
        inside = (self.ends[0] <= target) & (target <= self.ends[1])
        return float(np.mean(inside[known]))


@dataclass(slots=True)
class Span:
    """What happened in one bin.

    arrived, unusable: Record slots, and those among them without a sound record.
    unscored: Sound records that came before the first estimate.
    tally, frozen: Scores of the updating estimate, and of the frozen one.
    last: The newest estimate that was published in it.
    """

    arrived: int = 0
    unusable: int = 0
    unscored: int = 0
    tally: Tally = field(default_factory=Tally)
    frozen: Tally = field(default_factory=Tally)
    last: Snapshot | None = None

    def merge(self, other: Span) -> None:
        """Take what a later bin holds."""
        self.arrived += other.arrived
        self.unusable += other.unusable
        self.unscored += other.unscored
        self.tally.merge(other.tally)
        self.frozen.merge(other.frozen)
        self.last = other.last or self.last


class Timeline:
    """Bins of equal width; neighbours are joined in pairs when there would be too many.

    most: How many bins there may be.
    width: Of a bin at first, in the unit of the clock, > 0.
    """

    def __init__(self, most: int, width: float) -> None:
        self._most, self.width = most, width
        self.origin: float | None = None
        self._end = 0.0
        self._spans: dict[int, Span] = {}

    def each(self, clock: Vector) -> Iterator[tuple[Span, slice]]:
        """Yield the bins of arrival times that never fall, shape (n,), each with its records."""
        if not len(clock):
            return
        self.reach(float(clock[0]), float(clock[-1]))
        numbers = np.floor((clock - (self.origin or 0.0)) / self.width).astype(np.int64)
        cuts = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), len(numbers)]
        for start, end in itertools.pairwise(cuts):
            yield self._spans.setdefault(int(numbers[start]), Span()), slice(start, end)

    def note(self, snapshot: Snapshot) -> None:
        """Put an estimate into the bin of its time, at most that of the last record."""
        if self.origin is not None:
            number = self._number(min(snapshot.clock, self._end))
            self._spans.setdefault(number, Span()).last = snapshot

    def spans(self) -> Iterator[tuple[float, float, Span]]:
        """Yield start, end and contents of the bins that something came to, in order."""
        origin = self.origin or 0.0
        for number in sorted(self._spans):
            start = origin + number * self.width
            yield start, start + self.width, self._spans[number]

    def reach(self, first: float, last: float) -> None:
        """Make room for records that arrive in this time."""
        if self.origin is None:
            self.origin = first
        self._end = last
        while self._number(last) >= self._most:
            self.width *= 2
            joined: dict[int, Span] = {}
            for number in sorted(self._spans):
                if number // 2 in joined:
                    joined[number // 2].merge(self._spans[number])
                else:
                    joined[number // 2] = self._spans[number]
            self._spans = joined

    def _number(self, clock: float) -> int:
        return math.floor((clock - (self.origin or 0.0)) / self.width)
