"""The response of a study, as records and as callers write it, to one encoded number.

Classes become -1 and +1, numbers are clipped to their public range and mapped to [-1, 1], counts
are clipped to theirs and keep their unit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import RecordError
from pipeline.records.classes import Codes
from pipeline.records.values import Faults, misspelt, number_of, numbers_in, numbers_of, plain
from pipeline.study import Study
from pipeline.types import Vector

#: A class label: the text of the study file, or the number or truth value that it stands for.
Label: TypeAlias = str | int | float | bool


class Response(Protocol):
    """The response column: one value to its encoded form, and whether it had to be clipped."""

    @property
    def name(self) -> str:
        """The column."""

    @property
    def refusals(self) -> tuple[str, ...]:
        """What is said of an undeclared class, or of numbers that are written in other forms."""

    def of_label(self, label: object) -> tuple[float, bool]:
        """Return a value encoded, as a record or a caller has it, and whether it was clipped.

        Raises RecordError if there is none, or it is one that the study does not know.
        """

    def of_labels(self, labels: Sequence[object]) -> tuple[Vector, NDArray[np.bool_], Faults]:
        """Return the same of many, each of shape (n,), and the errors of those with a fault."""

    def of_column(self, column: NDArray[Any]) -> tuple[Vector, Vector]:
        """Return a column encoded, and as it was written; NaN where `of_label` would refuse."""


def response_of(study: Study) -> Response:
    """Return the response of a study."""
    response = study.data.response
    if response.kind == "class":
        negative, positive = response.classes
        return ClassResponse(response.name, positive, negative)
    return NumberResponse(response.name, *response.ends, whole=response.kind == "count")


class NumberResponse:
    """A number or a count with its public range.

    low, high: The ends of the range; values beyond are clipped.
    whole: Whether it is a count: a whole number >= 0, which keeps its unit; else the range is
        mapped to [-1, 1].

    centre, unit: A response is centre + unit times its encoded form.
    """

    def __init__(self, name: str, low: float, high: float, *, whole: bool) -> None:
        self.refusals: tuple[str, ...] = misspelt(name)
        self.name, self._low, self._high, self._whole = name, low, high, whole
        self.centre = 0.0 if whole else low / 2 + high / 2
        self.unit = 1.0 if whole else high / 2 - low / 2

    def of_label(self, label: object) -> tuple[float, bool]:
        """As `Response.of_label`; RecordError as `value_of`."""
        value = self.value_of(label)
        inside = min(max(value, self._low), self._high)
        scaled = (inside - self.centre) / self.unit
        # the division may leave [-1, 1] by a rounding error; the bound must hold exactly
        bounded = scaled if self._whole else min(max(scaled, -1.0), 1.0)
        return bounded, inside != value

    def of_labels(self, labels: Sequence[object]) -> tuple[Vector, NDArray[np.bool_], Faults]:
        """As `Response.of_labels`."""
        numbers, faults = numbers_in(labels, (self.name,))
        values = np.array(numbers)
        for at in np.flatnonzero(~self._allowed(values)).tolist():
            try:
                self.value_of(labels[at])
            except RecordError as fault:
                faults[at] = fault
        inside, bounded = self._encoded(values)
        return bounded, inside != values, faults

    def of_column(self, column: NDArray[Any]) -> tuple[Vector, Vector]:
        """As `Response.of_column`."""
        values = numbers_of(column, self.name)
        values = np.where(self._allowed(values), values, np.nan)
        return self._encoded(values)[1], values

    def _allowed(self, values: Vector) -> NDArray[np.bool_]:
        allowed: NDArray[np.bool_] = np.isfinite(values)
        return allowed & (values >= 0) & (values == np.floor(values)) if self._whole else allowed

    def _encoded(self, values: Vector) -> tuple[Vector, Vector]:
        """Return values cut to the range, and their encoded form."""
        # as max and min of Python choose, between 0 and -0 too
        inside: Vector = np.where(values < self._low, self._low, values)
        inside = np.where(inside > self._high, self._high, inside)
        scaled = (inside - self.centre) / self.unit
        return inside, scaled if self._whole else np.minimum(np.maximum(scaled, -1.0), 1.0)

    def value_of(self, label: object) -> float:
        """Return the response in its own unit, as it was written: without any clipping.

        Raises RecordError if it is missing, no finite number, or for a count negative or not whole.
        """
        value = number_of(label, self.name)
        if self._whole and (value < 0 or value != math.floor(value)):
            raise RecordError(f"column {self.name!r}: not a count, a whole number from 0 on")
        return value


class ClassResponse:
    """The response column with its classes: +1 for the positive one, -1 for the negative one.

    positive, negative: The two values, as the study file writes them.
    """

    def __init__(self, name: str, positive: str, negative: str) -> None:
        self.name, self.positive, self.negative = name, positive, negative
        self._classes = Codes(name, "class", {positive: 1.0, negative: -1.0})
        self.refusals: tuple[str, ...] = (self._classes.refusal,)

    def of_label(self, label: object) -> tuple[float, bool]:
        """Return a class as +1 or -1; it is never clipped.

        Raises RecordError if it is missing, or another value than those of the two classes.
        """
        return self._classes.code(label), False

    def of_labels(self, labels: Sequence[object]) -> tuple[Vector, NDArray[np.bool_], Faults]:
        """As `Response.of_labels`."""
        signs, faults = self._classes.codes_in(labels)
        return np.array(signs), np.zeros(len(labels), dtype=np.bool_), faults

    def of_column(self, column: NDArray[Any]) -> tuple[Vector, Vector]:
        """As `Response.of_column`; a class is written as it is encoded."""
        signs = self._classes.of_column(column)
        return signs, signs

    def labels(self, like: object = "") -> tuple[Label, Label]:
        """Return the labels of the negative and the positive class, in the type of `like`.

        like: A label as the caller writes it: 1 for whole numbers, True for truth values, and so
            on. Classes that are no numbers stay text.
        """
        like = plain(like)
        numbers = self._classes.numbers
        if isinstance(like, (bool, int, float)) and len(numbers) == 2:
            negative, positive = sorted(numbers, key=numbers.__getitem__)
            return _as(type(like), negative), _as(type(like), positive)
        return self.negative, self.positive


def _as(kind: type[bool] | type[int] | type[float], number: float) -> Label:
    """Return a number in another type, if that can hold it."""
    return kind(number) if kind(number) == number else number
