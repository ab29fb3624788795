"""Times as people and files write them, as milliseconds since 1970."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime

from pipeline.errors import RecordError

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
        raise RecordError(
            f"column {column!r} holds no time: allowed are RFC 3339 with a zone and numbers of "
            "seconds or milliseconds since 1970"
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
    if (
        not isinstance(value, int | float)
        or not math.isfinite(value)
        or abs(value) > LARGEST_NUMBER
    ):
        return None
    return math.floor(value if abs(value) >= MILLISECONDS_FROM else value * 1000)


def _milliseconds(moment: datetime) -> int:
    passed = moment - datetime(1970, 1, 1, tzinfo=UTC)
    return (passed.days * 86_400 + passed.seconds) * 1000 + passed.microseconds // 1000
