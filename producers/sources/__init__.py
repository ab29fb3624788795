"""Where raw records come from.

- `base`: slots and the interface of a source; rows that are counted.
- `text`: files of lines, read by offsets, of which are `csv_file` and `json_lines`.
- `stdin`: what a program pipes in, kept or not.
- `arrow`: Parquet and Arrow files; `tables`: any file in batches of columns, read once.
- `sql`: rows of a table by a key, in one of `databases`. `kafka`: a topic of somebody's own Kafka.
- `push`: what is sent to a client over HTTP, until it is released; `mqtt`: the same from a broker.
- `samples`: rows that come with installed packages, for demonstrations.

Every record takes a slot, good or bad; see `base`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from importlib import import_module
from pathlib import Path
from typing import BinaryIO, Protocol, cast

from pipeline.errors import DataError
from pipeline.settings import Settings
from producers.sources.arrow import is_arrow
from producers.sources.base import Known, Opening, Slot, Source
from producers.sources.csv_file import CsvFile
from producers.sources.json_lines import JsonLinesFile
from producers.sources.samples import STREAMED, FlightRows, ShuttleRows, heldout, shared
from producers.sources.stdin import Pipe, Spool, open_input
from producers.sources.text import RECORD_LIMIT, Tape

__all__ = [
    "RECORD_LIMIT",
    "STREAMED",
    "Slot",
    "Source",
    "heldout",
    "kind_of",
    "known_as",
    "open_once",
    "open_source",
    "packaged",
    "share_rows",
]

_SHUTTLE = re.compile(r"shuttle:([0-9]{1,9})/([0-9]{1,9})")
_FLIGHTS = re.compile(r"flights:([0-9A-Z]{2})")
#: The modules of sources that are named as SCHEME://; other schemes are stores of files.
_SCHEMES = {
    "kafka": "kafka",
    "sqlite": "sql",
    "duckdb": "sql",
    "postgresql": "sql",
    "listen": "push",
    "mqtt": "mqtt",
    "mqtts": "mqtt",
}


class _Room(Protocol):
    """What such a module has."""

    KIND: str

    def known_as(self, spec: str) -> Known: ...
    def opened(self, spec: str, asked: Opening) -> Source: ...


def known_as(spec: str, form: str = "csv") -> Known:
    """Return what `open_source` will be known by, without opening anything."""
    if spec == "-":
        return Known(f"stdin:{form}", None)
    if room := _room(spec):
        return room.known_as(spec)
    if packaged(spec):
        return Known(spec, spec)
    path = Path(spec)
    form = "csv" if path.suffix.lower() == ".csv" else "jsonl"
    return Known(f"{form}:{path.name}", str(path.resolve()))


def kind_of(spec: str) -> str:
    """Return "input", "packaged", "topic", "table" or "file"."""
    if spec == "-":
        return "input"
    if room := _room(spec):
        return room.KIND
    return "packaged" if packaged(spec) else "file"


def share_rows(one: str, other: str) -> bool:
    """Whether two packaged sources, by their specifications, have a row in common."""
    if (first := _SHUTTLE.fullmatch(one)) and (second := _SHUTTLE.fullmatch(other)):
        return shared((int(first[1]), int(first[2])), (int(second[1]), int(second[2])))
    return one == other


def open_source(
    spec: str,
    position: bytes | None,
    *,
    folder: Path,
    follow: bool = False,
    form: str = "csv",
    stream: BinaryIO | None = None,
    settings: Settings | None = None,
    say: Callable[[str], None] = lambda _: None,
    skip_lost: bool = False,
    columns: Collection[str] | None = None,
) -> Source:
    """Open a source of raw records.

    spec: A path that ends in .csv, .jsonl or .ndjson; "-" for standard input; a path or URL that
        ends in .parquet, .arrow or .feather, or in / for a folder of those; "kafka://TOPIC"; a
        table as `sql` has it; MQTT as `mqtt` has it; "listen://HOST:PORT";
        "shuttle:K/N"; or "flights:AIRLINE" with a code of two characters.
    position: Behind which slot to resume; None is the start.
    folder: The client's own folder; standard input is spooled there.
    follow: Whether a file may still grow.
    form: What standard input holds: "csv" or "jsonl". With CSV, the first call waits for the header
        line.
    stream: What to read as standard input.
    settings: Which Kafka a topic is on; only clients read one.
    say: Told of what people should know of it.
    skip_lost: Whether to go on behind what was pushed, and is lost.
    columns: Those that are needed: no source of columns with types reads others. None: all.

    Raises DataError if the source cannot be opened, or does not fit the position; of a topic
    BrokerError, ConfigError if Kafka cannot be asked.
    """
    if spec == "-":
        _check_form(form)
        return _open_input(position, folder, form, stream, say)
    if room := _room(spec):
        asked = Opening(position, folder, follow, form, stream, settings, say, skip_lost, columns)
        return room.opened(spec, asked)
    if match := _SHUTTLE.fullmatch(spec):
        return ShuttleRows(int(match[1]), int(match[2]), position)
    if match := _FLIGHTS.fullmatch(spec):
        return FlightRows(match[1], position)
    kind = Path(spec).suffix.lower()
    if kind not in (".csv", ".jsonl", ".ndjson"):
        raise DataError(
            f"{spec!r} is not a source; the data owner must name a file that ends in .csv, .jsonl "
            "or .ndjson, - for standard input, Parquet or Arrow files or a folder of them that "
            "ends in /, kafka://TOPIC, sqlite://FILE, duckdb://FILE or "
            "postgresql://USER@HOST/DATABASE with ?table=TABLE&key=COLUMN, mqtt://HOST/FILTER, "
            "shuttle:K/N with 0 <= K < N, or flights:AIRLINE"
        )
    tape = Tape(Path(spec), follow)
    try:
        if kind == ".csv":
            return CsvFile(tape, position, say=say)
        return JsonLinesFile(tape, position)
    except BaseException:
        tape.close()
        raise


def open_once(
    spec: str, *, form: str = "csv", stream: BinaryIO | None = None,
    columns: Collection[str] | None = None,
) -> Source:  # fmt: skip
    """Open a source for one pass from its start; nothing of standard input is written to disk.

    spec, form, stream, columns: As in `open_source`.

    Raises DataError if the source cannot be opened; ConfigError if a package that it needs is not
    installed.
    """
    if spec != "-":
        return open_source(spec, None, folder=Path(), columns=columns)
    _check_form(form)
    pipe = Pipe(stream or open_input())
    return CsvFile(pipe, None) if form == "csv" else JsonLinesFile(pipe, None)


def packaged(spec: str) -> bool:
    """Whether a specification is one of rows that come with a package."""
    return bool(_SHUTTLE.fullmatch(spec) or _FLIGHTS.fullmatch(spec))


def _room(spec: str) -> _Room | None:
    """Return the module that opens a source; None: it needs none of its own."""
    name = _SCHEMES.get(spec.partition("://")[0]) if "://" in spec else None
    if name is None and not is_arrow(spec):
        return None
    return cast("_Room", import_module(f"producers.sources.{name or 'arrow'}"))


def _check_form(form: str) -> None:
    if form not in ("csv", "jsonl"):
        raise DataError(
            f"standard input cannot be {form!r}; the data owner must choose csv or jsonl"
        )


def _open_input(
    position: bytes | None, folder: Path, form: str, stream: BinaryIO | None,
    say: Callable[[str], None],
) -> Source:  # fmt: skip
    spool = Spool(folder, form, stream or open_input())
    try:
        if form == "csv":
            return CsvFile(spool, position, spool.columns(), say)
        return JsonLinesFile(spool, position)
    except BaseException:
        spool.close()
        raise
