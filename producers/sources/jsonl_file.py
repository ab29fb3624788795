"""JSON lines: one object a line."""

from __future__ import annotations

import codecs
import json
from collections.abc import Mapping
from typing import NoReturn

import msgspec

from producers.sources.csv_file import check_start
from producers.sources.record_file import Cut, RecordFile
from producers.sources.tape import Tape


class JsonLinesFile(RecordFile):
    """The records of a tape of JSON lines."""

    form = "jsonl"

    def __init__(self, tape: Tape, position: bytes | None) -> None:
        super().__init__(tape, position, (tape.base, 1))

    def _cut(self, first: bytes, end: int, final: bool) -> Cut:
        del end, final
        if self._at == 0:
            check_start(first, self._tape.name)
        # a byte order mark can only stand at the start of a file; no JSON text begins with one
        return Cut(first, *json_object(first.removeprefix(codecs.BOM_UTF8).rstrip(b"\r\n")))


def json_object(text: bytes) -> tuple[Mapping[str, object] | None, str | None]:
    """Return the object that a JSON text is, or None and why it is none."""
    try:
        record = _quickly(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
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


_quickly = msgspec.json.Decoder().decode
_thoroughly = json.JSONDecoder(parse_constant=_refuse).decode
