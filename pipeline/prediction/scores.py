"""What predictions come to, record by record: numbers alone are kept, never records."""

from __future__ import annotations

import math
from dataclasses import dataclass, field


@dataclass(slots=True)
class Confusion:
    """How often each class was predicted for records of each class; it keeps counts alone.

    Attributes
    ----------
    counts
        By the record's class and the predicted one, each -1 or +1.
    """

    counts: dict[tuple[float, float], int] = field(default_factory=dict)

    def add(self, response: float, predicted: float) -> None:
        """Count one record."""
        key = (response, predicted)
        self.counts[key] = self.counts.get(key, 0) + 1

    @property
    def total(self) -> int:
        """How many records were counted."""
        return sum(self.counts.values())

    @property
    def accuracy(self) -> float | None:
        """Share of records whose class was predicted; None without any."""
        if not self.total:
            return None
        return sum(self.counts.get((c, c), 0) for c in (-1.0, 1.0)) / self.total

    @property
    def balanced_accuracy(self) -> float | None:
        """Mean over both classes of the share that was predicted; None unless both were seen."""
        shares = []
        for one in (-1.0, 1.0):
            seen = sum(self.counts.get((one, other), 0) for other in (-1.0, 1.0))
            if not seen:
                return None
            shares.append(self.counts.get((one, one), 0) / seen)
        return sum(shares) / 2


@dataclass(slots=True)
class Errors:
    """How far predictions of numbers or counts are from the responses as they were written.

    Attributes
    ----------
    total
        How many records were counted.
    absolute, norm
        Sum of the errors, and root of the sum of their squares, in units of the response.
    """

    total: int = 0
    absolute: float = 0.0
    norm: float = 0.0

    def add(self, response: float, predicted: float) -> None:
        """Count one record."""
        error = abs(response - predicted)
        self.total += 1
        self.absolute += error
        # a square alone may pass the largest float
        self.norm = math.hypot(self.norm, error)

    @property
    def mean_absolute(self) -> float | None:
        """Mean absolute error (MAE), None without records."""
        return self.absolute / self.total if self.total else None

    @property
    def root_mean_square(self) -> float | None:
        """Root of the mean squared error (RMSE), None without records."""
        return self.norm / math.sqrt(self.total) if self.total else None
