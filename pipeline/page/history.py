"""The estimates of a stream, thinned as they come, so that an hour of them fits a chart."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime

from pipeline.messages.estimate import EstimateMessage
from pipeline.words import csv_lines

#: Estimates that are kept, at most: a chart has no more pixels.
KEPT = 1200


@dataclass(frozen=True, slots=True)
class Point:
    """One estimate as it is drawn.

    at: When it was published, seconds since 1970 by the worker's clock.
    records: Record slots behind it.
    values, low, high: One number for each coefficient; `low` and `high` are None where there is no
        interval.
    """

    at: float
    status: str
    records: int
    values: list[float]
    low: list[float | None]
    high: list[float | None]

    @classmethod
    def of(cls, message: EstimateMessage) -> Point:
        """Return what is drawn of an estimate."""
        ends = [row.interval or (None, None) for row in message.coefficients]
        return cls(
            datetime.fromisoformat(message.published_at).timestamp(),
            message.status,
            message.records,
            [row.value for row in message.coefficients],
            [low for low, _ in ends],
            [high for _, high in ends],
        )


@dataclass
class History:
    """Every `step`-th estimate, and always the newest; the step doubles when there are too many."""

    kept: int = KEPT
    step: int = 1
    points: list[Point] = field(default_factory=list)
    _seen: int = 0

    def add(self, point: Point) -> None:
        """Take the next one."""
        if self.points and (self._seen - 1) % self.step:
            self.points.pop()
        self.points.append(point)
        self._seen += 1
        if len(self.points) > self.kept:
            newest = self.points[-1]
            self.points, self.step = self.points[::2], 2 * self.step
            if self.points[-1] is not newest:
                self.points.append(newest)

    def csv(self, names: list[str]) -> Iterator[str]:
        """Yield the lines of a CSV table, one for each estimate and coefficient."""
        yield _line("published_at", "status", "records", "coefficient", "value", "lower", "upper")
        for point in list(self.points):
            at = datetime.fromtimestamp(point.at).astimezone().isoformat()
            for row in zip(names, point.values, point.low, point.high, strict=True):
                yield _line(at, point.status, point.records, *row)


def _line(*cells: object) -> str:
    text = io.StringIO()
    csv_lines(text)(cells)
    return text.getvalue()
