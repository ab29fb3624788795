"""Numbers from many short texts at once, with the very bits that Python's `float` gives.

Sixteen bytes are two words of 64 bits, whose eight digits become a number in three products. What
is written otherwise, or in more digits than double precision holds, is left to the caller.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pipeline.records.batch import Mask
from pipeline.types import Integers, Vector

#: Bytes of the longest text that is read here, without its sign: two words.
LONGEST = 16
_WORD, _POINT, _MINUS = 8, ord("."), ord("-")
#: Whole numbers and powers of ten up to these are exact in double precision, so that one division
#: rounds once, and correctly.
_EXACT, _TENS = 2**53, 10.0 ** np.arange(LONGEST)


def _bytes_of(*words: int) -> NDArray[np.uint64]:
    return np.array(words, dtype=np.uint64)


_ALL = 2**64 - 1
#: The last k bytes of a word, and its first ones, k from 0 to 8: the first byte is the lowest.
_LAST = _bytes_of(*(_ALL - 2 ** (64 - 8 * k) + 1 for k in range(_WORD + 1)))
_FIRST = _bytes_of(*(2 ** (8 * k) - 1 for k in range(_WORD + 1)))
_ZEROS, _OVER_NINE, _TOPS = _bytes_of(*(0x0101010101010101 * byte for byte in (0x30, 0x76, 0x80)))
_PAIRS, _HUNDREDS, _MILLIONS = _bytes_of(0xFF000000FF, 100 + (10**6 << 32), 1 + (10**4 << 32))
_EIGHT, _SIXTEEN, _HALF, _TOP = _bytes_of(8, 16, 32, 56)
_TEN, _EIGHT_DIGITS = _bytes_of(10, 10**8)

#: Of the two words, for k digits behind a point: which bytes of each stay, which move by one to
#: close its gap, and which of the earlier word's move into the later; k = 16 stands for no point.
_PLACES = np.arange(LONGEST + 1)
_STAY = _LAST[np.minimum(_PLACES, _WORD)], _LAST[np.maximum(_PLACES - _WORD, 0)]
_MOVE = (
    _FIRST[np.maximum(_WORD - 1 - _PLACES, 0)],
    _FIRST[np.where(_PLACES < _WORD, _WORD, np.maximum(LONGEST - 1 - _PLACES, 0))],
)
_OVER = np.where(_PLACES < _WORD, _bytes_of(_ALL), _bytes_of(0))


def decimals(text: NDArray[np.uint8], starts: Integers, ends: Integers) -> tuple[Vector, Mask]:
    """Read numbers such as 7, -0.25 or 12.; n of them.

    text: Bytes, with `LONGEST` more in front of the first text.
    starts, ends: Where each text begins, and behind its last byte, (n,).

    Returns: The numbers, and which texts are such numbers, (n,); others are 0.
    """
    negative = text.take(starts) == _MINUS
    negative &= starts < ends
    size = ends - starts
    size -= negative
    is_point = text == _POINT
    points, before = np.flatnonzero(is_point), np.cumsum(is_point, dtype=np.int32)
    last = before.take(ends - 1)
    pointed = last > before.take(ends - size - 1)
    pointed &= size > 0
    behind = np.full(len(size), LONGEST)
    if len(points):
        digits = ends - 1 - points.take(np.maximum(last - 1, 0))
        np.copyto(behind, digits, where=pointed & (digits < LONGEST))
    short = size <= LONGEST
    np.minimum(size, LONGEST, out=size)
    sure = size > pointed
    sure &= short
    # any eight bytes that follow each other are a word
    words = np.ndarray(len(text) - _WORD + 1, np.dtype("<u8"), text.data, strides=(1,))
    final, first = words[ends - _WORD], words[ends - 2 * _WORD]
    final ^= _ZEROS
    first ^= _ZEROS
    final &= _LAST.take(np.minimum(size, _WORD))
    first &= _LAST.take(np.maximum(size - _WORD, 0))
    over = (first >> _TOP) & _OVER.take(behind)
    final = (final & _STAY[0].take(behind)) | ((final & _MOVE[0].take(behind)) << _EIGHT) | over
    first = (first & _STAY[1].take(behind)) | ((first & _MOVE[1].take(behind)) << _EIGHT)
    sure &= (((final + _OVER_NINE) | final | (first + _OVER_NINE) | first) & _TOPS) == 0
    whole = _number(first) * _EIGHT_DIGITS + _number(final)
    sure &= whole <= _EXACT
    values = whole.astype(np.float64)
    values /= _TENS.take(behind, mode="wrap")
    np.negative(values, out=values, where=negative)
    return np.where(sure, values, 0.0), sure


def _number(word: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return the numbers of eight digits each, the first in the lowest byte."""
    pairs = word * _TEN + (word >> _EIGHT)
    low = (pairs & _PAIRS) * _HUNDREDS
    high = ((pairs >> _SIXTEEN) & _PAIRS) * _MILLIONS
    total: NDArray[np.uint64] = (low + high) >> _HALF
    return total
