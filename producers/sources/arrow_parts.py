"""One Parquet or Arrow file in its parts: row groups of the one, record batches of the other."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Mapping
from typing import Any, BinaryIO, Protocol

from pipeline.errors import DataError
from pipeline.records.values import Foreign
from pipeline.settings import extra

#: Records that are made from a part at a time.
STEP = 1000
#: Bytes of the start and of the end of a file that tell whether it is what it was.
MARKED = 16 << 10
#: What pyarrow raises where a file is damaged, or has what it cannot read.
_FAULTS = (OSError, ValueError, NotImplementedError)


class _Parts(Protocol):
    """An open file: how many records each part has, and one part in batches."""

    schema: Any
    sizes: list[int]

    def batches(self, part: int, columns: list[str]) -> Iterator[Any]: ...


class ArrowFile:
    """The records of one file.

    name, stream: What it is called, and its bytes.
    columns: Those that are read; None: all.

    columns: The names in its schema.
    total: How many records there are.
    mark: A hash of its size, its parts, and the bytes of its start and of its end (the footer).

    Raises ConfigError if pyarrow is not installed; DataError if the file cannot be read.
    """

    def __init__(
        self, name: str, size: int, stream: BinaryIO, columns: Collection[str] | None = None
    ) -> None:
        self._name, self._stream = name, stream
        try:
            self._ends = _ends_of(stream, size)
            self._parts = _opened(stream)
        except _FAULTS as error:
            raise DataError(
                f"{name}: it is not a Parquet or Arrow file, or a damaged one; the data owner must "
                "write it anew, or name another"
            ) from error
        self.columns = named_once(name, self._parts.schema)
        self._read = [each for each in self.columns if columns is None or each in columns]
        self.total = sum(self._parts.sizes)
        told = f"{size} {self._parts.sizes} {self._parts.schema}".encode()
        self.mark = hashlib.blake2b(told + self._ends, digest_size=16).hexdigest()

    def rows(self, start: int) -> Iterator[Mapping[str, object]]:
        """Yield the records from number `start` on.

        DataError if the file is damaged, or has other numbers of records than it says.
        """
        for part, size in enumerate(self._parts.sizes):
            if start >= size:
                start -= size
                continue
            seen = 0
            try:
                for batch in self._parts.batches(part, self._read):
                    seen += batch.num_rows
                    if seen > size:
                        break
                    left = batch.slice(start)
                    start = max(0, start - batch.num_rows)
                    yield from records_of(left)
            except _FAULTS as error:
                raise DataError(
                    f"{self._name}: a part of it is damaged; the data owner must write it anew"
                ) from error
            if seen != size:
                raise miscounted(self._name, size, seen)

    def close(self) -> None:
        """Close the file."""
        self._stream.close()


def row_groups(file: Any) -> list[int]:
    """Return how many records the parts of a Parquet file have, as it says."""
    about = file.metadata
    return [int(about.row_group(at).num_rows) for at in range(about.num_row_groups)]


def miscounted(name: str, said: int, seen: int) -> DataError:
    """Return the error of a file that has other numbers of records than it says."""
    return DataError(
        f"{name}: it says that it, or a part of it, has {said} records, and that has "
        f"{'more' if seen > said else seen}; the data owner must write it anew"
    )


def records_of(batch: Any) -> list[dict[str, object]]:
    """Return the rows of an Arrow batch or table."""
    names = batch.schema.names
    if not names:
        return [{} for _ in range(batch.num_rows)]
    rows = zip(*map(values_of, batch.columns), strict=True)
    return [dict(zip(names, row, strict=True)) for row in rows]


def values_of(column: Any) -> list[object]:
    """Return an Arrow column as Python's values; what Python has no value for is `Foreign`."""
    import pyarrow as pa  # noqa: PLC0415  an extra

    kind = column.type
    if pa.types.is_timestamp(kind):
        # Python has no nanoseconds, and an instant needs no table of zones
        unit = "us" if kind.unit == "ns" else kind.unit
        column = column.cast(pa.timestamp(unit, kind.tz and "UTC"), safe=False)
    try:
        found: list[object] = column.to_pylist()
    except Exception:
        found = [_value(each, kind) for each in column]
    if pa.types.is_decimal(kind) and kind.scale == 0:
        return [value if value is None else int(value) for value in found]  # type: ignore[call-overload]
    return found


def _value(scalar: Any, kind: Any) -> object:
    try:
        return scalar.as_py()
    except Exception:
        return Foreign(str(kind))


def named_once(name: str, schema: Any) -> list[str]:
    """Return the columns of an Arrow schema; DataError if two have one name."""
    columns = list(schema.names)
    if twice := sorted({column for column in columns if columns.count(column) > 1}):
        raise DataError(
            f"{name}: column {twice[0]!r} is there twice; the data owner must name each once"
        )
    return columns


class _Parquet:
    def __init__(self, stream: BinaryIO) -> None:
        parquet = extra("pyarrow.parquet", "a Parquet file", "arrow")
        self._file = parquet.ParquetFile(stream, pre_buffer=False, page_checksum_verification=True)
        self.schema, self.sizes = self._file.schema_arrow, row_groups(self._file)

    def batches(self, part: int, columns: list[str]) -> Iterator[Any]:
        found: Iterator[Any] = self._file.iter_batches(
            STEP, row_groups=[part], columns=columns, use_threads=False
        )
        return found


class _Arrow:
    def __init__(self, stream: BinaryIO) -> None:
        pa = extra("pyarrow", "an Arrow file", "arrow")
        # never mapped: a file that is cut short under its reader would kill the process
        self._file = pa.ipc.open_file(stream)
        self.schema = self._file.schema
        # the format has no number of rows in its footer
        self.sizes = [
            self._file.get_batch(at).num_rows for at in range(self._file.num_record_batches)
        ]

    def batches(self, part: int, columns: list[str]) -> Iterator[Any]:
        whole = self._file.get_batch(part).select(columns)
        return (whole.slice(at, STEP) for at in range(0, whole.num_rows, STEP))


def _ends_of(stream: BinaryIO, size: int) -> bytes:
    start = stream.read(MARKED)
    stream.seek(max(0, size - MARKED))
    end = stream.read(MARKED)
    stream.seek(0)
    return start + end


def _opened(stream: BinaryIO) -> _Parts:
    """Open a file by what it holds, whatever it is called."""
    start = stream.read(6)
    stream.seek(0)
    return _Arrow(stream) if start == b"ARROW1" else _Parquet(stream)
