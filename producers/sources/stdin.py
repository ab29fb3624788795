"""Standard input: kept in a spool file first, or read once without keeping what was read.

The spool is raw data at rest on the client's own disk (mode 0600). Offsets count from the first
byte that was ever spooled. The side file `stdin.json` names what counts: the header, where the
data file starts (`stdin-<base>.spool`), and the seams at which the input of each run begins; it
is replaced in one step, so a crash leaves the old state or the new one. A line counts once it is
synced to disk; a torn line at the end is dropped when the spool is opened again.
"""

from __future__ import annotations

import os
import shutil
import sys
import threading
from collections.abc import Callable
from io import FileIO
from pathlib import Path
from typing import BinaryIO, cast

import msgspec

from pipeline.errors import DataError, LocalStoreError, StateError, VeilstreamError
from producers.sources.csv_file import read_header
from producers.sources.text import POLL, RECORD_LIMIT, Tape

#: Bytes of one read.
CHUNK = 1 << 18


def open_input() -> BinaryIO:
    """Return standard input, unbuffered.

    A thread that waits in the buffered `sys.stdin` holds its lock, and the interpreter cannot
    shut down.

    DataError if there is none.
    """
    if sys.stdin is None:  # then number 0 may be any other file by now
        raise DataError("standard input is closed; the data owner must start the client with it")
    os.set_blocking(0, True)  # another program on the same terminal may have left it otherwise
    return cast("BinaryIO", open(0, "rb", buffering=0, closefd=False))


def reader_of(stream: BinaryIO) -> Callable[[int], bytes]:
    """Return a function that reads what is there, up to so many bytes, without waiting for more."""
    # `read1` does for a buffered stream what `read` does for one that is not
    return cast("Callable[[int], bytes]", getattr(stream, "read1", stream.read))


def unreadable(error: Exception) -> DataError:
    """Return the error that ends a reader when the input fails."""
    return DataError(
        f"standard input: it cannot be read ({type(error).__name__}); the data owner must start "
        "the command with an open input"
    )


class Pipe(Tape):
    """A stream that cannot be read again as a tape; a reader must not go back.

    It waits for input as long as that takes, so records come as soon as they are there.

    stream: The input; read up to its first line.
    """

    def __init__(self, stream: BinaryIO) -> None:
        self._read = reader_of(stream)
        self._held = bytearray()
        self._first = 0
        self._ended = False
        while not self._ended and b"\n" not in self._held and len(self._held) <= RECORD_LIMIT:
            self._pull()

    def extent(self, at: int) -> tuple[int, bool]:
        """Return what has come so far, and let go of what lies before `at`."""
        del self._held[: at - self._first]
        self._first = at
        return at + len(self._held), self._ended

    def line(self, at: int, size: int) -> bytes:
        """Return up to `size` bytes of what has come of the line at `at`, with its newline."""
        start = at - self._first
        end = self._held.find(b"\n", start, start + size) + 1
        return bytes(self._held[start : end or start + size])

    def block(self, at: int, size: int) -> bytes:
        return bytes(self._held[at - self._first : at - self._first + size])

    def wait(self, seconds: float) -> None:
        """Wait for more, however long."""
        del seconds
        self._pull()

    def close(self) -> None:
        """Do nothing: the stream is the caller's."""

    def _pull(self) -> None:
        try:
            chunk = self._read(CHUNK)
        except (OSError, ValueError) as error:
            raise unreadable(error) from None
        self._held += chunk
        self._ended = not chunk


#: Bytes that may wait unread. More than a record, or the reader and the pump could both wait.
READ_AHEAD = 2 * RECORD_LIMIT
#: Bytes that must be gone before the spool is rewritten without them.
FORGET = RECORD_LIMIT
#: Bytes that a crash may leave half written: a line that waited for its end, and what came with it.
LARGEST_WRITE = RECORD_LIMIT + 1 + CHUNK


