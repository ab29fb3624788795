"""CSV: UTF-8 with a header line, quoted as RFC 4180 says; plain lines are split together."""

from __future__ import annotations

import codecs
import csv
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

import numpy as np

from pipeline.errors import DataError, RecordError
from pipeline.records.batch import Batch, Column, moved
from pipeline.records.decimals import LONGEST, decimals
from pipeline.records.values import (
    Record,
    is_missing,
    not_finite,
    number_of,
    read_all,
    read_as_written,
)
from pipeline.types import Integers
from producers.sources.base import CELLS, Slot
from producers.sources.text import (
    NEWLINE,
    OLD_ENDS,
    RECORD_LIMIT,
    Cut,
    RecordFile,
    Tape,
    check_start,
)

_COMMA, _ASCII = ord(","), 127
_QUOTING = "quotes that do not close where the field ends"
_OPEN = "a quote opens a field and is never closed"
_STRAY = "a quote opens a field, and the next ones that close it are lines below"
_LONG = "a field that is too long"
#: What csv says, by its beginning, and what is said of it here.
_FAULTS = {"field larger": _LONG, "unexpected end": _OPEN}
#: The lines of a quoted field are taken for records if each has the commas of one, and so many all
#: together: fewer are often there by chance.
COMMAS = 3
#: So many fields of that kind are told.
TOLD = 3
#: Stands for a CR that ends no line, which csv refuses: no byte is decoded to it.
_CR = "\udc0d"


