"""The response: the two classes of a study, as records and as callers write them."""

from __future__ import annotations

import math
from typing import TypeAlias

from pipeline.errors import RecordError
from pipeline.local.values import Record, plain, text_of

#: A class label: the text of the study file, or the number or truth value that it stands for.
Label: TypeAlias = str | int | float | bool


class Response:
    """The response column with its classes: +1 for the positive one, -1 for the negative one.

    Parameters
    ----------
    name
        The column.
    positive, negative
        The two values, as the study file writes them.
    """

    def __init__(self, name: str, positive: str, negative: str) -> None:
        self.name, self.positive, self.negative = name, positive, negative
        self._texts = {positive: 1.0, negative: -1.0}
        self._numbers = _numbers(self._texts)

    def of_record(self, record: Record) -> float:
        """Return the class of a record as +1 or -1.

        Raises
        ------
        RecordError
            If the column is missing, or holds another value than the two classes.
        """
        return self._sign(self._texts.get(text_of(record.get(self.name), self.name)))

    def of_label(self, label: object) -> float:
        """Return the class of a label as +1 or -1; a number or truth value matches its text.

        Raises
        ------
        RecordError
            As `of_record`.
        """
        label = plain(label)
        if isinstance(label, (bool, int, float)) and self._numbers:
            return self._sign(self._numbers.get(float(label)))
        return self._sign(self._texts.get(text_of(label, self.name)))

    def labels(self, like: object = "") -> tuple[Label, Label]:
        """Return the labels of the negative and the positive class, in the type of `like`.

        Parameters
        ----------
        like
            A label as the caller writes it: 1 for whole numbers, True for truth values, and so
            on. Classes that are no numbers stay text.
        """
        like = plain(like)
        if isinstance(like, (bool, int, float)) and self._numbers:
            negative, positive = sorted(self._numbers, key=self._numbers.__getitem__)
            return _as(type(like), negative), _as(type(like), positive)
        return self.negative, self.positive

    def _sign(self, found: float | None) -> float:
        if found is None:
            raise RecordError(
                f"column {self.name!r}: unknown class; allowed: {', '.join(map(repr, self._texts))}"
            )
        return found


def _as(kind: type[bool] | type[int] | type[float], number: float) -> Label:
    """Return a number in another type, if that can hold it."""
    return kind(number) if kind(number) == number else number


def _numbers(texts: dict[str, float]) -> dict[float, float]:
    """Return the classes by number, if both are numbers and not the same one."""
    numbers = {}
    for text, sign in texts.items():
        try:
            number = float(text)
        except ValueError:
            return {}
        if math.isfinite(number):
            numbers[number] = sign
    return numbers if len(numbers) == 2 else {}
