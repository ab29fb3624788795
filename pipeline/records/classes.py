"""Which of a study's two classes a value stands for: one rule for every way a record comes in.

A value stands for a class if, without blanks at its ends,

1. it is the text of the class;
2. or both are truth values: true or false of JSON, or the words "true" and "false" in any case;
3. or both are the same number, in double precision: 1, 1.0 and "1.0" stand for "1". Here true of
   JSON is 1 and false is 0; the words are no numbers.

Where the two classes are the same truth value or the same number, that rule does not hold.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from pipeline.errors import RecordError
from pipeline.records.values import number_of, plain, text_of

Value = TypeVar("Value", bool, float)
_WORDS = {"true": True, "false": False}


class Classes:
    """The two classes of one column.

    Parameters
    ----------
    name
        The column.
    positive, negative
        The two values, as the study file writes them.

    Attributes
    ----------
    numbers
        The classes that are numbers; empty if both are the same one.
    """

    def __init__(self, name: str, positive: str, negative: str) -> None:
        self._name = name
        self._texts = {positive: 1.0, negative: -1.0}
        self._truths = _apart(_WORDS.get(text.lower()) for text in (positive, negative))
        self.numbers = _apart(_number(text) for text in (positive, negative))

    def sign(self, value: object) -> float:
        """Return +1 for the positive class, -1 for the negative one.

        Raises
        ------
        RecordError
            If there is no value, or it stands for neither.
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
            raise RecordError(
                f"column {self._name!r}: unknown class; allowed: "
                f"{', '.join(map(repr, self._texts))}"
            )
        return found


def _number(value: object) -> float | None:
    try:
        return number_of(value, "")
    except RecordError:
        return None


def _apart(values: Iterable[Value | None]) -> dict[Value, float]:
    """Return the positive and the negative value with their signs; none if they are the same."""
    positive, negative = values
    if positive == negative:
        return {}
    signs = ((positive, 1.0), (negative, -1.0))
    return {value: sign for value, sign in signs if value is not None}
