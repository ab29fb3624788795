"""JSON lines, and JSON objects wherever they come from."""

from __future__ import annotations

import codecs
import json
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import msgspec

from pipeline.records.batch import Records
from producers.sources.base import Slot
from producers.sources.text import Cut, RecordFile, Tape, check_start


class JsonLinesFile(RecordFile):
    """The records of a tape of JSON lines."""

    form = "jsonl"
    odd = b"\r"

    def __init__(self, tape: Tape, position: bytes | None) -> None:
        super().__init__(tape, position, (tape.base, 1))

    def _cut(self, first: bytes, end: int, final: bool) -> Cut:
        del end, final
        if self._at == 0:
            check_start(first, self._tape.name)
        # a byte order mark can only stand at the start of a file; no JSON text begins with one
        return Cut(first, *json_object(first.removeprefix(codecs.BOM_UTF8).rstrip(b"\r\n")))

    def _parsed(self, lines: list[bytes], odd: Mapping[int, Slot]) -> Records:
        for at in odd:
            lines[at] = b"{}"
        found = json_objects([line.removeprefix(codecs.BOM_UTF8) for line in lines])
        records = list(found.records)
        for at, slot in odd.items():
            records[at] = slot.record or {}
        lost = {at: slot.kind for at, slot in odd.items() if slot.record is None}
        return Records(records, {**found.lost, **lost})


def json_objects(texts: Sequence[bytes]) -> Records:
    """Return the objects that JSON texts are; what is none is lost, as `json_object` says."""
    records, lost, rest = list[Any](), dict[int, str](), map(_quickly, texts)
    while True:
        try:
            # what was read before an error stays in the list, and the rest goes on behind it
            records.extend(rest)
        except _UNREADABLE:
            record, why = json_object(texts[len(records)])
            if why is not None:
                lost[len(records)] = why
            records.append(record)
        else:
            break
    for at in [at for at, record in enumerate(records) if type(record) is not dict]:
        lost.setdefault(at, "not a JSON object")
        records[at] = {}
    return Records(records, lost)


def json_object(text: bytes) -> tuple[Mapping[str, object] | None, str | None]:
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
