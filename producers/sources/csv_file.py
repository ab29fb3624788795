"""CSV: UTF-8 with a header line, quoted as RFC 4180 says."""

from __future__ import annotations

import codecs
import csv
from collections.abc import Iterator

from pipeline.errors import DataError
from producers.sources.record_file import Cut, RecordFile
from producers.sources.tape import RECORD_LIMIT, Tape

_QUOTING = "quotes that do not close where the field ends, or a field that is too long"


class CsvFile(RecordFile):
    """The records of a tape of CSV.

    tape: Where the bytes come from.
    position: Behind which slot to resume; None is the start.
    columns: The header, if it is not the first line of the tape.
    """

    form = "csv"

    def __init__(
        self, tape: Tape, position: bytes | None, columns: list[str] | None = None
    ) -> None:
        self._tape = tape
        start = (tape.base, 2)
        if columns is None:
            columns, start = self._header()
        self._columns = columns
        # a missing value of the one column: the slots behind it must not move up
        self.blanks = len(columns) == 1
        super().__init__(tape, position, start)

    @property
    def columns(self) -> list[str]:
        """The names in the header."""
        return self._columns

    def _header(self) -> tuple[list[str], tuple[int, int]]:
        self._at = 3 if self._tape.line(0, 3) == codecs.BOM_UTF8 else 0
        end, final = self._tape.extent(self._at)
        first = self._tape.line(self._at, max(min(RECORD_LIMIT, end - self._at), 0))
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
        if isinstance(fields, str):
            # one wrong quote must not take the lines behind it along: go on at the next line
            return Cut(first, None, fields)
        whole = b"".join(raw)
        fields = fields or [""]
        if not _is_utf8(whole):
            return Cut(whole, None, "not UTF-8")
        if len(fields) != len(self._columns):
            fault = f"{len(fields)} fields where {len(self._columns)} are needed"
            return Cut(whole, None, fault)
        return Cut(whole, dict(zip(self._columns, fields, strict=True)), None)

    def _fields(
        self, first: bytes, raw: list[bytes], end: int, final: bool
    ) -> list[str] | str | None:
        """Return the fields of a record, a fault, or None if the record is not complete yet.

        Its lines are added to `raw`.
        """
        try:
            return next(csv.reader(self._lines(first, raw, end, final), strict=True), [])
        except _IncompleteError:
            return None
        except csv.Error:
            return _QUOTING

    def _lines(self, first: bytes, raw: list[bytes], end: int, final: bool) -> Iterator[str]:
        """Yield the lines of the record, as many as the parser asks for."""
        line = first
        size = 0
        while line:
            raw.append(line)
            size += len(line)
            if size > RECORD_LIMIT:
                raise csv.Error
            if not (final or line.endswith(b"\n")):
                raise _IncompleteError
            # whether it is UTF-8 is asked of the whole record, once its end is known
            yield line.decode(errors="surrogateescape")
            room = RECORD_LIMIT + 1 - size
            line = self._tape.line(self._at + size, min(room, end - self._at - size))
        if not final:
            raise _IncompleteError


class _IncompleteError(Exception):
    pass


def read_header(line: bytes, name: str) -> list[str]:
    """Return the columns that one header line names.

    DataError as `check_header`, or if the header goes on in the next line.
    """
    fields: list[str] | str
    text = line.removeprefix(codecs.BOM_UTF8).decode(errors="surrogateescape")
    try:
        fields = next(csv.reader([text], strict=True), [])
    except csv.Error:
        fields = _QUOTING
    return check_header(fields, line, name)


def check_header(fields: list[str] | str, raw: bytes, name: str) -> list[str]:
    """Return the columns that a header names.

    DataError if there are none, or two are the same. It gives numbers, not names: where the
    header was forgotten, the first line is data.
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
        if field in seen:
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
