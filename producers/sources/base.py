"""What a source is: one slot for every record, good or bad.

A bad record stays as an empty slot, so that its form cannot shift the windows behind it. Reasons
name the line and what is wrong, never a value.

Rows that are counted: a position is how many of them were handed out.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Annotated, BinaryIO, NamedTuple, TypeVar, overload

import msgspec

from pipeline.errors import DataError
from pipeline.records.batch import Batch, Records
from pipeline.records.values import Record
from pipeline.settings import Settings

#: Values that are read at a time, at most, where records have many columns: they are in memory.
CELLS = 1 << 20
#: A whole number that is not negative.
Natural = Annotated[int, msgspec.Meta(ge=0)]
Form = TypeVar("Form", bound=msgspec.Struct)


class Slot(msgspec.Struct, frozen=True):
    """One record slot: the record, or why there is none, and how to resume behind it.

    line: Where the record begins: a line of its file, or its number where there are no lines.
    """

    record: Mapping[str, object] | None
    fault: str | None
    position: bytes
    line: int

    @property
    def kind(self) -> str:
        """Of the fault, without its line: counts for each line would grow without bound."""
        return (self.fault or "unreadable").split(": ", maxsplit=1)[-1]


class Slots(Sequence[Slot]):
    """Consecutive slots whose records have come as columns; one by one, they are `Slot`s.

    batch: Their records.
    place: Returns the position behind one of them, by its number, and its line.
    name: Returns what a fault of one of them begins with; by default its line.
    first: The number of the first, for both.
    """

    def __init__(
        self, batch: Batch, place: Callable[[int], tuple[bytes, int]],
        name: Callable[[int], str] | None = None, first: int = 0,
    ) -> None:  # fmt: skip
        self.batch, self._place, self._first = batch, place, first
        self._name = name or (lambda number: f"line {place(number)[1]}")

    def __len__(self) -> int:
        return len(self.batch)

    @overload
    def __getitem__(self, at: int) -> Slot: ...
    @overload
    def __getitem__(self, at: slice) -> Slots: ...

    def __getitem__(self, at: int | slice) -> Slot | Slots:
        if isinstance(at, slice):
            first = self._first + at.indices(len(self))[0]
            return Slots(self.batch.part(at), self._place, self._name, first)
        number = range(len(self))[at]
        position, line = self._place(self._first + number)
        why = self.batch.lost.get(number)
        fault = why and f"{self._name(self._first + number)}: {why}"
        return Slot(self.batch.record(number), fault, position, line)

    def __eq__(self, other: object) -> bool:
        """Whether they are the same slots, one by one."""
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    @property
    def position(self) -> bytes:
        """How to resume behind the last of them."""
        return self._place(self._first + len(self) - 1)[0]


def wait_for(due: float, deadline: float) -> bool:
    """Wait for a moment of the monotonic clock, up to a deadline; return whether it has come."""
    time.sleep(max(0.0, min(due, deadline) - time.monotonic()))
    return time.monotonic() >= due


def batch_of(slots: Sequence[Slot], dummy: Record) -> Batch:
    """Return the records of slots; in place of one that is not there a public one."""
    if isinstance(slots, Slots):
        return slots.batch
    lost = {at: slot.kind for at, slot in enumerate(slots) if slot.record is None}
    return Records([dummy if slot.record is None else slot.record for slot in slots], lost)


def behind(slots: Sequence[Slot]) -> bytes:
    """Return how to resume behind the last of some slots."""
    return slots.position if isinstance(slots, Slots) else slots[-1].position


class Known(NamedTuple):
    """What a source is known by, whether it is opened or not.

    name: Stable name for the privacy ledger: it holds no password, and the same records keep it.
    location: Which data it is, by whatever name: a second client on them is found by it; None for
        what comes once.
    key: The column that says the place of a record alone, and is none of its values.
    """

    name: str
    location: str | None
    key: str = ""


@dataclass(frozen=True, slots=True)
class Opening:
    """How a source is to be opened.

    position: Behind which slot to resume; None is the start.
    folder: The client's own folder: what comes once is kept there.
    follow: Whether to wait for more behind the end that there is now.
    form: What standard input holds: "csv" or "jsonl".
    stream: What to read as standard input.
    settings: Which Kafka a topic is on; only clients read one.
    say: Told of what people should know of it.
    skip_lost: Whether to go on behind what was pushed, and is lost.
    columns: Those that are needed: no source of columns with types reads others. None: all.
    """

    position: bytes | None = None
    folder: Path = Path()
    follow: bool = False
    form: str = "csv"
    stream: BinaryIO | None = None
    settings: Settings | None = None
    say: Callable[[str], None] = lambda _: None
    skip_lost: bool = False
    columns: Collection[str] | None = None


class Source(ABC):
    """Where the raw records of one client come from; by default somebody else keeps them.

    identity: Stable name of the source for the privacy ledger.
    repeats: Whether its records always come in the same order, so that they can be counted.
    columns: The columns, if they are known before the records are read.
    """

    identity: str
    repeats = True
    columns: list[str] | None = None

    @abstractmethod
    def read(self, limit: int, timeout: float) -> Sequence[Slot]:
        """Return up to `limit` slots, none if nothing came within `timeout` seconds.

        Raises DataError if the source fails, or is no longer what was read from.
        """

    @property
    @abstractmethod
    def ended(self) -> bool:
        """Whether the end was reached and everything was handed out; never while it follows."""

    @property
    def progress(self) -> float | None:
        """The share that was read, 0 to 1; None while nobody knows how much there will be."""
        return None

    def anchored(self, position: bytes) -> bytes:
        """Return a position with a mark of what lies before it, for storing.

        A source that was rewritten is found out by it: it would hand records out again.
        """
        return position

    def forget(self, position: bytes) -> None:
        """Release storage that only slots up to this committed position needed."""
        del position

    @abstractmethod
    def close(self) -> None:
        """Close what is open."""


class Position(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a stored position holds, decoded.

    kind: The kind of source.
    at, line: An offset, and a line number for messages.
    mark: Of what lies before the offset; empty where nothing can be rewritten.
    """

    kind: str
    at: Natural
    line: Natural
    mark: str = ""


