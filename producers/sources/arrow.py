"""Parquet and Arrow files as a source: one file, or those of a folder in the order of their names.

Files are whole when they are there, and later ones have later names: a position is a file, by its
name, and a number of records in it. They lie on this machine or in a store that fsspec reaches.
Row groups are read one after the other, so memory depends on their size and not on the length of
the file. Needs pyarrow; files of other stores need fsspec.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, Protocol, cast

import msgspec

from pipeline.errors import ConfigError, DataError
from pipeline.records.batch import Column, Columns
from pipeline.records.values import Foreign
from pipeline.settings import extra
from producers.sources.base import (
    CELLS,
    Known,
    Natural,
    Opening,
    Slot,
    Slots,
    Source,
    read_position,
    wait_for,
)

#: What a file of records is called.
SUFFIXES = (".parquet", ".arrow", ".feather")
_PASSWORD = re.compile(r"://[^/:@]*:[^/]*@")
#: What may be a secret: who reads, and a signature. Of Azure, what stands before @ is a container.
_SECRET = re.compile(r"(?<=://)(?<!abfs://)(?<!abfss://)[^/]*@|[?#].*?(?=::|$)")


class File(NamedTuple):
    """A file, by its path below the folder that was named, and its bytes."""

    name: str
    size: int


def is_arrow(spec: str) -> bool:
    """Whether a specification names a folder, an Arrow or Parquet file, or another store."""
    return "://" in spec or spec.endswith("/") or Path(spec).suffix.lower() in SUFFIXES


def public_url(url: str) -> str:
    """Return a URL without user and query; ConfigError if it has a password."""
    if _PASSWORD.search(url):
        # what is typed here is seen in the list of processes
        raise ConfigError(
            "--source: a password has no place in it; the data owner must give it as the settings "
            "of the store's own package say"
        )
    return _SECRET.sub("", url)


class Disk:
    """A file of this machine, or a folder of them.

    Every method raises DataError if it cannot be read, and names the file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._base = path if path.is_dir() else path.parent

    def files(self) -> list[File]:
        """Return the files in the order of their names; those that begin with . or _ are hidden."""
        with _reading(self._path.name):
            if self._path.is_file():
                return [File(self._path.name, self._path.stat().st_size)]
            if not self._path.is_dir():
                raise FileNotFoundError(2, "No such file or folder")
            found = (
                (path.relative_to(self._path).as_posix(), path)
                for path in self._path.rglob("*")
                if path.is_file()
            )
            return sorted(File(name, path.stat().st_size) for name, path in found if _shown(name))

    def open(self, name: str) -> BinaryIO:
        """Open one of them."""
        with _reading(name):
            return (self._base / name).open("rb")


class Store:
    """The same of another store, such as `s3://bucket/folder/`.

    ConfigError if the package that reaches it is missing.
    """

    def __init__(self, url: str) -> None:
        self._url, self._single = public_url(url), ""
        fsspec: Any = extra("fsspec.core", f"{url.partition('://')[0]}://", "arrow")
        with _reading(self._url):
            try:
                self._fs, self._path = fsspec.url_to_fs(url)
            except ImportError as error:
                raise ConfigError(
                    f"--source: a package that reaches this store is not installed ({error}); the "
                    "operator must install it beside veilstream"
                ) from None
        self._base = self._path.rstrip("/")

    def files(self) -> list[File]:
        with _reading(self._url):
            # what a store listed before may be old
            self._fs.invalidate_cache()
            found = self._fs.find(self._path, detail=True)
            if not found:
                raise FileNotFoundError(2, "No such file or folder")
            if self._base in found:
                self._single = public_url(self._base).rpartition("/")[2]
                return [File(self._single, int(found[self._base]["size"]))]
            cut = len(self._base) + 1
            named = ((path[cut:], int(each["size"])) for path, each in found.items())
            return sorted(File(name, size) for name, size in named if _shown(name))

    def open(self, name: str) -> BinaryIO:
        with _reading(name):
            path = self._base if name == self._single else f"{self._base}/{name}"
            return cast("BinaryIO", self._fs.open(path, "rb"))


