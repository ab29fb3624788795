"""Noise with a memory: what a client adds to a release cancels in the sum of its releases.

A client's noise nu_t is made of independent draws z_t and of its own last seven rows,

    nu_t = round(z_t - sum_{j=1..7} c_j nu_{t-j}),    c_j = binomial(2j, j) / 4^j,

in whole numbers, so that sums over many releases carry little more noise than one. The sequence of
releases is a function of the independent draws and of sums that one record moves in eight places:
with the scale of z raised by |c| it costs a record what one independent release costs it. Derived
in docs/privacy/noise-with-memory.md; the coefficients are those of (1 - x)^(-1/2), the square root
of a running sum (Fichtenberger, Henzinger and Upadhyay 2023), cut after eight.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache

import numpy as np

from pipeline.types import Integers, Matrix, Vector

#: c_j in units of 2^-11, exact; the first is c_0 = 1.
BITS = 11
COEFFICIENTS = (2048, 1024, 768, 640, 560, 504, 462, 429)
#: How many releases behind it one remembers, and how many draws of a number one record meets.
WINDOWS = len(COEFFICIENTS) - 1
TOUCHED = len(COEFFICIENTS)
SQUARED_NORM = sum(c * c for c in COEFFICIENTS) / 4**BITS
#: |c|: the scale of z over that of a release whose noise is independent.
NORM = math.sqrt(SQUARED_NORM)
#: No release's noise is larger than so many times that of one whose noise is independent: the root
#: of the largest variance of nu_t, times |c|.
LARGEST = 1.5
#: Fixed-point bits of variances, in units of the variance of z / 2^22.
FIXED = 60
#: Weights from this place on are taken for 0: they are below 10^-16.
SETTLED = 512
#: Doublings of a stream that are told apart: all later models are of the last one.
EPOCHS = 26


def empty_rows(numbers: int) -> Integers:
    """Return the rows of a chain before its first release, shape (7, numbers)."""
    return np.zeros((WINDOWS, numbers), dtype=np.int64)


def advanced(rows: Integers, drawn: Integers) -> tuple[Integers, Integers]:
    """Return the noise of the next release, and the rows behind it.

    rows: The last seven, the newest first, in lattice units, shape (7, m).
    drawn: Independent draws z in units of 2^-11 of the lattice, shape (m,).
    """
    total = drawn.copy()
    for coefficient, row in zip(COEFFICIENTS[1:], rows, strict=True):
        total -= coefficient * row
    noise = (total + (1 << (BITS - 1))) >> BITS
    return noise, np.concatenate([noise[None], rows[:-1]])


class _Covariances:
    """Variances and covariances of nu, in units of the variance of z / 2^22 and times 2^60.

    From integers alone, so that every worker has the same bits.
    """

    def __init__(self) -> None:
        w, half = [1 << FIXED], 1 << (BITS - 1)
        self._weights, self._sums, self._squares = w, [0, 1 << FIXED], [0, 1 << 2 * FIXED]
        for t in range(1, SETTLED):
            reach = range(1, min(WINDOWS, t) + 1)
            w.append(-((sum(COEFFICIENTS[j] * w[t - j] for j in reach) + half) >> BITS))
            self._sums.append(self._sums[-1] + w[-1])
            self._squares.append(self._squares[-1] + w[-1] * w[-1])
        self._cross: dict[tuple[int, int], int] = {}

    def variance(self, number: int) -> int:
        """Return the variance of the noise of a chain's release with this number, from 1."""
        return self._squares[min(number, SETTLED)] >> FIXED

    def cross(self, number: int, last: int) -> int:
        """Return the covariance of a release's noise with that of releases 1 to `last` < number."""
        w, b, apart = self._weights, self._sums, number - last
        # a release may say any number: none costs more than this
        reach = min(last, SETTLED - apart)
        if reach <= 0:
            return 0
        key = (apart, reach)
        if key not in self._cross:
            total = sum(w[apart + k] * b[k + 1] for k in range(reach))
            self._cross[key] = total >> FIXED
        return self._cross[key]

    def weight(self, place: int) -> int:
        """Return w_place: what a draw is worth in the noise `place` releases later."""
        return self._weights[place] if place < SETTLED else 0


_TABLE = _Covariances()


def weight(place: int) -> float:
    """Return w_place: what a draw is worth in the noise `place` releases later."""
    return float(_TABLE.weight(place) / 2**FIXED)


def variance(number: int) -> int:
    """Return Var nu_number times 2^60, in units of the variance of z / 2^22."""
    return _TABLE.variance(number)


