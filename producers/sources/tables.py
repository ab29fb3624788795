"""A history in batches of columns, read once from its start: what a backtest reads.

Parquet needs pyarrow (extra `backtest`): row groups are read one after the other, so memory depends
on their size and not on the length of the file.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import DataError
from pipeline.records.encoder import Stretch
from pipeline.records.features import there
from pipeline.settings import extra
from producers.sources import open_once, open_source
from producers.sources.arrow import miscounted, named_once, row_groups, values_of
from producers.sources.base import Slot, Source

#: Records in one batch of a Parquet file, and of a file that is read record by record.
PARQUET_RECORDS, TEXT_RECORDS = 65_536, 8_192


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
    optional: Names of further columns, which batches lack where the history does.
    first: Is given the source first, and returns what it has read of it.

    Raises DataError if it cannot be read, or lacks a column; ConfigError if it is Parquet and
    pyarrow is not installed.
    """
    if Path(spec).suffix.lower() == ".parquet":
        if first is not None:
            names = [*columns, *optional]
            with closing(open_source(spec, None, folder=Path(), columns=names)) as source:
                first(source)
        yield from parquet_batches(Path(spec), columns, PARQUET_RECORDS, optional)
        return
    source = open_once(spec, form=form)
    try:
        slots: Sequence[Slot] = [] if first is None else first(source)
        found = source.columns or columns
        missing = [name for name in columns if name not in found]
        if missing:
            raise DataError(
                f"{spec} has no column {', '.join(map(repr, missing))}{there(found, columns)}"
            )
        every = [*columns, *(name for name in optional if name in (source.columns or optional))]
        while slots or not source.ended:
            if slots := slots or source.read(TEXT_RECORDS, 1.0):
                yield _batch(slots, every, source.progress)
            slots = []
    finally:
        source.close()


def _batch(slots: Sequence[Slot], columns: Sequence[str], share: float | None) -> Stretch:
    records = [slot.record or {} for slot in slots]
    found = {
        name: np.fromiter((record.get(name) for record in records), dtype=object, count=len(slots))
        for name in columns
    }
    return Stretch(found, np.array([slot.record is None for slot in slots]), share)


def parquet_batches(
    path: Path, columns: Sequence[str], size: int, optional: Sequence[str] = ()
) -> Iterator[Stretch]:
    """Yield the records of a file in batches of at most `size`, with these columns alone.

    optional: Names of further columns, which batches lack where the file does.

    Raises ConfigError if pyarrow is not installed; DataError if the file cannot be read, or lacks a
    column.
    """
    file = _open(path)
    try:
        names = named_once(path.name, file.schema_arrow)
        missing = [name for name in columns if name not in names]
        if missing:
            like = there(names, columns, of_file=False)
            raise DataError(f"{path.name} has no column {', '.join(map(repr, missing))}{like}")
        done, total = 0, sum(row_groups(file))
        every = [*columns, *(name for name in optional if name in names)]
        try:
            for part in file.iter_batches(size, columns=every, use_threads=False):
                found = {name: _values(part.column(name)) for name in every}
                done += part.num_rows
                yield Stretch(found, np.zeros(part.num_rows, dtype=bool), done / max(total, 1))
            if done != total:
                raise miscounted(path.name, total, done)
        except (OSError, ValueError) as error:
            raise DataError(
                f"{path.name}: a part of it is damaged; the data owner must write it anew"
            ) from error
    finally:
        file.close()


def _open(path: Path) -> Any:
    parquet = extra("pyarrow.parquet", "a Parquet file")
    try:
        return parquet.ParquetFile(path, pre_buffer=False, page_checksum_verification=True)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it is not a Parquet file, or a damaged one"
        raise DataError(
            f"{path.name}: cannot be read ({reason}); the data owner must name a Parquet file "
            "that this process may read"
        ) from None


def _values(column: Any) -> NDArray[Any]:
    """Return an Arrow column as numbers, times, or objects with None for missing."""
    import pyarrow as pa  # noqa: PLC0415  an extra

    kind = column.type
    if pa.types.is_dictionary(kind) or pa.types.is_string(kind) or pa.types.is_large_string(kind):
        coded = column if pa.types.is_dictionary(kind) else column.dictionary_encode()
        # one object for each different text; the last one stands for missing
        texts = np.array([*values_of(coded.dictionary), None], dtype=object)
        found: NDArray[Any] = texts[_numbers(coded.indices, -1)]
        return found
    whole = pa.types.is_decimal(kind) and kind.scale == 0
    named = pa.types.is_boolean(kind) or pa.types.is_nested(kind) or pa.types.is_binary(kind)
    if named or whole or (pa.types.is_integer(kind) and column.null_count):
        # floats would make one of several large numbers, which may name clients
        return np.fromiter(values_of(column), dtype=object, count=len(column))
    if pa.types.is_decimal(kind):
        column = column.cast(pa.float64())
    if pa.types.is_integer(column.type) or pa.types.is_floating(column.type):
        return _numbers(column, math.nan)
    values: NDArray[Any] = column.to_numpy(zero_copy_only=False)
    return values


def _numbers(column: Any, missing: float) -> NDArray[Any]:
    """Return an Arrow column of numbers; other ways to it load pandas, which takes longer."""
    return np.from_dlpack(column.fill_null(missing) if column.null_count else column)