def decode_position(position: bytes, kind: str, name: str) -> Position:
    """Return the contents of a position; DataError if it is no position of this kind of source."""
    return read_position(
        position, Position, lambda found: found.kind == kind, name, f"a source of kind {kind!r}"
    )


def read_position(
    position: bytes, form: type[Form], is_own: Callable[[Form], bool], name: str, what: str
) -> Form:
    """Return the contents of a position; DataError if it is no such form or of another source.

    name, what: Of the source, such as "this table", for the message.
    """
    try:
        found = msgspec.json.decode(position, type=form)
    except (msgspec.DecodeError, UnicodeDecodeError):
        found = None
    if found is None or not is_own(found):
        raise DataError(
            f"{name}: the stored position is not one of {what}; the data owner must name the "
            "source that this client has read from before"
        )
    return found


class CountedRows(Source):
    """Rows of which there is a known number, and which nobody rewrites.

    identity, columns: As of `Source`.
    total: How many rows there are.
    rows: Returns those from a number on, which is at most `total`.
    position: Behind which slot to resume; None is the start.

    Raises DataError if the position is of another source, or lies behind the last row.
    """

    def __init__(
        self, identity: str, columns: Sequence[str], total: int,
        rows: Callable[[int], Iterator[Mapping[str, object]]], position: bytes | None,
    ) -> None:  # fmt: skip
        self.identity, self.columns, self.total = identity, list(columns), total
        self._done = 0 if position is None else decode_position(position, identity, identity).at
        if self._done > total:
            raise DataError(
                f"{identity}: the data is shorter than what was already released from; the data "
                "owner must name the source this client has read from before"
            )
        self._rest = rows(self._done)

    @property
    def ended(self) -> bool:
        return self._done == self.total

    @property
    def progress(self) -> float:
        return self._done / self.total if self.total else 1.0

    def read(self, limit: int, timeout: float) -> list[Slot]:
        """Return up to `limit` slots; nobody ever waits."""
        del timeout
        return [self._slot(row) for row in islice(self._rest, limit)]

    def close(self) -> None:
        """Let go of the rows."""
        self._rest = iter(())

    def _slot(self, row: Mapping[str, object]) -> Slot:
        self._done += 1
        found = Position(self.identity, self._done, self._done)
        return Slot(row, None, msgspec.json.encode(found), self._done)
