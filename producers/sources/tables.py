"""A history in batches of columns, read once from its start: what a backtest reads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from pipeline.errors import DataError
from pipeline.records.encoder import Batch
from pipeline.records.features import there
from producers.sources import open_once
from producers.sources.arrow import parquet_batches
from producers.sources.base import Slot

#: Records in one batch of a Parquet file, and of a file that is read record by record.
PARQUET_RECORDS, TEXT_RECORDS = 65_536, 8_192


def read_batches(
    spec: str, columns: Sequence[str], *, form: str = "csv", optional: Sequence[str] = ()
) -> Iterator[Batch]:
    """Yield a history in batches, with these columns alone.

    spec: A path that ends in .csv, .jsonl, .ndjson or .parquet; "-" for standard input; or
        "shuttle:K/N".
    columns: Their names. A Parquet file or a CSV header must have them all; in JSON lines a record
        without one has None there.
    form: As in `open_source`.
    optional: Names of further columns, which batches lack where the history does.

    Raises DataError if it cannot be read, or lacks a column; ConfigError if it is Parquet and
    pyarrow is not installed.
    """
    if Path(spec).suffix.lower() == ".parquet":
        yield from parquet_batches(Path(spec), columns, PARQUET_RECORDS, optional)
        return
    source = open_once(spec, form=form)
    try:
        found = source.columns or columns
        missing = [name for name in columns if name not in found]
        if missing:
            raise DataError(
                f"{spec} has no column {', '.join(map(repr, missing))}{there(found, missing)}"
            )
        every = [*columns, *(name for name in optional if name in (source.columns or optional))]
        while not source.ended:
            slots = source.read(TEXT_RECORDS, 1.0)
            if slots:
                yield _batch(slots, every, source.progress)
    finally:
        source.close()


def _batch(slots: list[Slot], columns: Sequence[str], share: float | None) -> Batch:
    records = [slot.record or {} for slot in slots]
    found = {
        name: np.fromiter((record.get(name) for record in records), dtype=object, count=len(slots))
        for name in columns
    }
    return Batch(found, np.array([slot.record is None for slot in slots]), share)
