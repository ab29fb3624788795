"""One value of a record, and the declared levels and classes that it may be.

One value of a record: text, a finite number, a time; errors name its column, never the value.

Which of a column's declared texts a value stands for: one rule for every way a record comes in.

A value stands for a text, of a class or of a level, if, without blanks at its ends,

1. it is the text;
2. or both are truth values: true or false of JSON, or the words "true" and "false" in any case;
3. or both are the same number, in double precision: 1, 1.0 and "1.0" stand for "1". Here true of
   JSON is 1 and false is 0; the words are no numbers.

Where two of the texts are the same truth value or the same number, that rule does not hold.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, TypeVar
from uuid import UUID

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import RecordError
from pipeline.types import Vector

#: What a source yields: column names to text or numbers.
Record = Mapping[str, object]
#: Types whose values Python's `float` reads as `number_of` does, or refuses with it; of texts only
#: those without a "_" are read alike.
_ALIKE = {float, int, bool, type(None), dict, list}
#: Forms of numbers that mostly the large or the negative ones of a column have: to leave those
#: records out moves every estimate. Each is a group of the expression below.
_FORMS = tuple(
    f"a number with {form}; allowed are digits, a decimal point, and - before negative ones"
    for form in (
        "thousands separators", "a decimal comma", "a minus that is not the ASCII one",
        "a minus behind it or in brackets", "a percent sign", "a sign of currency",
    )
)  # fmt: skip
_WRITTEN = re.compile(
    r"([-+\u2212]?\d{1,3}(?:(?:,\d{3})+|(?:\.\d{3})+|(?:[ '\u2019\u00a0\u2009\u202f]\d{3})+)"
    r"(?:[.,]\d+)?)"
    r"|([-+\u2212]?\d*,\d+(?:[eE][-+]?\d+)?)"
    r"|([\u2010-\u2015\u2212\ufe63\uff0d]\s*[\d.,]+(?:[eE][-+]?\d+)?)"
    r"|([\d.,]+-|\([\d.,]+\))"
    r"|([-+\u2212]?[\d.,]+\s*[%\u2030])"
    r"|([-+]?[$\u00a3\u00a5\u20ac]\s*[-+]?[\d.,]+|[-+]?[\d.,]+\s*[$\u00a3\u00a5\u20ac])"
)


@dataclass(frozen=True, slots=True)
class Foreign:
    """A value of a source that Python has none for, such as a day of the year 10000.

    kind: Its type, as the source calls it.
    """

    kind: str


def plain(value: object) -> object:
    """Return a number, text or truth value of NumPy as Python's own; all else as it is."""
    # a time is no number, although NumPy gives it as one
    if isinstance(value, np.generic) and value.dtype.kind in "fiubU":
        return value.item()
    return value


def is_missing(value: object) -> bool:
    """Whether there is no value: None, as of an absent key; a blank text; NaN, or NA of pandas."""
    if isinstance(value, str):
        return not value or value.isspace()
    if isinstance(value, float | np.floating):
        return bool(np.isnan(value))
    return value is None or type(value).__name__ in {"NAType", "NaTType"}


def text_of(value: object, name: str) -> str:
    """Return a value as text without blanks at its ends; true and false are "1" and "0".

    Raises RecordError if there is none, or its type is none of a number, a text or a truth value.
    """
    if isinstance(value, str):
        return value.strip()
    value = plain(value)
    if value is None:
        raise RecordError(without(name))
    if isinstance(value, bool):
        return str(int(value))
    if isinstance(value, int | float | Decimal | UUID):
        return str(value)
    raise RecordError(
        f"column {name!r}: a value of type {_type_of(value)}; allowed are numbers, texts and "
        "truth values"
    )


def _type_of(value: object) -> str:
    return value.kind if isinstance(value, Foreign) else type(value).__name__


def misspelt(name: str) -> tuple[str, ...]:
    """Return what `number_of` says of numbers that are written in no form that it reads."""
    return tuple(f"column {name!r}: {said}" for said in _FORMS)


def without(name: str) -> str:
    """Return what is said of a value that is missing."""
    return f"column {name!r}: missing"


def not_finite(name: str) -> str:
    """Return what is said of a number that is NaN or infinite."""
    return f"column {name!r}: not a finite number"


