"""JSON lines, and JSON objects wherever they come from."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import cached_property, lru_cache
from itertools import chain
from typing import Any, NoReturn, TypeAlias

import msgspec
import numpy as np

from pipeline.errors import RecordError
from pipeline.records.batch import Batch, Column, moved
from pipeline.records.values import Record, number_of
from producers.sources.base import Slot
from producers.sources.text import RECORD_LIMIT, Cut, RecordFile, Tape, check_start

#: Fewer texts are decoded whole: arrays of so few values take longer than they save.
FEW = 8
#: Python makes no whole number of more digits from a text.
DIGITS = 4300
_LONG = re.compile(rf"[0-9]{{{DIGITS + 1}}}")
#: Values of JSON that are numbers as they are, between such ends.
_PLAIN, _LARGE = {float, int, bool}, 1e300
#: The object that a text is, or None and why it is none.
Read: TypeAlias = tuple[Mapping[str, object] | None, str | None]


class JsonLinesFile(RecordFile):
    """The records of a tape of JSON lines."""

    form = "jsonl"
    longest = RECORD_LIMIT

    def __init__(self, tape: Tape, position: bytes | None) -> None:
        super().__init__(tape, position, (tape.base, 1))

    def _cut(self, first: bytes, end: int, final: bool) -> Cut:
        del end, final
        if self._at == 0:
            check_start(first, self._tape.name)
        return Cut(first, *_line(first))

    def _parsed(self, lines: list[bytes], odd: Mapping[int, Slot]) -> Objects:
        del odd
        return Objects(lines, read=_line)


class Objects(Batch):
    """Slots of JSON texts: of many only the columns that are asked for are decoded.

    lost: Places that hold no record, whatever their text is, each with the reason.
    read: Reads one text that is not plain.
    """

    def __init__(
        self, texts: Sequence[bytes], lost: Mapping[int, str] | None = None,
        read: Callable[[bytes], Read] | None = None,
    ) -> None:  # fmt: skip
        self._texts, self._lost_before, self._read = texts, lost or {}, read or json_object

    def __len__(self) -> int:
        return len(self._texts)

    @cached_property
    def _each(self) -> list[Read]:
        return [self._read(text) for text in self._texts]

    @cached_property
    def lost(self) -> Mapping[int, str]:  # type: ignore[override]
        found = {at: why for at, (_, why) in enumerate(self._each) if why is not None}
        return {**found, **self._lost_before}

    def columns(self, names: Sequence[str], numbers: Collection[str] = ()) -> dict[str, Column]:
        if len(self) < FEW:
            return {name: Column([(r or {}).get(name) for r, _ in self._each]) for name in names}
        names, texts = tuple(dict.fromkeys(names)), self._texts
        decode, width = _decoder(names, frozenset(numbers)), len(names)
        loosely = _decoder(names, frozenset())
        cells, rest, lost = list[Any](), map(decode, texts), dict[int, str]()
        wrong: dict[str, dict[int, str]] = {name: {} for name in names if name in numbers}

        def thoroughly(at: int) -> Sequence[object]:
            try:
                values = msgspec.structs.astuple(loosely(texts[at]))
            except _UNREADABLE:
                record, why = self._read(texts[at])
                if record is None:
                    lost[at] = why or ""
                    return [None] * width
                values = tuple(map(record.get, names))
            # the fewest steps: a text with one strange value must hardly take longer than others
            return [
                value if value is None or name not in wrong or
                (type(value) in _PLAIN and -_LARGE < value < _LARGE)
                else _number(value, name, at, wrong[name])
                for name, value in zip(names, values, strict=True)
            ]  # fmt: skip

        while True:
            try:
                # what was read before an error stays in the list, and the rest goes on behind it
                cells.extend(chain.from_iterable(map(msgspec.structs.astuple, rest)))
            except _UNREADABLE:
                cells.extend(thoroughly(len(cells) // width))
            else:
                break
        # what is in other columns is passed over, whatever its bytes are and however long a number
        plain = np.fromiter(map(bytes.isascii, texts), dtype=np.bool_)
        plain &= np.fromiter(map(len, texts), dtype=np.int64) <= DIGITS
        for at in np.flatnonzero(~plain).tolist():
            text = texts[at]
            with suppress(UnicodeDecodeError):
                if not _LONG.search(text.decode()):
                    continue
            if why := self._read(text)[1]:
                lost[at] = why
        self.lost = {**lost, **self._lost_before}
        found = {name: Column(cells[place::width]) for place, name in enumerate(names)}
        # None is NaN here, and JSON has no other
        read = np.array([found[name].values for name in wrong], dtype=np.float64)
        for name, array, gone in zip(wrong, read, np.isnan(read), strict=True):
            found[name] = Column(array, gone, wrong=wrong[name])
        return found

    def part(self, places: slice) -> Objects:
        before = moved(self._lost_before, places, len(self))
        return Objects(self._texts[places], before, self._read)

    def _record(self, at: int) -> Record:
        return self._each[at][0] or {}


def _number(value: object, name: str, at: int, wrong: dict[int, str]) -> float | None:
    """Return a value of a column of numbers, None for none; of a wrong one it is said."""
    if isinstance(value, str) and (not value or value.isspace()):
        return None
    try:
        return number_of(value, name)
    except RecordError as error:
        wrong[at] = str(error)
        return None


@lru_cache
def _decoder(names: tuple[str, ...], numbers: frozenset[str]) -> Callable[[bytes], Any]:
    """Return what decodes these columns of an object, and no others."""
    fields = [
        (f"_{place}", float | bool | None if name in numbers else Any, None)
        for place, name in enumerate(names)
    ]
    renamed = {f"_{place}": name for place, name in enumerate(names)}
    form = msgspec.defstruct("Columns", fields, rename=renamed, gc=False)
    return msgspec.json.Decoder(form).decode


def _line(text: bytes) -> Read:
    # a byte order mark can only stand at the start of a file; no JSON text begins with one
    return json_object(text.removeprefix(codecs.BOM_UTF8).rstrip(b"\r\n"))


def json_object(text: bytes) -> Read:
    """Return the object that a JSON text is, or None and why it is none."""
    try:
        record = _quickly(text)
    except _UNREADABLE:
        # it refuses a little more than json does, such as 1e400, and says why in its own words
        try:
            record = _thoroughly(text.decode())
        except UnicodeDecodeError:
            return None, "not UTF-8"
        except json.JSONDecodeError as error:
            return None, f"not valid JSON at column {error.colno}"
        except _NotJsonError:
            return None, "NaN and Infinity are no JSON numbers"
        except (ValueError, RecursionError):
            return None, "JSON with a number too long or nesting too deep"
    return (record, None) if isinstance(record, dict) else (None, "not a JSON object")


class _NotJsonError(Exception):
    pass


def _refuse(token: str) -> NoReturn:
    del token
    raise _NotJsonError


_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_quickly = msgspec.json.Decoder().decode
_thoroughly = json.JSONDecoder(parse_constant=_refuse).decode
