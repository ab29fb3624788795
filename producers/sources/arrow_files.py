"""Parquet and Arrow files as a source: one file, or those of a folder in the order of their names.

Files are whole when they are there, and later ones have later names: a position is a file, by its
name, and a number of records in it. Needs pyarrow; files of other stores need fsspec.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Annotated

import msgspec

from pipeline.errors import DataError
from producers.sources.arrow_parts import ArrowFile
from producers.sources.arrow_places import File, place_of, public_url
from producers.sources.base import Elsewhere, Known, Opening, Slot, read_position

#: Seconds between two looks at a folder that may grow.
LOOK = 1.0
KIND = "file"

_Natural = Annotated[int, msgspec.Meta(ge=0)]


class _At(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="arrow", tag_field="kind"):
    """Where reading goes on.

    name: Of the source.
    file, before: The file, and how many files there were before it.
    row, rows: Records that were read of it, and those that it has.
    mark: Of the file.
    records: Those that were handed out in all.
    """

    name: str
    file: str = ""
    before: _Natural = 0
    row: _Natural = 0
    rows: _Natural = 0
    mark: str = ""
    records: _Natural = 0


def known_as(spec: str) -> Known:
    """Return the name of the file or folder, and where it lies."""
    is_url = "://" in spec
    named = public_url(spec) if is_url else spec
    location = named if is_url else str(Path(spec).resolve())
    return Known(f"arrow:{named.rstrip('/').rpartition('/')[2]}", location)


def opened(spec: str, asked: Opening) -> ArrowFiles:
    """Open the files of a specification; raises as `ArrowFiles`."""
    return ArrowFiles(
        spec, asked.position, follow=asked.follow, say=asked.say, columns=asked.columns
    )


class ArrowFiles(Elsewhere):
    """The records of Parquet and Arrow files.

    spec: Path or URL of a file, or of a folder; see `arrow_places.place_of`.
    position: Behind which slot to resume; None is the start.
    follow: Whether to wait for more files of the folder.
    say: Told if the last file that was read is there, and is another.
    columns: Those that are read; None: all.

    Raises DataError if it cannot be read, or what was read from is not there as it was; ConfigError
    if a package is missing.
    """

    repeats = True

    def __init__(
        self, spec: str, position: bytes | None, *, follow: bool, say: Callable[[str], None],
        columns: Collection[str] | None = None,
    ) -> None:  # fmt: skip
        self.identity, self._follow, self._read = known_as(spec).name, follow, columns
        self._place = place_of(spec)
        self._at = _At(self.identity) if position is None else self._read_position(position)
        self._looked = time.monotonic()
        self._listed = self._place.files()
        self._next = self._index()
        self._size = sum(file.size for file in self._listed)
        self._current: ArrowFile | None = None
        self._rows: Iterator[Mapping[str, object]] = iter(())
        if self._at.row < self._at.rows:
            self._resume()
        else:
            self._check_last(say)
            self._open_next()
        self.columns = None if self._current is None else self._current.columns

    @property
    def ended(self) -> bool:
        """Whether all files that were there were handed out; never while it follows."""
        left = self._current is not None or self._next < len(self._listed)
        return not self._follow and not left

    @property
    def progress(self) -> float | None:
        """The share of the bytes read, unknown while it follows."""
        if self._follow:
            return None
        left = [float(file.size) for file in self._listed[self._next :]]
        if self._current is not None:
            left.append(self._listed[self._next - 1].size * (1 - self._at.row / self._at.rows))
        return 1 - sum(left) / max(self._size, 1)

    def read(self, limit: int, timeout: float) -> list[Slot]:
        """Return up to `limit` slots, none if no file came within `timeout` seconds.

        DataError if a file cannot be read.
        """
        deadline, slots = time.monotonic() + timeout, list[Slot]()
        while len(slots) < limit:
            if self._current is not None:
                slots += map(self._slot, islice(self._rows, limit - len(slots)))
                if self._at.row == self._at.rows:
                    self.close()
                continue
            # a file that cannot be opened must not take with it what was read
            if slots or self.ended:
                break
            if self._next < len(self._listed):
                self._open_next()
                continue
            due = self._looked + LOOK
            time.sleep(max(0.0, min(deadline, due) - time.monotonic()))
            if time.monotonic() < due:
                break
            self._look()
        return slots

    def close(self) -> None:
        """Close the file that is open."""
        if self._current is not None:
            self._current.close()
        self._current, self._rows = None, iter(())

    def _slot(self, row: Mapping[str, object]) -> Slot:
        at = self._at
        records = at.records + 1
        self._at = msgspec.structs.replace(at, row=at.row + 1, records=records)
        return Slot(row, None, msgspec.json.encode(self._at), records)

    def _open_next(self) -> None:
        """Go on to the next file that has records, if there is one."""
        self.close()
        while self._next < len(self._listed):
            file = self._open(self._listed[self._next])
            self._next += 1
            self._at = _At(
                self.identity, self._listed[self._next - 1].name, self._next - 1, 0, file.total,
                file.mark, self._at.records,
            )  # fmt: skip
            if file.total:
                self._current, self._rows = file, file.rows(0)
                return
            file.close()

    def _open(self, file: File) -> ArrowFile:
        stream = self._place.open(file.name)
        try:
            return ArrowFile(file.name, file.size, stream, self._read)
        except BaseException:
            stream.close()
            raise

    def _look(self) -> None:
        """List the files again: those behind the last one that was opened are new."""
        self._looked = time.monotonic()
        self._listed = self._place.files()
        self._next = self._index()

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
        self._current, self._rows = file, file.rows(self._at.row)

    def _read_position(self, position: bytes) -> _At:
        return read_position(
            position, _At, lambda at: at.name == self.identity, self.identity, "these files"
        )
