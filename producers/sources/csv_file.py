"""CSV: UTF-8 with a header line, quoted as RFC 4180 says; plain lines are split together."""

from __future__ import annotations

import codecs
import csv
from collections.abc import Callable, Iterator, Mapping

import numpy as np

from pipeline.errors import DataError
from pipeline.records.batch import MARK, Columns
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
_MARKED = bytes.maketrans(b"_", MARK.encode())


class CsvFile(RecordFile):
    """The records of a tape of CSV.

    tape: Where the bytes come from.
    position: Behind which slot to resume; None is the start.
    say: Told where a quote would take records along.
    """

    form = "csv"
    parts = 2
    odd, longest = b'"\r\0\1', csv.field_size_limit()

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

    def _fits(self, slot: Slot) -> bool:
        return not any(MARK in str(value) for value in (slot.record or {}).values())

    def _parsed(self, lines: list[bytes], odd: Mapping[int, Slot]) -> Columns:
        width, lost = len(self.columns), dict[int, str]()
        blank = b"," * (width - 1)
        for at in odd:
            lines[at] = blank
        uneven, beyond = _uneven(lines, width)
        # of each line that has such bytes, or all would have to be looked at once one has a fault
        for at in beyond:
            if not _is_utf8(lines[at]):
                lost[at], lines[at] = "not UTF-8", blank
        for at in uneven:
            if at not in lost:
                lost[at], lines[at] = _too_few_or_many(lines[at].count(b",") + 1, width), blank
        fields = b",".join(lines).translate(_MARKED).decode().split(",")
        for at, slot in odd.items():
            if slot.record is None:
                lost[at] = slot.kind
            else:
                values = (str(slot.record[name]) for name in self.columns)
                fields[at * width : (at + 1) * width] = [v.replace("_", MARK) for v in values]
        return Columns.of_texts(self.columns, fields, lost)

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


def _readable(line: bytes) -> str:
    """Return a line as csv takes it: with `_CR` for each CR but one of its end."""
    text = line.decode(errors="surrogateescape")
    if "\r" not in text:
        return text
    ends = "\r\n" if text.endswith("\r\n") else ""
    return text.removesuffix(ends).replace("\r", _CR) + ends


def _uneven(lines: list[bytes], width: int) -> tuple[list[int], list[int]]:
    """Return the places of lines with another number of fields, and of those beyond ASCII."""
    data = np.frombuffer(b"\n".join(lines) + b"\n", dtype=np.uint8)
    ends = np.flatnonzero(data == NEWLINE)
    commas = np.searchsorted(np.flatnonzero(data == _COMMA), ends)
    beyond = np.searchsorted(ends, np.flatnonzero(data > _ASCII))
    uneven = np.diff(commas, prepend=0) != width - 1
    return np.flatnonzero(uneven).tolist(), np.unique(beyond).tolist()


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
