"""Batch means: the spread of averages over stretches of the path, for comparison with the others.

`OnlineBatches` is valid at any time: batch m starts with record floor(m^{2 / (1 - alpha)}) after
the burn-in (the first release that begins there or later), and all partial sums of a batch enter.
`batch_means` cuts a path that is at hand into floor(n^{1/4}) + 1 batches of growing length, the
first of which is dropped. Source: ldp-sgd, batch means; Chen et al. 2020; Zhu et al. 2023.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np

from pipeline.errors import NumericError
from pipeline.methods.ldp_sgd.path import Sums
from pipeline.types import Matrix, Vector

#: Batches of steps that fall faster are as for this decay: theirs would be empty at first.
LONGEST = 2 / 3


@dataclass(frozen=True, slots=True)
class OnlineBatches:
    """Totals over the closed batches, and where the open one began.

    With W the sum of theta - m since the start of a record's batch and l its place in it:
    `ww` = sum W W' (or its diagonal), `lw` = sum l W, `squares` = sum l^2, `places` = sum l.
    """

    alpha: float
    number: int
    begun: Sums
    ww: Vector | Matrix
    lw: Vector
    squares: int
    places: int

    @classmethod
    def before(cls, sums: Sums, alpha: float) -> OnlineBatches:
        """Return the state before the first batch."""
        # the lengths of batches follow steps that fall more slowly than 1 / i
        return cls(min(alpha, LONGEST), 1, sums, np.zeros_like(sums.a), np.zeros_like(sums.b), 0, 0)

    def start(self, number: int) -> int:
        """Return after how many records batch `number` starts, from 1 on."""
        # its first record is number floor(m^{2 / (1 - alpha)}), counted from 1
        return math.floor(math.pow(number, 2 / (1 - self.alpha))) - 1

    def ends(self, before: int, releases: int, block: int) -> list[tuple[int, int]]:
        """Return the releases that end a batch of means, with the number of the next one."""
        found: list[tuple[int, int]] = []
        number, last = self.number, before + releases * block
        while (target := self.start(number + 1)) <= last:
            number += 1
            release = max(math.ceil((target - before) / block) - 1, 0)
            if found and found[-1][0] == release:
                found.pop()
            found.append((release, number))
        return found

    def closed(self, sums: Sums, number: int) -> OnlineBatches:
        """Return the totals with the open batch closed at `sums`, and batch `number` begun."""
        ww, lw, squares, places = self._with(sums)
        return OnlineBatches(self.alpha, number, sums, ww, lw, squares, places)

    def variance(self, sums: Sums) -> Vector:
        """Return the diagonal of the estimated limit covariance, shape (d,), at `sums`.

        Raises NumericError before the first record after the burn-in.
        """
        if sums.records == 0:
            raise NumericError(
                "no record has come after the burn-in, so there is nothing to average yet: "
                "more records are needed"
            )
        ww, lw, squares, places = self._with(sums)
        mean = sums.c / sums.records
        diagonal = np.diag(ww) if ww.ndim == 2 else ww
        found: Vector = (diagonal - 2 * lw * mean + squares * mean * mean) / places
        return np.maximum(found, 0.0)

    def _with(self, sums: Sums) -> tuple[Vector | Matrix, Vector, int, int]:
        part = sums.since(self.begun)
        count = part.records
        squares = count * (count + 1) * (2 * count + 1) // 6
        places = count * (count + 1) // 2
        return self.ww + part.a, self.lw + part.b, self.squares + squares, self.places + places


def batch_means(path: Matrix, alpha: float) -> Matrix:
    """Return the limit covariance (d, d) from floor(n^{1/4}) batches of a whole path of iterates.

    path: Iterates 1, ..., n in order, shape (n, d).
    alpha: Decay of the steps, in (1/2, 1].
    """
    count = len(path)
    m: int = math.floor(count**0.25)
    alpha = min(alpha, LONGEST)
    unit = count ** (1 - alpha) / (m + 1)
    ends = [math.floor(((k + 1) * unit) ** (1 / (1 - alpha))) for k in range(m + 1)]
    ends[-1] = count
    kept = path[ends[0] :]
    centre = kept.mean(axis=0)
    total = np.zeros((path.shape[1], path.shape[1]))
    for first, last in itertools.pairwise(ends):
        off = path[first:last].mean(axis=0) - centre
        total += (last - first) * np.outer(off, off)
    return total / m
