"""Record slots by column: what a source hands out, and what the encoder reads.

Columns of a type of numbers are arrays, and are read without a look at a single value; all others
are lists of Python's values.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from functools import cached_property
from typing import Any, NamedTuple, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from pipeline.records.values import Foreign, Record
from pipeline.types import Integers, Vector

Said = TypeVar("Said")
#: Which of many slots, shape (n,).
Mask: TypeAlias = NDArray[np.bool_]


class Column(NamedTuple):
    """One value for each slot.

    values: An array of numbers, truth values or times, (n,), or a list with None for missing.
    gone: Where an array holds no value; False: nowhere.
    zoned: Whether times of an array are moments, in UTC; else nobody has said of which zone.
    wrong: What is said of values that are no numbers, by place: an array has any number there.
    """

    values: NDArray[Any] | list[Any]
    gone: Mask | bool = False
    zoned: bool = False
    wrong: Mapping[int, str] = {}

    @classmethod
    def of(cls, values: NDArray[Any]) -> Column:
        """Return the column that an array of any type is; in one of objects None is missing."""
        return cls(values if values.dtype.kind in "fiubM" else values.tolist())

    @property
    def typed(self) -> bool:
        """Whether it is an array of numbers or truth values."""
        return not isinstance(self.values, list) and self.values.dtype.kind != "M"

    @property
    def numbers(self) -> Vector:
        """The values of a typed column, shape (n,); any number where there is none."""
        # bits that lie where there is no value may be of no number
        with np.errstate(invalid="ignore"):
            return np.asarray(self.values, dtype=np.float64)

    @property
    def missing(self) -> Mask:
        """Where a typed column has no value, shape (n,)."""
        return np.broadcast_to(self.gone, len(self.values))

    def objects(self) -> list[object]:
        """Return Python's values, with None for missing."""
        if isinstance(self.values, list):
            return self.values
        if self.values.dtype.kind == "M":
            unit, _ = np.datetime_data(self.values.dtype)
            # what is finer than microseconds would become a number
            held = self.values if unit == "D" else self.values.astype("datetime64[us]")
            return [_time(value, unit, zoned=self.zoned) for value in held.tolist()]
        found: list[object] = self.values.tolist()
        for at in np.flatnonzero(self.gone):
            found[at] = None
        return found

    def at(self, place: int) -> object:
        """Return one of Python's values."""
        if not isinstance(self.values, list):
            return self.part(slice(place, place + 1)).objects()[0]
        return self.values[place]

    def part(self, places: slice) -> Column:
        """Return the values of some slots."""
        gone = self.gone
        return self._replace(
            values=self.values[places], gone=gone if isinstance(gone, bool) else gone[places],
            wrong=moved(self.wrong, places, len(self.values)),
        )  # fmt: skip

    @classmethod
    def shuffled(cls, parts: Sequence[Column], order: Integers) -> Column:
        """Return the values of several columns, one after another, in another order."""
        if all(part.typed for part in parts):
            values = np.concatenate([np.asarray(part.values) for part in parts])
            return cls(values[order], np.concatenate([part.missing for part in parts])[order])
        every = [value for part in parts for value in part.objects()]
        return cls([every[at] for at in order])


def _time(value: object, unit: str, *, zoned: bool) -> object:
    """Return a time as Python has it, or what stands for one that it has not."""
    if isinstance(value, int):
        return Foreign("date" if unit == "D" else f"timestamp[{unit}]")
    return value.replace(tzinfo=UTC) if zoned and isinstance(value, datetime) else value


