"""Windows that grow: the next one holds a tenth of what its client has released.

A release carries the same noise whatever its size, so that a few large ones carry less than many
small ones; small ones at the beginning give the first estimates early. Public numbers alone decide
how large a window is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import ConfigError
from pipeline.study.model import Study
from pipeline.types import Integers

#: By how much windows grow unless a study says otherwise: a tenth of what the client has released.
DIVISOR = 10
#: No window has more slots, unless a study says so.
MOST = 1_000_000
#: Buckets of age in a half-life.
BUCKETS_OF_A_HALF_LIFE = 8
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

    def most_behind(self, windows: Integers) -> Integers:
        """Return the most slots that so many windows of a client can have, shape (n,)."""
        ends = _most_behind(self)
        last = len(ends) - 1
        beyond = np.maximum(windows - last, 0).astype(np.float64) * self.largest
        most: Integers = ends[np.clip(windows, 0, last)] + np.minimum(beyond, 2.0**60).astype(
            np.int64
        )
        return most

    def schedule(self, slots: int) -> Iterator[int]:
        """Yield the slots of all windows that close within so many slots of one client."""
        before = 0
        while before + (size := self.next_window(before)) <= slots:
            yield size
            before += size


@lru_cache(maxsize=64)
def _most_behind(growth: Growth) -> Integers:
    """Return the slots of 0, 1, ... windows until they grow no more."""
    ends = [0]
    while len(ends) < 2 or (growth.divisor and ends[-1] - ends[-2] < growth.largest):
        ends.append(ends[-1] + growth.next_window(ends[-1]))
    return np.array(ends, dtype=np.int64)


def growth_of(study: Study, *, grows: bool) -> Growth:
    """Return how the windows of a study grow.

    Where old releases fade, no window is longer than they take to fade by an eighth of a half-life:
    else it would be most of what counts. Time has no such bound in slots, so that there they do
    not grow.

    grows: Whether the method's sums let them; if so, they do by default.

    Raises ConfigError if the study says that they grow and they cannot.
    """
    window, forgetting = study.window, study.estimator.forgetting
    divisor, limit = window.divisor, None
    if forgetting is not None and grows:
        if divisor and forgetting.of == "seconds":
            raise ConfigError(
                "window.growth: windows do not grow where releases fade with time (forgetting "
                'of = "seconds"); remove it, or set growth = 0'
            )
        grows = forgetting.of == "records"
        limit = max(window.records, int(forgetting.half_life / BUCKETS_OF_A_HALF_LIFE))
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
    most = most if limit is None else min(most, limit)
    return Growth(window.records, divisor, max(most, window.records))