def _shown(name: str) -> bool:
    """Whether a file counts: writers hide what is not whole yet."""
    hidden = any(part.startswith((".", "_")) for part in name.split("/"))
    return not hidden and Path(name).suffix.lower() in SUFFIXES


@contextmanager
def _reading(name: str) -> Iterator[None]:
    try:
        yield
    except (ConfigError, DataError):
        raise
    except Exception as error:  # every store has errors of its own
        reason = getattr(error, "strerror", None) or type(error).__name__
        raise DataError(
            f"{name}: cannot be read ({reason}); the data owner must name a file or folder that "
            "this process may read"
        ) from error


#: Records that are read of a part at a time; and of those with very many columns, whose texts are
#: made so many together, too.
STEP, LEAST = 32_768, 1000
#: Bytes of the start and of the end of a file that tell whether it is what it was.
MARKED = 16 << 10
#: What pyarrow raises where a file is damaged, or has what it cannot read.
_FAULTS = (OSError, ValueError, NotImplementedError)


class _Parts(Protocol):
    """An open file: how many records each part has, and one part in batches of `step` records."""

    schema: Any
    sizes: list[int]

    def batches(self, part: int, columns: list[str], step: int) -> Iterator[Any]: ...


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
        self.name, self._stream = name, stream
        try:
            self._ends = _ends_of(stream, size)
            self._parts = _opened(stream)
        except _FAULTS as error:
            raise DataError(
                f"{name}: it is not a Parquet or Arrow file, or a damaged one; the data owner must "
                "write it anew, name another, or give a file of text its ending, such as .csv"
            ) from error
        self.columns = named_once(name, self._parts.schema)
        self._read = [each for each in self.columns if columns is None or each in columns]
        self.total = sum(self._parts.sizes)
        told = f"{size} {self._parts.sizes} {self._parts.schema}".encode()
        self.mark = hashlib.blake2b(told + self._ends, digest_size=16).hexdigest()

    def batches(self, start: int) -> Iterator[Columns]:
        """Yield the records from number `start` on, some at a time.

        DataError if the file is damaged, or has other numbers of records than it says.
        """
        step = min(STEP, max(LEAST, CELLS // max(1, len(self._read))))
        for part, size in enumerate(self._parts.sizes):
            if start >= size:
                start -= size
                continue
            seen = 0
            try:
                for batch in self._parts.batches(part, self._read, step):
                    seen += batch.num_rows
                    if seen > size:
                        break
                    left = batch.slice(start)
                    start = max(0, start - batch.num_rows)
                    if left.num_rows:
                        yield columns_of(left)
            except _FAULTS as error:
                raise DataError(
                    f"{self.name}: a part of it is damaged; the data owner must write it anew"
                ) from error
            if seen != size:
                raise miscounted(self.name, size, seen)

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


def columns_of(batch: Any) -> Columns:
    """Return the rows of an Arrow batch or table."""
    names = batch.schema.names
    found = {name: _column(batch.column(place)) for place, name in enumerate(names)}
    return Columns(found, batch.num_rows)


def _column(column: Any) -> Column:
    import pyarrow as pa  # noqa: PLC0415  an extra

    kind, whole = column.type, {"zero_copy_only": False}
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_floating(kind):
        # what lies where nothing is: as many steps whether values are missing or not
        bare, at = [None, column.buffers()[1]], column.offset
        values = pa.Array.from_buffers(kind, len(column), bare, 0, at).to_numpy(**whole)
        return Column(values, column.is_null().to_numpy(**whole))
    if pa.types.is_timestamp(kind) or pa.types.is_date32(kind):
        return Column(column.to_numpy(**whole), zoned=getattr(kind, "tz", None) is not None)
    # one that cannot be read costs those few beside it their speed, and no others
    parts = (_objects(column.slice(at, LEAST)) for at in range(0, len(column), LEAST))
    return Column([value for part in parts for value in part])


def _objects(column: Any) -> list[object]:
    import pyarrow as pa  # noqa: PLC0415  an extra

    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        with suppress(pa.ArrowException):
            found: list[object] = column.to_numpy(zero_copy_only=False).tolist()
            return found
    return values_of(column)


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

    def batches(self, part: int, columns: list[str], step: int) -> Iterator[Any]:
        found: Iterator[Any] = self._file.iter_batches(
            step, row_groups=[part], columns=columns, use_threads=False
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

    def batches(self, part: int, columns: list[str], step: int) -> Iterator[Any]:
        whole = self._file.get_batch(part).select(columns)
        return (whole.slice(at, step) for at in range(0, whole.num_rows, step))


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


#: Seconds between two looks at a folder that may grow.
LOOK = 1.0
#: Files that are known again under another name, and characters of their marks that tell them.
REMEMBERED, SHORT = 1000, 16
KIND = "file"


class _At(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="arrow", tag_field="kind"):
    """Where reading goes on.

    name: Of the source.
    file, before: The file, and how many files there were before it.
    row, rows: Records that were read of it, and those that it has.
    mark: Of the file.
    records: Those that were handed out in all.
    read: Of the last files that were read to their end, by the beginnings of their marks.
    """

    name: str
    file: str = ""
    before: Natural = 0
    row: Natural = 0
    rows: Natural = 0
    mark: str = ""
    records: Natural = 0
    read: tuple[str, ...] = ()


def known_as(spec: str) -> Known:
    """Return the name of the file or folder, and where it lies."""
    is_url = "://" in spec
    named = public_url(spec) if is_url else spec
    location = named if is_url else str(Path(spec).resolve())
    return Known(f"arrow:{named.rstrip('/').rpartition('/')[2]}", location)


def opened(spec: str, asked: Opening) -> ArrowFiles:
    """Open the files of a specification; raises as `ArrowFiles`."""
    return ArrowFiles(spec, asked)


class ArrowFiles(Source):
    """The records of Parquet and Arrow files; more files of a folder are waited for.

    spec: Path or URL of a file, or of a folder.

    Raises DataError if it cannot be read, or what was read from is not there as it was; ConfigError
    if a package is missing.
    """

    def __init__(self, spec: str, asked: Opening) -> None:
        self.identity, self._follow, self._read = known_as(spec).name, asked.follow, asked.columns
        self._place = Store(spec) if "://" in spec else Disk(Path(spec))
        self._at = _At(self.identity)
        if asked.position is not None:
            self._at = read_position(
                asked.position, _At, lambda at: at.name == self.identity, self.identity,
                "these files",
            )  # fmt: skip
        self._looked = time.monotonic()
        self._listed = self._place.files()
        self._next = self._index()
        self._size = sum(file.size for file in self._listed)
        self._current: ArrowFile | None = None
        self._batches: Iterator[Columns] = iter(())
        self._batch = Columns({}, 0)
        if self._at.row < self._at.rows:
            self._resume()
        else:
            self._check_last(asked.say)
            self._open_next()
        self.columns = None if self._current is None else self._current.columns

    @property
    def ended(self) -> bool:
        left = self._current is not None or self._next < len(self._listed)
        return not self._follow and not left

    @property
    def progress(self) -> float | None:
        """As `Source.progress`, of bytes."""
        if self._follow:
            return None
        left = [float(file.size) for file in self._listed[self._next :]]
        if self._current is not None:
            left.append(self._listed[self._next - 1].size * (1 - self._at.row / self._at.rows))
        return 1 - sum(left) / max(self._size, 1)

    def read(self, limit: int, timeout: float) -> Sequence[Slot]:
        deadline = time.monotonic() + timeout
        while self._current is None and not self.ended:
            if self._next < len(self._listed):
                self._open_next()
                continue
            if not wait_for(self._looked + LOOK, deadline):
                break
            # those behind the last one that was opened are new
            self._looked = time.monotonic()
            self._listed = self._place.files()
            self._next = self._index()
        return [] if self._current is None else self._some(limit)

    def close(self) -> None:
        """Close the file that is open."""
        if self._current is not None:
            self._current.close()
        self._current, self._batches, self._batch = None, iter(()), Columns({}, 0)

    def _some(self, limit: int) -> Slots:
        """Return slots of the open file, and close it behind its last."""
        if not len(self._batch):
            self._batch = next(self._batches)
        found, self._batch = self._batch.part(slice(limit)), self._batch.part(slice(limit, None))
        before = self._at

        def place(number: int) -> tuple[bytes, int]:
            done = number + 1
            records = before.records + done
            at = msgspec.structs.replace(before, row=before.row + done, records=records)
            return msgspec.json.encode(at), records

        self._at = msgspec.structs.replace(
            before, row=before.row + len(found), records=before.records + len(found)
        )
        if self._at.row == self._at.rows:
            # the count of the file is checked behind its last record
            next(self._batches, None)
            self.close()
        return Slots(found, place)

    def _open_next(self) -> None:
        """Go on to the next file that has records, if there is one.

        DataError if it is one that was read.
        """
        self.close()
        read = self._at.read
        if self._at.rows:
            read = (*read, self._at.mark[:SHORT])[-REMEMBERED:]
        while self._next < len(self._listed):
            file = self._open(self._listed[self._next])
            if file.total and file.mark[:SHORT] in read:
                file.close()
                raise DataError(
                    f"{file.name}: it is a file that was read, under another name, and would be "
                    "released twice; the data owner must take it away. If its records are new and "
                    "only look the same, write it anew with a column that tells them apart"
                )
            self._next += 1
            self._at = _At(
                self.identity, self._listed[self._next - 1].name, self._next - 1, 0, file.total,
                file.mark, self._at.records, read,
            )  # fmt: skip
            if file.total:
                self._current, self._batches = file, file.batches(0)
                return
            file.close()

    def _open(self, file: File) -> ArrowFile:
        stream = self._place.open(file.name)
        try:
            return ArrowFile(file.name, file.size, stream, self._read)
        except BaseException:
            stream.close()
            raise

    def _index(self) -> int:
        """Return where the files begin that were not opened yet."""
        names = [file.name for file in self._listed]
        before = sum(name < self._at.file for name in names)
        if before > self._at.before:
            raise DataError(
                f"{self.identity}: {before - self._at.before} files have come before one that was "
                "released from, and would be passed over; the data owner must give them names "
                "that come after all others"
            )
        return before + (self._at.file in names)

    def _left(self) -> ArrowFile | None:
        """Open the file of the position, if it is there."""
        listed = self._listed[self._next - 1 : self._next] if self._next else []
        return self._open(listed[0]) if listed and listed[0].name == self._at.file else None

    def _check_last(self, say: Callable[[str], None]) -> None:
        """Say whether the file that was read to its end has been written anew."""
        file = self._left()
        if file is None:
            return
        file.close()
        if file.mark != self._at.mark:
            say(
                f"WARNING: {self.identity}: {self._at.file} was read to its end and has been "
                "written anew: what it holds now is not read; the data owner must give new "
                "records a file of their own, whose name comes after it"
            )

    def _resume(self) -> None:
        """Open the file that was left in its middle."""
        file = self._left()
        if file is None or file.mark != self._at.mark:
            raise DataError(
                f"{self.identity}: {self._at.file} was released from and is not what it was; the "
                "data owner must put the old file back; what was released from it cannot be "
                "released again"
            )
        self._at = msgspec.structs.replace(self._at, before=self._next - 1)
        self._current, self._batches = file, file.batches(self._at.row)