class Batch(ABC):
    """Consecutive record slots.

    lost: Places whose slot holds no record, each with the reason; what the columns have there is of
        no record.
    """

    lost: Mapping[int, str]

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of slots."""

    @abstractmethod
    def columns(self, names: Sequence[str], numbers: Collection[str] = ()) -> dict[str, Column]:
        """Return columns by name; one that is not there has no value anywhere.

        numbers: Names of those of which nothing but numbers is read; they may come as such.
        """

    def record(self, at: int) -> Record | None:
        """Return one record; None if the slot holds none."""
        return None if at in self.lost else self._record(at)

    @abstractmethod
    def part(self, places: slice) -> Batch:
        """Return some slots, one after the other."""

    @abstractmethod
    def _record(self, at: int) -> Record:
        """Return what the columns have of one slot."""

    def _lost(self, places: slice) -> dict[int, str]:
        return moved(self.lost, places, len(self))


def moved(said: Mapping[int, Said], places: slice, size: int) -> dict[int, Said]:
    """Return what is said of some of so many places, by their place among those."""
    first, last, _ = places.indices(size)
    return {at - first: why for at, why in said.items() if first <= at < last}


class Records(Batch):
    """Slots whose records have come one by one.

    records: One for each slot, in a lost one any.
    """

    def __init__(self, records: Sequence[Record], lost: Mapping[int, str] | None = None) -> None:
        self.records, self.lost = records, lost or {}

    def __len__(self) -> int:
        """As `Batch`."""
        return len(self.records)

    def columns(self, names: Sequence[str], numbers: Collection[str] = ()) -> dict[str, Column]:
        """As `Batch.columns`."""
        del numbers
        return {name: Column([record.get(name) for record in self.records]) for name in names}

    def part(self, places: slice) -> Records:
        """As `Batch.part`."""
        return Records(self.records[places], self._lost(places))

    def _record(self, at: int) -> Record:
        return self.records[at]


class Columns(Batch):
    """Slots whose records have come as columns.

    columns: By name, each of n values or more.
    first: Which of these is that of the first slot.
    """

    def __init__(
        self, columns: Mapping[str, Column], size: int, lost: Mapping[int, str] | None = None,
        first: int = 0,
    ) -> None:  # fmt: skip
        self._columns, self._size, self.lost, self._first = columns, size, lost or {}, first

    def __len__(self) -> int:
        """As `Batch`."""
        return self._size

    def columns(self, names: Sequence[str], numbers: Collection[str] = ()) -> dict[str, Column]:
        """As `Batch.columns`."""
        del numbers
        there = slice(self._first, self._first + self._size)
        return {
            name: self._columns[name].part(there)
            if name in self._columns else Column([None] * self._size)
            for name in names
        }  # fmt: skip

    def part(self, places: slice) -> Columns:
        """As `Batch.part`; columns are cut when they are asked for."""
        first, last, _ = places.indices(self._size)
        size = max(0, last - first)
        return Columns(self._columns, size, self._lost(places), self._first + first)

    def _record(self, at: int) -> Record:
        return {name: column.at(self._first + at) for name, column in self._columns.items()}


#: Behind all columns with a fault.
NO_COLUMN = 2**31 - 1


class Kinds:
    """What may be wrong with columns of a type, m kinds in the order in which they count.

    words: What is said of each, (m,).
    columns: The places of the columns that they are about, (m,).
    """

    def __init__(self, words: Sequence[str] = (), columns: Sequence[int] = ()) -> None:
        self.words, self.columns = (*words,), (*columns,)
        #: The code of each; "" for nothing.
        self.codes = {said: code for code, said in enumerate(("", *words))}
        # the one that counts first has the largest number, and its code is minus that
        small = np.uint8 if len(words) < 2**8 else np.uint16
        self.numbers = np.arange(-1, -1 - len(words), -1).astype(small)[:, None]

    def followed(self, by: Kinds) -> Kinds:
        """Return these and others."""
        return Kinds((*self.words, *by.words), (*self.columns, *by.columns))


#: Nothing may be wrong, but what is said of single slots.
NO_KINDS = Kinds()


class Reasons:
    """Why slots are empty: of each the first thing that is wrong, in the order of the columns.

    kinds: What may be wrong; their codes are 1 and so on.

    seen: Which of these is wrong with which of n slots, (m, n): nothing, until it is written here.
    """

    def __init__(self, size: int, kinds: Kinds = NO_KINDS) -> None:
        self.seen = np.zeros((len(kinds.words), size), dtype=np.bool_)
        self._numbers, self._codes = kinds.numbers, kinds.codes.copy()
        #: Of each code the place of the column.
        self._places = [NO_COLUMN, *kinds.columns]
        #: Of single slots: the place of the column, and words.
        self._alone: dict[int, tuple[int, str]] = {}

    def put(self, at: int, column: int, words: str) -> None:
        """Take a fault of one slot; column: its place in the order of columns, -1 before all."""
        if at not in self._alone or self._alone[at][0] > column:
            self._alone[at] = column, words

    def before(self, column: int) -> list[int]:
        """Return the slots that have a fault of their own before a column."""
        return [at for at, (place, _) in self._alone.items() if place < column]

    @cached_property
    def codes(self) -> NDArray[np.int32]:
        """For each slot the code of what is wrong with it; 0: nothing; (n,).

        Behind the first look nothing more may be added.
        """
        codes = np.zeros(self.seen.shape[1], dtype=np.int32)
        if len(self.seen):
            np.negative(np.maximum.reduce(self.seen * self._numbers, axis=0), out=codes)
        places = self._places
        for at, (column, words) in self._alone.items():
            if places[codes[at]] >= column:
                if words not in self._codes:
                    # the fewest steps: a bad record must hardly take longer than a good one
                    self._codes[words] = len(places)
                    places += [column]
                codes[at] = self._codes[words]
        return codes

    @property
    def words(self) -> list[str]:
        """What the codes stand for."""
        return list(self._codes)

    @property
    def columns(self) -> Integers:
        """The place of the column that is wrong with each slot, (n,)."""
        return np.array(self._places).take(self.codes)

    def count(self, places: slice = slice(None)) -> Counter[str]:
        """Count the slots by words; "" counts the good ones."""
        counts = np.bincount(self.codes[places]).tolist()
        named = zip(self._codes, counts, strict=False)
        return Counter({words: count for words, count in named if count})
