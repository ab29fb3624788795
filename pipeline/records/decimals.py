"""Numbers from many short texts at once, with the very bits that Python's `float` gives.

Eight bytes are a word of 64 bits, and its eight digits become a number in three products. Of two
words the number and the power of ten that it is divided by are exact in double precision, so that
it rounds once. A third word makes up to 19 digits: a division in two parts, whose sum rounds as one
would but where the quotient is all but half-way between two numbers. What is written otherwise, or
is as near to half-way, is left to the caller.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from pipeline.records.batch import Mask
from pipeline.types import Integers, Vector

Bytes: TypeAlias = NDArray[np.uint8]
Words: TypeAlias = NDArray[np.uint64]

#: Bytes of a word, and of the longest text that is read here, without its sign.
_WORD = 8
LONGEST = 3 * _WORD
_POINT, _MINUS = ord("."), ord("-")
#: Powers of ten, exact in double precision up to 10^22; the last one is for no point.
_TENS = np.append(10.0 ** np.arange(LONGEST), 1.0)
#: So much of the third word, and all of two others, is less than 2^64.
_MOST = 1843
#: Splits a number of double precision into halves whose products are exact.
_SPLIT = 2.0**27 + 1
#: A quotient so near to half-way, in units of the last place, may round either way.
_HALF_WAY = 2.0**-30


def _words(*words: int) -> Words:
    return np.array(words, dtype=np.uint64)


_ALL = 2**64 - 1
#: The last k bytes of a word, and its first ones, k from 0 to 8: the first byte is the lowest.
_LAST = _words(*(_ALL - 2 ** (64 - 8 * k) + 1 for k in range(_WORD + 1)))
_FIRST = _words(*(2 ** (8 * k) - 1 for k in range(_WORD + 1)))
_ZEROS, _OVER_NINE, _TOPS = _words(*(0x0101010101010101 * byte for byte in (0x30, 0x76, 0x80)))
_PAIRS, _HUNDREDS, _MILLIONS = _words(0xFF000000FF, 100 + (10**6 << 32), 1 + (10**4 << 32))
_EIGHT, _SIXTEEN, _HALF, _TOP = _words(8, 16, 32, 56)
_TEN, _EIGHT_DIGITS = _words(10, 10**8)

#: For k digits behind a point, k = `LONGEST` for no point, and each word from the last on: which
#: of its bytes stay, which move by one to close the gap, and whether one of the word before comes.
_DIGITS = np.arange(LONGEST + 1)
_GAPS = [
    (
        _LAST[np.clip(_DIGITS - before, 0, _WORD)],
        _FIRST[_WORD - np.clip(_DIGITS + 1 - before, 0, _WORD)],
        np.where(before + _WORD > _DIGITS, _words(_ALL), _words(0)),
    )
    for before in range(0, LONGEST, _WORD)
]


def decimals(text: Bytes, starts: Integers, ends: Integers) -> tuple[Vector, Mask]:
    """Read numbers such as 7, -0.25 or 12.; n of them.

    text: Bytes, with `LONGEST` more in front of the first text.
    starts, ends: Where each text begins, and behind its last byte, (n,).

    Returns: The numbers, and which texts are such numbers, (n,); others are 0.
    """
    negative = text.take(starts) == _MINUS
    negative &= starts < ends
    starts, is_point = starts + negative, text == _POINT
    # the place of the last point before the end of each text: it may be one of another
    points = np.append(-1, np.flatnonzero(is_point))
    last = points.take(np.cumsum(is_point, dtype=np.int32).take(ends - 1))
    (low, high), behind, sure = _digits(text, starts, ends, last, 2)
    # at most 15 digits and a point, or 16 without one: one of the two steps is exact
    values = (high * _EIGHT_DIGITS + low).astype(np.float64)
    values /= _TENS.take(behind)
    left = np.flatnonzero(~sure)
    values[left], sure[left] = _of_19_digits(text, starts[left], ends[left], last[left])
    np.negative(values, out=values, where=negative & sure)
    return values, sure


def _digits(
    text: Bytes, starts: Integers, ends: Integers, last: Integers, count: int
) -> tuple[list[Words], Integers, Mask]:
    """Return texts as so many numbers of eight digits each, the last ones first.

    Also how many digits are behind the point, and which texts are digits and one point at most.
    """
    size, pointed = ends - starts, last >= starts
    sure = (size > pointed) & (size <= count * _WORD)
    behind = np.where(pointed, np.minimum(ends - 1 - last, LONGEST), LONGEST)
    # any eight bytes that follow each other are a word
    every = np.ndarray(len(text) - _WORD + 1, np.dtype("<u8"), text.data, strides=(1,))
    words = [every[ends - _WORD * (place + 1)] for place in range(count)]
    for place in range(count):
        words[place] ^= _ZEROS
        words[place] &= _LAST.take(np.clip(size - _WORD * place, 0, _WORD))
    found, over_nine = list[Words](), np.zeros(len(size), dtype=np.uint64)
    for place, word in enumerate(words):
        stay, move, come = (gap.take(behind) for gap in _GAPS[place])
        closed = (word & stay) | ((word & move) << _EIGHT)
        if place + 1 < count:
            closed |= (words[place + 1] >> _TOP) & come
        over_nine |= (closed + _OVER_NINE) | closed
        found.append(_number(closed))
    sure &= (over_nine & _TOPS) == 0
    return found, behind, sure


def _number(word: Words) -> Words:
    """Return the numbers of eight digits each, the first in the lowest byte."""
    pairs = word * _TEN + (word >> _EIGHT)
    low = (pairs & _PAIRS) * _HUNDREDS
    high = ((pairs >> _SIXTEEN) & _PAIRS) * _MILLIONS
    total: Words = (low + high) >> _HALF
    return total


def _of_19_digits(
    text: Bytes, starts: Integers, ends: Integers, last: Integers
) -> tuple[Vector, Mask]:
    """As `decimals`, without signs."""
    (low, middle, high), behind, sure = _digits(text, starts, ends, last, 3)
    sure &= (high <= _MOST) & (behind != LONGEST - 1)
    whole = np.where(sure, (high * _EIGHT_DIGITS + middle) * _EIGHT_DIGITS + low, 0)
    rounded, tens = whole.astype(np.float64), _TENS.take(behind)
    beyond = (whole - rounded.astype(np.uint64)).astype(np.int64)
    quotient = rounded / tens
    # what its product with the power of ten lacks, exactly: in halves of which no product rounds
    (head, tail), (ten_head, ten_tail) = _halves(quotient), _halves(tens)
    product = quotient * tens
    error = ((head * ten_head - product) + head * ten_tail + tail * ten_head) + tail * ten_tail
    rest = (rounded - product - error + beyond) / tens
    values = quotient + rest
    lost = np.abs((rest - (values - quotient)) / np.spacing(values))
    # below a power of two numbers lie twice as close
    sure &= (np.abs(lost - 0.5) > _HALF_WAY) & (np.abs(lost - 0.25) > _HALF_WAY)
    return np.where(sure, values, 0.0), sure


def _halves(values: Vector) -> tuple[Vector, Vector]:
    scaled = _SPLIT * values
    head: Vector = scaled - (scaled - values)
    return head, values - head