class Side(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the side file holds."""

    form: str
    columns: list[str] | None
    base: int
    seams: list[int]


class Spool(Tape):
    """Standard input as a tape; a thread pumps it to disk.

    folder: Where the spool lies; the caller must hold this folder for itself.
    form: "csv" or "jsonl".
    """

    prefix = "stdin:"

    def __init__(self, folder: Path, form: str, stream: BinaryIO) -> None:
        self._folder = folder
        self._changed = threading.Condition()
        self._error: VeilstreamError | None = None
        self._eof = self._closed = False
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._side = self._load(form)
            self.base = self._taken = self._side.base
            self._acked = self.base + _drop_torn_line(self._path(self.base))
            self._save(self._side.columns, self.base, [*self._side.seams, self._acked])
            for path in folder.glob("stdin-*.spool"):
                if path != self._path(self.base):
                    path.unlink()
            self._open()
        except OSError as error:
            raise _disk_error(error) from None
        # nobody can interrupt a read from a pipe: the thread must not keep the process alive
        threading.Thread(target=self._pump, args=(stream,), daemon=True).start()

    def columns(self) -> list[str]:
        """Return the header, waiting for it if this is the first run."""
        with self._changed:
            self._changed.wait_for(lambda: self._side.columns is not None or self._eof)
            if self._side.columns is None:
                raise self._error or DataError(
                    "standard input: it ended without a header line; the data owner must put the "
                    "column names first"
                )
            return self._side.columns

    def extent(self, at: int) -> tuple[int, bool]:
        """Return what is safely on disk; no record goes on beyond a seam."""
        with self._changed:
            self._taken = max(self._taken, at)
            self._changed.notify_all()
            seam = next((seam for seam in self._side.seams if seam > at), None)
            if seam is not None:
                return seam, True
            return self._acked, self._eof and self._error is None

    def wait(self, seconds: float) -> None:
        """Wait for the pump, or say what stopped it."""
        with self._changed:
            if self._error is not None:
                raise self._error
            self._changed.wait(min(seconds, POLL))

    def forget(self, at: int) -> None:
        """Rewrite the spool without what lies before `at`, once that is worth it."""
        base = at - 1  # a reader at `at` asks whether the byte before it ends a line
        with self._changed:
            if base - self.base < FORGET:
                return
            try:
                self._file.seek(base - self.base)
                with _create(self._path(base)) as rest:
                    shutil.copyfileobj(self._file, rest)
                    _sync(rest)
                self._save(self._side.columns, base, self._side.seams)
                self._path(self.base).unlink()
                self.base = base
                self._close_files()
                self._open()
            except OSError as error:
                raise _disk_error(error) from None

    def close(self) -> None:
        """Stop the pump and close the files."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            self._close_files()

    def _pump(self, stream: BinaryIO) -> None:
        try:
            self._copy(stream)
        except VeilstreamError as error:
            self._error = error
        except (OSError, ValueError) as error:
            self._error = unreadable(error)
        with self._changed:
            self._eof = True
            self._changed.notify_all()

    def _copy(self, stream: BinaryIO) -> None:
        read = reader_of(stream)
        header = self._side.form == "csv"
        torn = b""
        while self._has_room() and (chunk := read(CHUNK)):
            lines, newline, torn = (torn + chunk).rpartition(b"\n")
            # of a line that is too long, the reader needs no more than to see that it is
            torn = torn[: RECORD_LIMIT + 1]
            lines += newline
            if header and lines:
                head, newline, lines = lines.partition(b"\n")
                self._take_header(head + newline)
                header = False
            self._append(lines)
        if header and torn:
            self._take_header(torn)
        elif torn:
            self._append(torn + b"\n")

    def _has_room(self) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._acked - self._taken < READ_AHEAD)
            return not self._closed

    def _take_header(self, line: bytes) -> None:
        columns = read_header(line, self.name)
        with self._changed:
            if self._side.columns is None:
                self._keep(lambda: self._save(columns, self.base, self._side.seams))
                self._changed.notify_all()
            elif columns != self._side.columns:
                raise DataError(
                    f"{self.name}: its header is not the one that this client has read before; "
                    "the data owner must feed the same columns in the same order"
                )

    def _append(self, lines: bytes) -> None:
        with self._changed:
            if lines and not self._closed:
                self._keep(lambda: _write(self._out, lines))
                self._acked += len(lines)
                self._changed.notify_all()

    @staticmethod
    def _keep(act: Callable[[], None]) -> None:
        try:
            act()
        except OSError as error:
            raise _disk_error(error) from None

    def _path(self, base: int) -> Path:
        return self._folder / f"stdin-{base}.spool"

    def _open(self) -> None:
        self._file = self._path(self.base).open("rb")
        self._at = -1
        self._out = self._path(self.base).open("ab", buffering=0)

    def _close_files(self) -> None:
        self._file.close()
        self._out.close()

    def _load(self, form: str) -> Side:
        path = self._folder / "stdin.json"
        if not path.exists():
            # without the side file nothing was ever acknowledged
            with _create(self._path(0)) as data:
                _sync(data)
            return Side(form, None, 0, [])
        try:
            side = msgspec.json.decode(path.read_bytes(), type=Side)
        except msgspec.DecodeError:
            raise StateError(f"{path}: it is damaged; the operator must restore it") from None
        if side.form != form:
            raise DataError(
                f"standard input: this client has read {side.form} before; the data owner must go "
                "on with that form"
            )
        return side

    def _save(self, columns: list[str] | None, base: int, seams: list[int]) -> None:
        kept = sorted({seam for seam in seams if seam > base})
        side = Side(self._side.form, columns, base, kept)
        draft = self._folder / "stdin.json.new"
        with _create(draft) as file:
            file.write(msgspec.json.encode(side))
            _sync(file)
        draft.replace(self._folder / "stdin.json")
        folder = os.open(self._folder, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
        self._side = side


def _create(path: Path) -> BinaryIO:
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb")


def _sync(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


def _write(file: FileIO, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[file.write(rest) :]
    os.fsync(file.fileno())


def _drop_torn_line(path: Path) -> int:
    """Cut what follows the last newline, and return the bytes that stay."""
    with path.open("r+b") as file:
        end = file.seek(0, os.SEEK_END)
        start = max(end - LARGEST_WRITE, 0)
        file.seek(start)
        end = start + file.read().rfind(b"\n") + 1
        file.truncate(end)
        _sync(file)
        return end


def _disk_error(error: OSError) -> LocalStoreError:
    return LocalStoreError(
        f"the spool of standard input cannot be kept ({error.strerror}); the operator must give "
        "the client's folder space and write permission"
    )