class CsvFile(RecordFile):
    """The records of a tape of CSV.

    tape: Where the bytes come from.
    position: Behind which slot to resume; None is the start.
    say: Told where a quote would take records along.
    """

    form = "csv"
    odd, longest = b'"\r\0', csv.field_size_limit()

    def __init__(
        self, tape: Tape, position: bytes | None, say: Callable[[str], None] = lambda _: None
    ) -> None:
        self._tape, self._say, self._told = tape, say, 0
        columns, start = tape.columns(), (tape.base, 2)
        if columns is None:
            columns, start = self._header()
        self.columns: list[str] = columns
        # a missing value of the one column: the slots behind it must not move up
        self.blanks = len(columns) == 1
        # each takes the room of all columns, however short it is
        self.most = max(1, CELLS // len(columns))
        super().__init__(tape, position, start)

    def _header(self) -> tuple[list[str], tuple[int, int]]:
        self._at = 3 if self._tape.line(0, 3) == codecs.BOM_UTF8 else 0
        end, final = self._tape.extent(self._at)
        first = self._tape.line(self._at, max(min(RECORD_LIMIT, end - self._at), 0))
        check_start(first, self._tape.name)
        raw: list[bytes] = []
        fields = self._fields(first, raw, end, final)
        whole = b"".join(raw)
        if fields is None or not (final or whole.endswith(b"\n")):
            raise DataError(
                f"{self._tape.name}: there is no complete header line yet; the data owner must "
                "write the header before the client starts"
            )
        start = (self._at + len(whole), 1 + whole.count(b"\n"))
        return check_header(fields, whole, self._tape.name), start

    def _cut(self, first: bytes, end: int, final: bool) -> Cut | None:
        raw: list[bytes] = []
        fields = self._fields(first, raw, end, final)
        if fields is None:
            return None
        if not isinstance(fields, str) and self._swallowed(raw[1:]):
            fields = _STRAY
            self._tell(len(raw))
        if isinstance(fields, str):
            # one wrong quote must not take the lines behind it along: go on at the next line
            return Cut(first, None, fields)
        whole = b"".join(raw)
        fields = fields or [""]
        if not _is_utf8(whole):
            return Cut(whole, None, "not UTF-8")
        if len(fields) != len(self.columns):
            fault = _too_few_or_many(len(fields), len(self.columns))
            return Cut(whole, None, OLD_ENDS if b"\r" in whole.replace(b"\r\n", b"") else fault)
        return Cut(whole, dict(zip(self.columns, fields, strict=True)), None)

    def _parsed(self, lines: list[bytes], odd: Mapping[int, Slot]) -> Table:
        lost = {at: slot.kind for at, slot in odd.items() if slot.record is None}
        apart = {at: slot.record for at, slot in odd.items() if slot.record is not None}
        return Table.of_lines(self.columns, lines, lost, apart)

    def _swallowed(self, lines: list[bytes]) -> bool:
        """Whether the lines that a quoted field goes on in look like records themselves."""
        width = len(self.columns)
        if (width - 1) * len(lines) < COMMAS:
            return False
        texts = (_readable(line) for line in lines if line.strip())
        return all(len(next(csv.reader([text]))) == width for text in texts)

    def _tell(self, lines: int) -> None:
        self._told += 1
        if self._told <= TOLD:
            self._say(
                f"WARNING: {self._tape.name}: the quote that opens a field in line {self._line} "
                f"closes in line {self._line + lines - 1}, and the lines between look like "
                "records: they are read as such, and what cannot be used of them is counted. The "
                "data owner must correct the quotes"
            )

    def _fields(
        self, first: bytes, raw: list[bytes], end: int, final: bool
    ) -> list[str] | str | None:
        """Return the fields of a record, a fault, or None if the record is not complete yet.

        Its lines are added to `raw`.
        """
        try:
            found = next(csv.reader(self._lines(first, raw, end, final), strict=True), [])
            lone = any(b"\r" in line for line in raw)
            return [each.replace(_CR, "\r") for each in found] if lone else found
        except _IncompleteError:
            return None
        except csv.Error as error:
            said = str(error)
            return next((_FAULTS[each] for each in _FAULTS if said.startswith(each)), _QUOTING)

    def _lines(self, first: bytes, raw: list[bytes], end: int, final: bool) -> Iterator[str]:
        """Yield the lines of the record, as many as the parser asks for."""
        line = first
        size = 0
        while line:
            raw.append(line)
            size += len(line)
            if size > RECORD_LIMIT:
                raise csv.Error("field larger")
            if not (final or line.endswith(b"\n")):
                raise _IncompleteError
            # whether it is UTF-8 is asked of the whole record, once its end is known
            yield _readable(line)
            room = RECORD_LIMIT + 1 - size
            line = self._tape.line(self._at + size, min(room, end - self._at - size))
        if not final:
            raise _IncompleteError


class Table(Batch):
    """Slots of plain lines of CSV: of columns that are asked for, and of no others, cells are read.

    names: Of all columns, k of them.
    text: All cells, each with one byte behind it, and `LONGEST` bytes more in front.
    bounds: Where the cells of each slot begin, and behind the byte behind its last, (n, k + 1).
    lost, apart: Places that hold no record, with the reason, or a record that was read by itself:
        their cells are empty.
    """

    def __init__(
        self, names: Sequence[str], text: bytes, bounds: Integers, lost: Mapping[int, str],
        apart: Mapping[int, Record],
    ) -> None:  # fmt: skip
        self._names, self._text, self._bounds = names, text, bounds
        self.lost, self._apart = lost, apart

    @classmethod
    def of_lines(
        cls, names: Sequence[str], lines: Sequence[bytes], lost: Mapping[int, str],
        apart: Mapping[int, Record],
    ) -> Table:  # fmt: skip
        """Return the slots of lines without their ends; lines of lost and apart ones are empty."""
        width, lost = len(names), dict(lost)
        blank = LONGEST + np.arange(width + 1)
        text = b"\n".join([b" " * int(blank[-1] - 1), *lines, b""])
        data = np.frombuffer(text, dtype=np.uint8)
        marks = np.flatnonzero((data == NEWLINE) | (data == _COMMA))
        ends = np.flatnonzero(data[marks] == NEWLINE)
        fields = np.diff(ends)
        even = fields == width
        # each line that has such bytes, or all would have to be looked at once one has a fault
        beyond = np.searchsorted(marks[ends], np.flatnonzero(data > _ASCII)) - 1
        for at in np.unique(beyond).tolist():
            if not _is_utf8(lines[at]):
                lost[at], even[at] = "not UTF-8", False
        for at in np.flatnonzero(~even).tolist():
            if at not in lost and at not in apart:
                lost[at] = _too_few_or_many(fields[at], width)
        bounds = np.repeat(blank[None], len(lines), axis=0)
        bounds[even, 0] = marks[ends[:-1]][even] + 1
        bounds[even, 1:] = marks[1:][np.repeat(even, fields)].reshape(-1, width) + 1
        return cls(names, text, bounds, lost, apart)

    def __len__(self) -> int:
        return len(self._bounds)

    def columns(self, names: Sequence[str], numbers: Collection[str] = ()) -> dict[str, Column]:
        places = {name: at for at, name in enumerate(self._names)}
        found = self._numbers(
            {name: places[name] for name in names if name in {*numbers} & {*places}}
        )
        for name in names:
            if name not in found:
                none = name not in places
                found[name] = Column([None] * len(self) if none else self._texts(places[name]))
        return found

    def part(self, places: slice) -> Table:
        size = len(self)
        lost, apart = moved(self.lost, places, size), moved(self._apart, places, size)
        return Table(self._names, self._text, self._bounds[places], lost, apart)

    def _record(self, at: int) -> Record:
        return {name: self._cell(at, place) for place, name in enumerate(self._names)}

    def _cell(self, at: int, place: int) -> str:
        if at in self._apart:
            return str(self._apart[at][self._names[place]])
        return self._text[self._bounds[at, place] : self._bounds[at, place + 1] - 1].decode()

    def _texts(self, place: int) -> list[str]:
        found = self._cells(self._bounds[:, place], self._bounds[:, place + 1])
        for at in self._apart:
            found[at] = self._cell(at, place)
        return found

    def _cells(self, starts: Integers, ends: Integers) -> list[str]:
        """Return some cells, each with the byte behind it, without these bytes."""
        behind = np.cumsum(ends - starts)
        every = np.repeat(ends - behind, ends - starts) + np.arange(np.sum(ends - starts))
        cells = np.frombuffer(self._text, dtype=np.uint8)[every]
        cells[behind - 1] = _COMMA
        return cells.tobytes().decode().split(",")[:-1]

    def _numbers(self, places: Mapping[str, int]) -> dict[str, Column]:
        """Return columns of numbers: what is plainly one of all at once, other texts one by one."""
        if not places:
            return {}
        names, chosen = list(places), list(places.values())
        starts, ends = self._bounds.T[chosen], self._bounds.T[1:][chosen] - 1
        data = np.frombuffer(self._text, dtype=np.uint8)
        read, plain = decimals(data, starts.ravel(), ends.ravel())
        values, gone = read.reshape(starts.shape), starts == ends
        gone[:, list(self._apart)] = False
        strange = ~(plain.reshape(starts.shape) | gone)
        of, slots = (each.tolist() for each in np.nonzero(strange))
        texts = self._cells(starts[strange], ends[strange] + 1)
        numbered = np.cumsum(strange).reshape(strange.shape) - 1
        for slot in self._apart:
            for at, place in zip(numbered[:, slot].tolist(), chosen, strict=True):
                texts[at] = self._cell(slot, place)
        quick, following = read_as_written(texts), _following(slots)
        blank = np.zeros(len(texts), dtype=np.bool_)
        wrong: list[dict[int, str]] = [{} for _ in names]

        def exact(at: int) -> float:
            try:
                return number_of(texts[at], names[of[at]])
            except RecordError as error:
                blank[at] = is_missing(texts[at])
                if not blank[at]:
                    wrong[of[at]][slots[at]] = str(error)
                    # behind a fault no more is read: many must not take longer than one
                    while (at := following[at]) >= 0:
                        quick[at] = "0"
                return 0.0

        values[strange] = read_all(quick, float, exact)
        gone[strange] = blank
        for column, at in zip(
            *(each.tolist() for each in np.nonzero(~np.isfinite(values))), strict=True
        ):
            values[column, at], wrong[column][at] = 0.0, not_finite(names[column])
        every = zip(names, values, gone, wrong, strict=True)
        return {name: Column(row, none, wrong=said) for name, row, none, said in every}


def _following(slots: Sequence[int]) -> list[int]:
    """Return for each place the next one with the same slot, -1 for none."""
    order = np.argsort(slots, kind="stable")
    same = np.diff(np.asarray(slots)[order]) == 0
    found = np.full(len(slots), -1)
    found[order[:-1][same]] = order[1:][same]
    return found.tolist()


def _readable(line: bytes) -> str:
    """Return a line as csv takes it: with `_CR` for each CR but one of its end."""
    text = line.decode(errors="surrogateescape")
    if "\r" not in text:
        return text
    ends = "\r\n" if text.endswith("\r\n") else ""
    return text.removesuffix(ends).replace("\r", _CR) + ends


def _too_few_or_many(fields: int, width: int) -> str:
    return f"{fields} fields where {width} are needed"


class _IncompleteError(Exception):
    pass


def read_header(line: bytes, name: str) -> list[str]:
    """Return the columns that one header line names.

    DataError as `check_header`, or if the header goes on in the next line.
    """
    fields: list[str] | str
    check_start(line, name)
    text = line.removeprefix(codecs.BOM_UTF8).decode(errors="surrogateescape")
    try:
        fields = next(csv.reader([text], strict=True), [])
    except csv.Error:
        fields = _QUOTING
    return check_header(fields, line, name)


def check_header(fields: list[str] | str, raw: bytes, name: str) -> list[str]:
    """Return the columns that a header names.

    DataError if there are none, or two are the same; several may have no name. It gives
    numbers, not names: where the header was forgotten, the first line is data.
    """
    if isinstance(fields, str) or not _is_utf8(raw):
        fault = fields if isinstance(fields, str) else "not UTF-8"
        mended = "save the file as UTF-8" if fault == "not UTF-8" else "correct it"
        raise DataError(
            f"{name}: the header line has a fault: {fault}; the data owner must {mended}"
        )
    if not any(fields):
        raise DataError(
            f"{name}: there is no header line; the data owner must put the column names first"
        )
    seen: dict[str, int] = {}
    for number, field in enumerate(fields, start=1):
        if field and field in seen:
            raise DataError(
                f"{name}: the header names fields {seen[field]} and {number} alike; the data owner "
                "must give every column its own name"
            )
        seen[field] = number
    return fields


def _is_utf8(raw: bytes) -> bool:
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True