def number_of(value: object, name: str) -> float:
    """Return a value as a finite number; RecordError if it is missing or no finite number."""
    if not isinstance(value, (str, float, int)):
        value = plain(value)
    if not isinstance(value, (float, int)) or isinstance(value, bool):
        value = text_of(value, name)
        if "_" in value:
            # Python reads 1_000 as a number; no other program does
            raise RecordError(f"column {name!r}: not a number")
    try:
        number = float(value)
    except (ValueError, OverflowError):
        text = value if isinstance(value, str) else "?"
        form = _WRITTEN.fullmatch(text)
        said = _FORMS[form.lastindex - 1] if form and form.lastindex else "not a number"
        raise RecordError(f"column {name!r}: {said}" if text else without(name)) from None
    if not math.isfinite(number):
        raise RecordError(not_finite(name))
    return number


def read_all(
    values: Sequence[object], quick: Callable[[Any], float], exact: Callable[[int], float]
) -> list[float]:
    """Read many values, each by `exact`, which takes its place, where `quick` refuses.

    A value that is refused costs the others nothing: what they take must not tell of it.
    """
    found: list[float] = []
    rest = map(quick, values)
    while True:
        try:
            # what was read before an error stays in the list, and the rest goes on behind it
            found.extend(rest)
        except (TypeError, ValueError, OverflowError, KeyError, RecordError):
            found.append(exact(len(found)))
        else:
            return found


def read_as_written(values: Sequence[Any]) -> list[object]:
    """Return values of which Python's `float` reads each as `number_of` does, or refuses it."""
    # Python reads 1_000 as a number; no other program does
    return [
        value if type(value) in _ALIKE or (isinstance(value, str) and "_" not in value) else "_"
        for value in values
    ]


#: A number from here on counts milliseconds: as seconds it would lie after the year 5000.
MILLISECONDS_FROM = 1e11
#: A larger number is no time.
LARGEST_NUMBER = 1e16
_RFC3339 = re.compile(
    r"\d{4}-\d{2}-\d{2}[Tt ]\d{2}:\d{2}:\d{2}(\.\d{1,9})?([Zz]|[+-]\d{2}:\d{2})", re.ASCII
)


def parse_rfc3339(text: str) -> int | None:
    """Return a time with a zone as milliseconds since 1970, rounded down; None if it is none."""
    if not _RFC3339.fullmatch(text):
        return None
    try:
        return _milliseconds(datetime.fromisoformat(text.upper()))
    except (ValueError, OverflowError):
        return None


def time_of(value: object, column: str) -> int:
    """Return the time that a field of a record says, in milliseconds since 1970, rounded down.

    value: RFC 3339 with a zone, each record with its own; or a number of seconds since 1970, of
        milliseconds from `MILLISECONDS_FROM` on; or a `datetime` with a zone.

    Raises RecordError if it is none of these, or before 1970. The message names the column, never
    the value.
    """
    found = milliseconds_of(value)
    if found is None:
        typed = "" if value is None or isinstance(value, str | int | float) else (
            f" but type {_type_of(value)}"
        )  # fmt: skip
        raise RecordError(
            f"column {column!r} holds no time{typed}: allowed are RFC 3339 with a zone and numbers "
            "of seconds or milliseconds since 1970"
        )
    if found < 0:
        raise RecordError(f"column {column!r} holds a time before 1970")
    return found


def milliseconds_of(value: object) -> int | None:
    """Return a time as `time_of` reads it, also before 1970; None if it is none."""
    if isinstance(value, datetime):
        return None if value.tzinfo is None else _milliseconds(value)
    if isinstance(value, bool):
        return None
    if isinstance(value, str):
        text = value.strip()
        found = parse_rfc3339(text)
        if found is not None or not re.fullmatch(r"-?\d+(\.\d+)?([eE]\+?\d{1,2})?", text, re.ASCII):
            return found
        value = int(text) if text.lstrip("-").isdecimal() and len(text) < 20 else float(text)
    if not isinstance(value, int | float):
        return None
    # the size first: a whole number of 400 digits is no float at all
    if abs(value) > LARGEST_NUMBER or not math.isfinite(value):
        return None
    return math.floor(value if abs(value) >= MILLISECONDS_FROM else value * 1000)


def _milliseconds(moment: datetime) -> int:
    passed = moment - datetime(1970, 1, 1, tzinfo=UTC)
    return (passed.days * 86_400 + passed.seconds) * 1000 + passed.microseconds // 1000


Value = TypeVar("Value", bool, float)
#: Words that are truth values, in any case.
WORDS = {"true": True, "false": False}
#: Below it every whole number is one of double precision; whole numbers of 64 bits as Python writes
#: them.
EXACT, _WHOLE = 2**53, re.compile(r"0|-?[1-9]\d{0,19}", re.ASCII)
#: So many texts are named in an error, and so many are looked for one by one.
NAMED, FEW = 8, 8
#: So many more ways to write the texts of a column are remembered.
SPELLINGS = 256


