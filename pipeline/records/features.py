"""Features and the response, as columns of the encoder.

The features of records: read by column, checked, and made into the columns of the encoding.

The response of a study, as records and as callers write it, to one encoded number.

Classes become -1 and +1, numbers are clipped to their public range and mapped to [-1, 1], counts
are clipped to theirs and keep their unit.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from itertools import chain
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import DataError, RecordError
from pipeline.records.batch import Column, Kinds, Mask, Reasons
from pipeline.records.values import (
    Codes,
    Record,
    is_missing,
    misspelt,
    not_finite,
    number_of,
    plain,
    read_all,
    read_as_written,
    without,
)
from pipeline.study.data import Feature, indicator_of
from pipeline.study.encoding import Encoding
from pipeline.study.model import Study
from pipeline.types import Matrix, Vector

#: What separates columns in files that are no CSV file for this program.
OTHER_MARKS = (";", "\t", "|")
#: Names are alike from this share of their letters on, as difflib counts them.
LIKE = 0.75
#: So many letters at the beginning make names alike, too, and so many such names are said.
PART, NEAREST = 3, 3


class Features:
    """The features with their public ranges and levels: one code for a record and for many.

    A value is a number in the feature's own unit, or the place of a level, counted from 0.

    features: By name, in the order of the study.
    interactions: Each as "a:b".
    unit: Whether ranges are mapped to [-1, 1]; else values keep their units.

    columns: The columns of a source that it reads.
    names: Of the values, k of them: the columns, and indicators of what is missing in them.
    encoding: How their values become columns of the predictor.
    """

    def __init__(
        self, features: Mapping[str, Feature], interactions: Sequence[str] = (), *, unit: bool
    ) -> None:
        self.columns = tuple(features)
        self.encoding = Encoding(features, interactions, unit=unit)
        self.names = self.encoding.names
        #: What is read where there is no value, and what the indicator is called, if it has one.
        self._instead = {
            name: (feature.missing, indicator_of(name) if feature.indicator else None)
            for name, feature in features.items()
            if feature.missing != "drop"
        }
        self._codes = {
            name: Codes(name, "level", {level: float(i) for i, level in enumerate(found.levels)})
            for name, found in self.encoding.features.items()
            if found.levels is not None
        }
        refused = [
            self._codes[name].refusal if name in self._codes else not_finite(name)
            for name in self.names
        ]
        both = list(zip(map(without, self.names), refused, strict=True))
        #: What may be wrong with a column of a type: two kinds for each of the `names`.
        self.kinds = Kinds(
            tuple(chain.from_iterable(both)), tuple(at // 2 for at in range(2 * len(both)))
        )

    @classmethod
    def of(cls, study: Study) -> Features:
        """Return the features of a study."""
        data = study.data
        return cls(data.features, data.interactions, unit=data.scaling == "unit")

    @property
    def texts(self) -> frozenset[str]:
        """Names of the categories."""
        return frozenset(self._codes)

    @property
    def refusals(self) -> tuple[str, ...]:
        """What is said of undeclared levels, and of numbers that are written in other forms."""
        numbers = (misspelt(name) for name in self.names if name not in self._codes)
        return (*(codes.refusal for codes in self._codes.values()), *chain.from_iterable(numbers))

    def check_columns(self, columns: Sequence[str], *others: str) -> None:
        """Refuse a source that lacks a feature, or one of the `others`.

        Raises DataError, naming the columns that are missing.
        """
        needed = (*self.columns, *others)
        missing = [name for name in needed if name not in columns]
        if missing:
            raise DataError(
                f"the source has no column {', '.join(map(repr, missing))}; the study needs "
                f"{', '.join(needed)}{there(columns, needed)}"
            )

    def value(self, name: str, given: object, *, keep: bool = False) -> float:
        """Return one value of a feature.

        keep: Whether there is NaN where it is missing.

        Raises RecordError if it is missing, no finite number, or no level that the study declares.
        """
        codes = self._codes.get(name)
        try:
            return number_of(given, name) if codes is None else codes.code(given)
        except RecordError:
            if keep and is_missing(given):
                return math.nan
            raise

    def filled(self, record: Record) -> Record:
        """Return a record with public values in place of missing ones, and with indicators."""
        if not self._instead:
            return record
        found = dict(record)
        for name, (public, indicator) in self._instead.items():
            gone = is_missing(found.get(name))
            found[name] = public if gone else found[name]
            if indicator:
                found[indicator] = "" if gone else "present"
        return found

    def without_gaps(self, given: Mapping[str, Column]) -> Mapping[str, Column]:
        """Return columns as `filled` does their records."""
        if not self._instead:
            return given
        columns = dict(given)
        for name, (public, indicator) in self._instead.items():
            column = columns[name]
            if column.typed and not isinstance(public, str):
                gone = column.missing | np.isnan(column.numbers)
                held = np.where(gone, public, column.numbers)
                columns[name] = column._replace(values=held, gone=False)
                gaps = gone.tolist()
            else:
                values = column.objects()
                gaps = list(map(is_missing, values))
                pairs = zip(values, gaps, strict=True)
                columns[name] = Column([public if gap else value for value, gap in pairs])
            if indicator:
                columns[indicator] = Column(["" if gap else "present" for gap in gaps])
        return columns

    def values(self, record: Record, *, keep: bool = False) -> Vector:
        """Return the values of one record, shape (k,); `keep` and RecordError as `value`."""
        record = self.filled(record)
        return np.array([self.value(name, record.get(name), keep=keep) for name in self.names])

    def read(self, given: Mapping[str, Column], dummy: Record, reasons: Reasons) -> Matrix:
        """Return the values of many records, shape (n, k), and add what is wrong with them.

        given: The columns of the records; of bad ones the values that are returned mean nothing.
        dummy: Behind the fault of a bad record its columns are read: the time that a record takes
            shows in when releases come, and must not tell of bad ones.
        """
        columns = self.without_gaps(given)
        # one column behind the other: what follows works on whole columns
        values = np.empty((len(self.names), reasons.seen.shape[1]))
        gone, bad = (reasons.seen[kind : 2 * len(values) : 2] for kind in (0, 1))
        lists, texts = list[int](), list[int]()
        for place, name in enumerate(self.names):
            column, codes = columns[name], self._codes.get(name)
            if column.typed:
                values[place] = _typed(column, codes, place, reasons)
                gone[place] = column.gone
            else:
                (lists if codes is None else texts).append(place)
        if lists:
            of_place = {place: columns[self.names[place]] for place in lists}
            read = _numbers(of_place, self.names, dummy, reasons)
            for place, found in zip(lists, read, strict=True):
                values[place] = found
        for place in texts:
            name = self.names[place]
            values[place] = _coded(columns[name], self._codes[name], place, dummy[name], reasons)
        np.logical_not(np.isfinite(values, out=bad), out=bad)
        return np.where(bad, 0.0, values).T

    def clip(self, values: Matrix | Vector) -> Matrix:
        """Clip finite values to their public ranges, shape (..., k)."""
        return self.encoding.clip(values)

    def encode(self, inside: Matrix | Vector) -> Matrix:
        """Return the columns of values of the ranges, (..., k) to (..., p)."""
        return self.encoding.encode(inside)

    def outside(self, values: Matrix) -> Counter[str]:
        """Count the values that clipping changes, by feature; of values (n, k) or (k,)."""
        beyond = np.atleast_2d(self.clip(values) != values).sum(axis=0).tolist()
        return Counter({n: count for n, count in zip(self.names, beyond, strict=True) if count})


def _typed(column: Column, codes: Codes | None, place: int, reasons: Reasons) -> Vector:
    """Return a typed column as numbers that may not be finite, (n,), and add what is wrong.

    codes: Of texts, where they are read; NaN stands for what is none.
    """
    for at, said in column.wrong.items():
        reasons.put(at, place, said)
    return column.numbers if codes is None else codes.typed(np.asarray(column.values))


def _numbers(
    columns: Mapping[int, Column], names: Mapping[int, str] | Sequence[str], dummy: Record,
    reasons: Reasons,
) -> Matrix:  # fmt: skip
    """Return lists as numbers that may not be finite, (m, n), and add what is wrong.

    columns: By their places, in their order.
    dummy: Is read behind a fault.
    """
    places, size = list(columns), reasons.seen.shape[1]
    public = [dummy[names[place]] for place in places]
    # one column behind the other: all are read in one pass
    given = [*chain.from_iterable(column.objects() for column in columns.values())]
    quick: list[Any] = read_as_written(given)
    for at in reasons.before(places[0]):
        quick[at::size] = public

    def exact(at: int) -> float:
        which, slot = divmod(at, size)
        try:
            return number_of(given[at], names[places[which]])
        except RecordError as error:
            reasons.put(slot, places[which], str(error))
            quick[at + size :: size] = public[which + 1 :]
            return 0.0

    return np.array(read_all(quick, float, exact)).reshape(len(places), size)


def _coded(
    column: Column, codes: Codes, place: int, dummy: object, reasons: Reasons
) -> list[float]:
    """Return the codes of a list of texts, (n,), and add what is wrong; `dummy` as `_numbers`."""
    given = [*column.objects()]
    for at in reasons.before(place):
        given[at] = dummy

    def exact(at: int) -> float:
        try:
            return codes.learned(given[at])
        except RecordError as error:
            reasons.put(at, place, str(error))
            return 0.0

    return codes.codes_in(given, exact)


def there(columns: Sequence[str], needed: Sequence[str], *, of_file: bool = True) -> str:
    """Return in words which columns a source has in place of those that it needs and lacks.

    Only names like those of the study are named: the first line of a file without a header is a
    record. Others are counted.

    of_file: Whether it may be a file without a header, or with other marks between its columns.
    """
    if len(columns) == 1 and any(mark in str(columns[0]) for mark in OTHER_MARKS):
        return (
            "; its columns are not separated by commas, as those of a CSV file must be, with "
            "points in numbers: docs/guides/files.md converts it in one line"
        )
    left = [str(name) for name in columns if name not in needed]
    plain = {_letters(name): name for name in left}
    like = {
        plain[found]: None
        for name in needed
        if name not in columns
        for found in get_close_matches(_letters(name), plain, n=1, cutoff=LIKE)
        or [other for other in plain if other[:PART] == _letters(name)[:PART]][:NEAREST]
    }
    if like:
        return f"; it has {', '.join(map(repr, like))}: names are compared letter by letter"
    if not of_file:
        return ""
    others = f"{len(left)} other{'s' if len(left) != 1 else ''}"
    return f"; the first line of a CSV file is its header, and this source has {others}"


def _letters(name: str) -> str:
    return "".join(filter(str.isalnum, name.casefold()))


#: A class label: the text of the study file, or the number or truth value that it stands for.
Label: TypeAlias = str | int | float | bool


#: Behind all features: the place of the response among the columns that may have faults.
LAST = 2**30


class Responses(NamedTuple):
    """The responses of many records; of bad ones they mean nothing.

    encoded, written: As the encoder gives them, and in their own unit before any clipping; (n,).
    beyond: Which were clipped, (n,).
    """

    encoded: Vector
    written: Vector
    beyond: Mask

    @classmethod
    def of_classes(cls, signs: Vector) -> Responses:
        """Return classes: they are written as they are encoded, and never clipped."""
        return cls(signs, signs.copy(), np.zeros(len(signs), dtype=np.bool_))


class Response(Protocol):
    """The response column: one value to its encoded form, and whether it had to be clipped."""

    @property
    def name(self) -> str:
        """The column."""

    @property
    def refusals(self) -> tuple[str, ...]:
        """What is said of an undeclared class, or of numbers that are written in other forms."""

    @property
    def kinds(self) -> Kinds:
        """What may be wrong with a column of a type: the last of the kinds of `Reasons`."""

    def of_label(self, label: object) -> tuple[float, bool]:
        """Return a value encoded, as a record or a caller has it, and whether it was clipped.

        Raises RecordError if there is none, or it is one that the study does not know.
        """

    def read(self, column: Column, dummy: object, reasons: Reasons) -> Responses:
        """Return those of many records, and add what is wrong with them.

        dummy: Is read in place of what stands behind another fault.
        """

    def far(self, written: Vector) -> Mask:
        """Return which values lie further outside their range than that is wide, (n,)."""


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
        self._no_count = f"column {name!r}: not a count, a whole number from 0 on"
        self.kinds = Kinds((without(name), not_finite(name), self._no_count), (LAST,) * 3)
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

    def read(self, column: Column, dummy: object, reasons: Reasons) -> Responses:
        """As `Response.read`."""
        gone, bad, no_count = reasons.seen[-3:]
        if column.typed:
            values, gone[:] = _typed(column, None, LAST, reasons), column.gone
        else:
            names = {LAST: self.name}
            [values] = _numbers({LAST: column}, names, {self.name: dummy}, reasons)
        np.logical_not(np.isfinite(values, out=bad), out=bad)
        values = np.where(bad, 0.0, values)
        np.logical_not(self._allowed(values), out=no_count)
        inside, bounded = self._encoded(values)
        return Responses(bounded, values, inside != values)

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

    def far(self, written: Vector) -> Mask:
        """As `Response.far`."""
        far: Mask = np.abs(written - self._encoded(written)[0]) > self._high - self._low
        return far

    def value_of(self, label: object) -> float:
        """Return the response in its own unit, as it was written: without any clipping.

        Raises RecordError if it is missing, no finite number, or for a count negative or not whole.
        """
        value = number_of(label, self.name)
        if self._whole and (value < 0 or value != math.floor(value)):
            raise RecordError(self._no_count)
        return value


class ClassResponse:
    """The response column with its classes: +1 for the positive one, -1 for the negative one.

    positive, negative: The two values, as the study file writes them.
    """

    def __init__(self, name: str, positive: str, negative: str) -> None:
        self.name, self.positive, self.negative = name, positive, negative
        self._classes = Codes(name, "class", {positive: 1.0, negative: -1.0})
        self.refusals: tuple[str, ...] = (self._classes.refusal,)
        self.kinds = Kinds((without(name), self._classes.refusal), (LAST,) * 2)

    def of_label(self, label: object) -> tuple[float, bool]:
        """Return a class as +1 or -1; it is never clipped.

        Raises RecordError if it is missing, or another value than those of the two classes.
        """
        return self._classes.code(label), False

    def read(self, column: Column, dummy: object, reasons: Reasons) -> Responses:
        """As `Response.read`."""
        gone, bad = reasons.seen[-2:]
        if not column.typed:
            return Responses.of_classes(
                np.array(_coded(column, self._classes, LAST, dummy, reasons))
            )
        signs, gone[:] = _typed(column, self._classes, LAST, reasons), column.gone
        np.isnan(signs, out=bad)
        return Responses.of_classes(np.where(bad, 0.0, signs))

    def far(self, written: Vector) -> Mask:
        """As `Response.far`: none."""
        return np.zeros(len(written), dtype=np.bool_)

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
