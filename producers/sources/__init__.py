"""Where raw records come from.

- `base`: slots and the interface of a source; rows that are counted.
- `text`: files of lines, read by offsets, of which are `csv_file` and `json_lines`.
- `stdin`: what a program pipes in, kept or not.
- `arrow`: Parquet and Arrow files.
- `sql`: rows of a table by a key, in one of `databases`. `kafka`: a topic of somebody's own Kafka.
- `push`: what is sent to a client over HTTP, until it is released; `mqtt`: the same from a broker.
- `samples`: rows that come with installed packages, for demonstrations.

Every record takes a slot, good or bad; see `base`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import BinaryIO, Protocol, cast

from pipeline.errors import DataError
from pipeline.records.encoder import Stretch
from pipeline.records.features import there
from pipeline.settings import Settings
from producers.sources import samples
from producers.sources.arrow import is_arrow
from producers.sources.base import Known, Opening, Slot, Source, batch_of
from producers.sources.csv_file import CsvFile
from producers.sources.json_lines import JsonLinesFile
from producers.sources.stdin import Pipe, Spool, open_input
from producers.sources.text import File, Tape

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

#: Records that are asked for at a time.
AT_A_TIME = 65_536


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
    path = Path(spec)
    form = "csv" if path.suffix.lower() == ".csv" else "jsonl"
    return Known(f"{form}:{path.name}", str(path.resolve()))


def kind_of(spec: str) -> str:
    """Return "input", "packaged", "topic", "table" or "file"."""
    if spec == "-":
        return "input"
    room = _room(spec)
    return "file" if room is None else room.KIND


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

    spec: A path that ends in .csv, .jsonl or .ndjson; "-" for standard input, of which with CSV the
        first call waits for the header line; a path or URL that ends in .parquet, .arrow or
        .feather, or in / for a folder of those; "kafka://TOPIC"; a table as `sql` has it; MQTT as
        `mqtt` has it; "listen://HOST:PORT"; or packaged rows as `samples` has them.

    Others as `Opening` has them. Raises DataError if the source cannot be opened, or does not fit
    the position; of a topic BrokerError, ConfigError if Kafka cannot be asked.
    """
    asked = Opening(position, folder, follow, form, stream, settings, say, skip_lost, columns)
    if spec == "-":
        _check_form(form)
        return _records_of(Spool(folder, form, stream or open_input()), form, asked)
    if room := _room(spec):
        return room.opened(spec, asked)
    kind = Path(spec).suffix.lower()
    if kind not in (".csv", ".jsonl", ".ndjson"):
        raise DataError(
            f"{spec!r} is not a source; the data owner must name a file that ends in .csv, .jsonl "
            "or .ndjson, - for standard input, Parquet or Arrow files or a folder of them that "
            "ends in /, kafka://TOPIC, sqlite://FILE, duckdb://FILE or "
            "postgresql://USER@HOST/DATABASE with ?table=TABLE&key=COLUMN, mqtt://HOST/FILTER, "
            "shuttle:K/N with 0 <= K < N, or flights:AIRLINE"
        )
    return _records_of(File(Path(spec), follow), kind[1:], asked)


def open_once(
    spec: str, *, form: str = "csv", stream: BinaryIO | None = None,
    columns: Collection[str] | None = None,
) -> Source:  # fmt: skip
    """Open a source for one pass from its start; nothing of standard input is written to disk.

    Parameters and errors as `open_source`; ConfigError if a package that it needs is not installed.
    """
    if spec != "-":
        return open_source(spec, None, folder=Path(), columns=columns)
    _check_form(form)
    return _records_of(Pipe(stream or open_input()), form, Opening())


def read_batches(
    spec: str, columns: Sequence[str], *, form: str = "csv", optional: Sequence[str] = (),
    first: Callable[[Source], list[Slot]] | None = None,
) -> Iterator[Stretch]:  # fmt: skip
    """Yield a history in batches, with these columns alone.

    spec: A path that ends in .csv, .jsonl, .ndjson or .parquet; "-" for standard input; or
        "shuttle:K/N".
    columns: Their names. A Parquet file or a CSV header must have them all; in JSON lines a record
        without one has None there.
    form: As in `open_source`.
    optional: Names of further columns, which a history may lack.
    first: Is given the source first, and returns what it has read of it.

    Raises DataError if it cannot be read, or lacks a column; ConfigError if it is Parquet and
    pyarrow is not installed.
    """
    every = [*columns, *optional]
    source = open_once(spec, form=form, columns=every)
    try:
        held: Sequence[Slot] = [] if first is None else first(source)
        found = source.columns or every
        if missing := [name for name in columns if name not in found]:
            like = there(found, columns, of_file=not is_arrow(spec))
            raise DataError(f"{spec} has no column {', '.join(map(repr, missing))}{like}")
        absent = [name for name in optional if name not in found]
        while held or not source.ended:
            if slots := held or source.read(AT_A_TIME, 1.0):
                yield Stretch(batch_of(slots, {}), source.progress, absent)
            held = []
    finally:
        source.close()


def _room(spec: str) -> _Room | None:
    """Return the module that opens a source; None: it is a file of lines, or standard input."""
    if samples.packaged(spec):
        return cast("_Room", samples)
    name = _SCHEMES.get(spec.partition("://")[0]) if "://" in spec else None
    if name is None and not is_arrow(spec):
        return None
    return cast("_Room", import_module(f"producers.sources.{name or 'arrow'}"))


def _check_form(form: str) -> None:
    if form not in ("csv", "jsonl"):
        raise DataError(
            f"standard input cannot be {form!r}; the data owner must choose csv or jsonl"
        )


def _records_of(tape: Tape, form: str, asked: Opening) -> Source:
    try:
        if form == "csv":
            return CsvFile(tape, asked.position, asked.say)
        return JsonLinesFile(tape, asked.position)
    except BaseException:
        tape.close()
        raise
