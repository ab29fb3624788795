"""A history by column, read once from its start: what a backtest reads."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from pipeline.errors import DataError
from pipeline.records.encoder import Stretch
from pipeline.records.features import there
from producers.sources import open_once
from producers.sources.arrow import is_arrow
from producers.sources.base import Slot, Source, batch_of

#: Records that are asked for at a time.
AT_A_TIME = 65_536


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
