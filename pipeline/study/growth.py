"""Windows that grow: the next one holds a tenth of what its client has released.

A release carries the same noise whatever its size, so that a few large ones carry less than many
small ones; small ones at the beginning give the first estimates early. Public numbers alone decide
how large a window is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import ConfigError
from pipeline.study.release_tables import Window
from pipeline.types import Integers

#: By how much windows grow unless a study says otherwise: a tenth of what the client has released.
DIVISOR = 10
#: No window has more slots, unless a study says so.
MOST = 1_000_000
#: Nor more times those of the first: the products of a state stay within their bits.
MOST_TIMES = 2**17


@dataclass(frozen=True, slots=True)
class Growth:
    """How large the windows of one study are.

    records: Slots of the first ones; all others are a multiple.
    divisor: k where a window has one k-th of what its client has released; 0: all are alike.
    most: Slots of the largest.
    """

    records: int
    divisor: int
    most: int

    @property
    def largest(self) -> int:
        """Slots of the largest window that there can be."""
        return self.records * max(1, self.most // self.records) if self.divisor else self.records

    def next_window(self, before: int) -> int:
        """Return the slots of the next window of a client that has released `before` slots."""
        if not self.divisor:
            return self.records
        times = min(before // (self.records * self.divisor), self.most // self.records)
        return self.records * max(1, times)

    def allowed(self, before: Integers, slots: Integers) -> NDArray[np.bool_]:
        """Whether windows may have these slots behind so many, shape (n,).

        One that time or the source's end has cut is smaller than the next one would be.
        """
        fits: NDArray[np.bool_]
        if not self.divisor:
            fits = slots == self.records
            return fits
        times = np.minimum(before // (self.records * self.divisor), self.most // self.records)
        most = self.records * np.maximum(1, times)
        fits = (before >= 0) & (slots > 0) & (slots % self.records == 0) & (slots <= most)
        return fits

    def schedule(self, slots: int) -> Iterator[int]:
        """Yield the slots of all windows that close within so many slots of one client."""
        before = 0
        while before + (size := self.next_window(before)) <= slots:
            yield size
            before += size


def growth_of(window: Window, *, grows: bool) -> Growth:
    """Return how the windows of a study grow.

    grows: Whether the method's sums let them; if so, they do by default.

    Raises ConfigError if the study says that they grow and they cannot.
    """
    divisor = window.divisor
    if divisor and not grows:
        raise ConfigError(
            "window.growth: in studies of this kind each record has noise of its own, or no noise, "
            "so that larger windows gain nothing; remove it, or set growth = 0"
        )
    if divisor is None:
        divisor = DIVISOR if grows else 0
    longest = window.records * MOST_TIMES
    most = min(MOST, longest) if window.most is None else window.most
    if divisor and not window.records <= most <= longest:
        raise ConfigError(
            f"window.most: from window.records to {MOST_TIMES} times as many, here {longest:,}; "
            f"for example most = {min(MOST, longest)}"
        )
    return Growth(window.records, divisor, max(most, window.records))