class Codes:
    """The declared texts of one column, each with the number that stands for it.

    what: What a text is, in words: "class" or "level".
    codes: Each text, as the study file writes it, with its number.

    numbers: The texts that are numbers; empty if two are the same one.
    """

    def __init__(self, name: str, what: str, codes: Mapping[str, float]) -> None:
        self.name, self._texts = name, dict(codes)
        self._truths = _apart((WORDS.get(text.lower()), code) for text, code in codes.items())
        self.numbers = _apart((_number(text), code) for text, code in codes.items())
        named = [*map(repr, list(codes)[:NAMED]), *(["..."] if len(codes) > NAMED else [])]
        #: Whether equal values stand for the same text: 1 and true need not, where a text is true.
        self._by_value = not self._truths and (
            bool(self.numbers) or all(_number(text) is None for text in codes)
        )
        self._known: dict[Any, float] = {
            self._key(text): code for text, code in codes.items() if text == text.strip()
        }
        #: Of whole numbers that double precision may not tell apart: those that are a text.
        self._large = {
            number: code
            for text, code in codes.items()
            if _WHOLE.fullmatch(text) and abs(number := int(text)) >= EXACT
        }
        #: For a type of numbers those that stand for a text, with their codes.
        self._tables: dict[str, tuple[Vector, Vector]] = {}
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
            text = text_of(value, self.name)
            found = self._texts.get(text)
            if found is None and self._truths:
                truth = WORDS.get(text.lower())
                found = None if truth is None else self._truths.get(truth)
            if found is None and self.numbers:
                number = _number(value)
                found = None if number is None else self.numbers.get(number)
        if found is None:
            blank = isinstance(value, str) and not value.strip()
            raise RecordError(without(self.name) if blank else self.refusal)
        return found

    def codes_in(self, values: Sequence[object], exact: Callable[[int], float]) -> list[float]:
        """Return the numbers of the texts that many values stand for.

        exact: Says it of the value at a place that is new here; see `learned`.
        """
        keys = values if self._by_value else list(map(self._key, values))
        return read_all(keys, self._known.__getitem__, exact)

    def learned(self, value: object) -> float:
        """Return the number of one text as `code` does, and remember it."""
        found = self.code(value)
        if len(self._known) < len(self._texts) + SPELLINGS and isinstance(value, (str, int, float)):
            self._known[self._key(value)] = found
        return found

    def _key(self, value: object) -> object:
        return value if self._by_value else (type(value), value)

    def typed(self, column: NDArray[Any]) -> Vector:
        """Return the codes of a column of numbers or truth values, NaN where `code` refuses; (n,).

        It takes as long for values that stand for none.
        """
        kind = column.dtype.kind
        if kind not in self._tables:
            self._tables[kind] = self._table(kind)
        keys, codes = self._tables[kind]
        with np.errstate(invalid="ignore"):
            values = column.astype(np.float64)
        if len(keys) <= FEW:
            found = np.full(len(values), math.nan)
            for key, code in zip(keys.tolist(), codes.tolist(), strict=True):
                same = np.isnan(values) if math.isnan(key) else values == key
                found = np.where(same, code, found)
        else:
            at = np.minimum(np.searchsorted(keys, values), len(keys) - 1)
            same = (keys[at] == values) | (np.isnan(keys[at]) & np.isnan(values))
            found = np.where(same, codes[at], math.nan)
        if kind in "iu":
            for number, code in self._large.items():
                found = np.where(column == number, code, found)
        return found

    def _table(self, kind: str) -> tuple[Vector, Vector]:
        """Return the numbers that stand for a text in a column of some type, and their codes."""
        read = (_number(text) for text in self._texts)
        numbers = sorted({0.0, *(number for number in read if number is not None)})
        if kind == "b":
            given: Sequence[float] = [False, True]
        elif kind in "iu":
            whole = (int(number) for number in numbers if number.is_integer())
            # several of those beyond are one number in double precision, and different texts
            given = [n if abs(n) < EXACT else float(n) for n in whole]
        else:
            given = [-math.inf, *numbers, math.inf, math.nan]
        codes = [(float(value), self._code_or_nan(value)) for value in given]
        keys, found = np.array([pair for pair in codes if pair[1] == pair[1]] or codes[:1]).T
        return keys, found

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