def cross(number: int, last: int) -> int:
    """Return Cov(nu_number, nu_1 + ... + nu_last) in the same units."""
    return _TABLE.cross(number, last)


def added(number: int, first: int) -> int:
    """Return what release `number` adds to the noise variance of a chain's sums since `first`."""
    return variance(number) + 2 * (cross(number, number - 1) - cross(number, first - 1))


#: What a run of releases that never came is charged, however many they are: more than they can hide
#: of what they would have cancelled in those behind them. The most is 2.66, of four.
GAP = 21 * variance(256) // 10


def additions(number: int, starts: Sequence[int], epoch: int) -> list[int]:
    """Return what a release adds to the noise variance of the sums since each epoch.

    number: Of the release in its chain, from 1.
    starts: For each epoch the number of the chain's first release in it or in a later one, as the
        release says; those behind its own epoch are ignored.
    epoch: Its own.

    Returns: `EPOCHS` integers, 0 for epochs behind its own.
    """
    found = [0] * EPOCHS
    for place in range(epoch + 1):
        same = place and starts[place] == starts[place - 1]
        found[place] = found[place - 1] if same else added(number, starts[place])
    return found


@cache
def _sums_of_weights() -> Vector:
    """Return w_0 + ... + w_j for j below `SETTLED`, where they no longer change."""
    found: Vector = np.cumsum([weight(place) for place in range(SETTLED)])
    return found


@cache
def _products() -> Matrix:
    """Return the covariances of the sums of n and of n + l releases, for n, l up to `SETTLED`.

    A draw enters a sum with as many weights as there are releases behind it.
    """
    sums = np.append(_sums_of_weights(), np.full(SETTLED + 1, _sums_of_weights()[-1]))
    lags = np.arange(SETTLED)[:, None] + np.arange(SETTLED + 1)
    found = np.cumsum(sums[:SETTLED, None] * sums[lags], axis=0) * SQUARED_NORM
    table: Matrix = np.vstack([np.zeros(SETTLED + 1), found])
    return table


def covariance_of_sums(one: Integers, other: Integers) -> Vector:
    """Return the covariance of the noise in the first so many releases of a chain, shape (n,).

    In units of the noise of one release that remembers nothing.
    """
    fewer, apart = np.minimum(one, other), np.abs(one - other)
    table, least = _products(), np.minimum(fewer, SETTLED)
    beyond = (fewer - least) * (SQUARED_NORM * float(_sums_of_weights()[-1]) ** 2)
    found: Vector = table[least, np.minimum(apart, SETTLED)] + beyond
    return found


@dataclass(frozen=True, slots=True, eq=False)
class Chain:
    """Where a client's noise stands: what its next release is made with.

    Kept in the transaction of the release before it, and never sent: rows and releases together
    tell the exact sums of the last seven windows.

    chain: Number of the release with which it could begin: a client that may be behind its own
        releases begins a new one, which none before it is.
    number: Of its last release; 0 before the first.
    slots: Record slots of its releases.
    starts: For each epoch the number of the first release in it or in a later one; 0 where none is.
    rows: The last seven rows of noise, the newest first, shape (7, m); m = 0 before the first.
    """

    chain: int = 0
    number: int = 0
    slots: int = 0
    starts: tuple[int, ...] = (0,) * EPOCHS
    rows: Integers = field(default_factory=lambda: empty_rows(0))

    @property
    def epoch(self) -> int:
        """Of its last release; -1 before the first."""
        return sum(start > 0 for start in self.starts) - 1

    def behind(self, slots: int, epoch: int, rows: Integers | None) -> Chain:
        """Return the chain behind one more release.

        slots: Of the release.
        epoch: Of the model at which it was taken, no lower than that of the one before.
        rows: Of noise behind it; None where releases remember nothing.
        """
        number = self.number + 1
        starts = tuple(
            start or (number if place <= epoch else 0) for place, start in enumerate(self.starts)
        )
        kept = self.rows if rows is None else rows
        return Chain(self.chain, number, self.slots + slots, starts, kept)


def epoch_of(watermark: int, records: int) -> int:
    """Return the epoch of a model that had seen so many record slots: doublings of a window's.

    watermark: >= 0.
    records: Slots of the smallest window.
    """
    return min(max(1, watermark // records).bit_length() - 1, EPOCHS - 1)


def epochs_of(watermarks: Integers, records: int) -> Integers:
    """Return the epochs of many models, shape (n,)."""
    times = np.minimum(np.maximum(watermarks // records, 1), 1 << (EPOCHS - 1))
    epochs: Integers = np.frexp(times.astype(np.float64))[1].astype(np.int64) - 1
    return epochs
