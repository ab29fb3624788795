"""Which of a column's declared texts a value stands for: one rule for every way a record comes in.

A value stands for a text, of a class or of a level, if, without blanks at its ends,

1. it is the text;
2. or both are truth values: true or false of JSON, or the words "true" and "false" in any case;
3. or both are the same number, in double precision: 1, 1.0 and "1.0" stand for "1". Here true of
   JSON is 1 and false is 0; the words are no numbers.

Where two of the texts are the same truth value or the same number, that rule does not hold.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import RecordError
from pipeline.records.values import Faults, number_of, plain, read_all, text_of
from pipeline.types import Vector

Value = TypeVar("Value", bool, float)
_WORDS = {"true": True, "false": False}
#: So many texts are named in an error.
NAMED = 8
#: So many more ways to write the texts of a column are remembered.
SPELLINGS = 256


class Codes:
    """The declared texts of one column, each with the number that stands for it.

    what: What a text is, in words: "class" or "level".
    codes: Each text, as the study file writes it, with its number.

    numbers: The texts that are numbers; empty if two are the same one.
    """

    def __init__(self, name: str, what: str, codes: Mapping[str, float]) -> None:
        self._name, self._texts = name, dict(codes)
        self._truths = _apart((_WORDS.get(text.lower()), code) for text, code in codes.items())
        self.numbers = _apart((_number(text), code) for text, code in codes.items())
        named = [*map(repr, list(codes)[:NAMED]), *(["..."] if len(codes) > NAMED else [])]
        self._known: dict[tuple[type, object], float] = {
            (str, text): code for text, code in codes.items() if text == text.strip()
        }
        #: What `code` says of a value that stands for none of them.
        self.refusal = f"column {name!r}: unknown {what}; allowed: {', '.join(named)}"

    def code(self, value: object) -> float:
        """Return the number of the text that a value stands for.

        Raises RecordError if there is no value, or it stands for none.
        """
        value = plain(value)
        if isinstance(value, bool):
            found = self._truths.get(value, self.numbers.get(float(value)))
        else:
            text = text_of(value, self._name)
            found = self._texts.get(text)
            if found is None and self._truths:
                truth = _WORDS.get(text.lower())
                found = None if truth is None else self._truths.get(truth)
            if found is None and self.numbers:
                number = _number(value)
                found = None if number is None else self.numbers.get(number)
        if found is None:
            blank = isinstance(value, str) and not value.strip()
            raise RecordError(f"column {self._name!r}: missing" if blank else self.refusal)
        return found

    def codes_in(self, values: Sequence[object]) -> tuple[list[float], Faults]:
        """Return the numbers of the texts that many values stand for, 0 where `code` refuses."""
        # 1 and true are the same key, and need not stand for the same text
        return read_all(
            list(zip(map(type, values), values, strict=True)),
            self._known.__getitem__, lambda at: self._learned(values[at]),
        )  # fmt: skip

    def _learned(self, value: object) -> float:
        found = self.code(value)
        if len(self._known) < len(self._texts) + SPELLINGS and isinstance(value, (str, int, float)):
            self._known[type(value), value] = found
        return found

    def of_column(self, column: NDArray[Any]) -> Vector:
        """Return the codes of a column, NaN where `code` refuses; shape (n,)."""
        if column.dtype.kind in "biuf":
            # of a column of one type few values are different, and none is a list
            different, places = np.unique(column, return_inverse=True)
            codes = [self._code_or_nan(value) for value in different.tolist()]
            return np.array(codes, dtype=np.float64)[places]
        values = column.tolist()
        try:
            # 1 and true are the same key, and need not stand for the same text
            keys = [(type(value), value) for value in values]
            known = {key: self._code_or_nan(key[1]) for key in set(keys)}
            return np.array([known[key] for key in keys], dtype=np.float64)
        except TypeError:  # a list or an object of JSON is no key
            return np.array([self._code_or_nan(value) for value in values], dtype=np.float64)

    def _code_or_nan(self, value: object) -> float:
        try:
            return self.code(value)
        except RecordError:
            return math.nan


def _number(value: object) -> float | None:
    try:
        return number_of(value, "")
    except RecordError:
        return None


def _apart(pairs: Iterable[tuple[Value | None, float]]) -> dict[Value, float]:
    """Return values with their codes; none if two of them are the same."""
    known = [(value, code) for value, code in pairs if value is not None]
    found = dict(known)
    return found if len(found) == len(known) else {}
