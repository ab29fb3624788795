"""JSON lines: one object a line."""

from __future__ import annotations

import codecs
import json
from typing import NoReturn

from producers.sources.record_file import Cut, RecordFile
from producers.sources.tape import Tape


class JsonLinesFile(RecordFile):
    """The records of a tape of JSON lines."""

    form = "jsonl"

    def __init__(self, tape: Tape, position: bytes | None) -> None:
        super().__init__(tape, position, (tape.base, 1))

    def _cut(self, first: bytes, end: int, final: bool) -> Cut:
        del end, final
        # a byte order mark can only stand at the start of a file; no JSON text begins with one
        text = first.removeprefix(codecs.BOM_UTF8).rstrip(b"\r\n")
        try:
            record = json.loads(text.decode(), parse_constant=_refuse)
        except UnicodeDecodeError:
            return Cut(first, None, "not UTF-8")
        except json.JSONDecodeError as error:
            return Cut(first, None, f"not valid JSON at column {error.colno}")
        except _NotJsonError:
            return Cut(first, None, "NaN and Infinity are no JSON numbers")
        except (ValueError, RecursionError):
            return Cut(first, None, "JSON with a number too long or nesting too deep")
        if not isinstance(record, dict):
            return Cut(first, None, "not a JSON object")
        return Cut(first, record, None)


class _NotJsonError(Exception):
    pass


def _refuse(token: str) -> NoReturn:
    del token
    raise _NotJsonError
