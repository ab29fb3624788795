"""What a source is, and the part that all files of records share.

A source yields one slot for every record, good or bad: a bad record keeps its place as an empty
slot, so that its form cannot shift the windows behind it. Reasons name the line and what is
wrong, never a value.

A `Tape` is a file addressed by absolute byte offsets; a `RecordFile` cuts it into slots. Its
whole state is the offset: an offset in the middle of a line means that the rest of that line
belongs to a slot that was handed out already.
"""

from __future__ import annotations

import hashlib
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, NamedTuple, Protocol

import msgspec

from pipeline.errors import DataError

#: The bytes of one record; what is longer becomes an empty slot.
RECORD_LIMIT = 1 << 20
#: Bytes at a file's start, and before a position, that tell whether it is still the same file.
MARKED = 16_384
#: Seconds between two looks at a file that may grow.
POLL = 0.05

_Natural = Annotated[int, msgspec.Meta(ge=0)]


@dataclass(frozen=True, slots=True)
class Slot:
    """One record slot: the record, or why there is none, and how to resume behind it.

    Attributes
    ----------
    line
        Where the record begins: a line of its file, or its number where there are no lines.
    """

    record: Mapping[str, object] | None
    fault: str | None
    position: bytes
    line: int


class Source(Protocol):
    """Where the raw records of one client come from."""

    @property
    def identity(self) -> str:
        """Stable name of the source for the privacy ledger."""

    @property
    def columns(self) -> list[str] | None:
        """The columns, if they are known before the records are read."""

    def read(self, limit: int, timeout: float) -> list[Slot]:
        """Return up to `limit` slots, none if nothing came within `timeout` seconds."""

    @property
    def ended(self) -> bool:
        """Whether the end was reached and everything was handed out."""

    @property
    def total(self) -> int | None:
        """How many slots there are in all, if that is known without reading them."""

    @property
    def progress(self) -> float | None:
        """The share that was read, 0 to 1."""

    def anchored(self, position: bytes) -> bytes:
        """Return a position with a mark of what lies before it, for storing.

        A source that was rewritten is found out by it: it would hand records out again.
        """

    def forget(self, position: bytes) -> None:
        """Release storage that only slots up to this committed position needed."""

    def close(self) -> None:
        """Close the files."""


class Place(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a position holds.

    Attributes
    ----------
    kind
        The kind of source.
    at, line
        An offset, and a line number for messages.
    mark
        Of what lies before the offset; empty where nothing can be rewritten.
    """

    kind: str
    at: _Natural
    line: _Natural
    mark: str = ""


def decode_position(position: bytes, kind: str, name: str) -> Place:
    """Return the contents of a position.

    Raises
    ------
    DataError
        If it is no position of this kind of source.
    """
    try:
        place = msgspec.json.decode(position, type=Place)
    except (msgspec.DecodeError, UnicodeDecodeError):
        place = None
    if place is None or place.kind != kind:
        raise DataError(
            f"{name}: the stored position is not one of a source of kind {kind!r}; the data owner "
            "must name the source that this client has read from before"
        ) from None
    return place


class Tape:
    """A file of lines that is read by absolute offsets, possibly while it grows."""

    prefix = ""
    base = 0  #: the offset of the first byte that is still there

    def __init__(self, path: Path, follow: bool) -> None:
        self.name = path.name
        self.follow = follow
        try:
            self._file = path.open("rb")
        except OSError as error:
            raise DataError(
                f"{path.name}: cannot be opened ({error.strerror}); the data owner must name a "
                "file that this process may read"
            ) from None
        self._at = 0

    def extent(self, at: int) -> tuple[int, bool]:
        """Return the offset to which a reader at `at` may read, and if no record goes beyond."""
        del at
        return os.fstat(self._file.fileno()).st_size, not self.follow

    def line(self, at: int, size: int) -> bytes:
        """Return up to `size` bytes of what is left of the line at `at`, with its newline."""
        if at != self._at:
            self._file.seek(at - self.base)
        line = self._file.readline(size)
        self._at = at + len(line)
        return line

    def mark(self, at: int) -> str:
        """Return a hash of the bytes before an offset: the first and the last of them."""
        file, digest = self._file.fileno(), hashlib.blake2b(digest_size=16)
        for start in (0, max(0, at - MARKED)):
            digest.update(os.pread(file, min(MARKED, at - start), start))
        return digest.hexdigest()

    def wait(self, seconds: float) -> None:
        """Wait a moment for more."""
        time.sleep(min(seconds, POLL))

    def forget(self, at: int) -> None:
        """Do nothing: the file is the data owner's."""

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class Cut(NamedTuple):
    """One record cut from a tape: its bytes, and the record or its fault."""

    raw: bytes
    record: Mapping[str, object] | None
    fault: str | None


class RecordFile(ABC):
    """The slots of a tape; a subclass cuts and parses one record.

    Parameters
    ----------
    tape
        Where the bytes come from.
    position
        Behind which slot to resume; None is the start.
    start
        Offset and line number of the first record on the tape.
    """

    form = ""

    def __init__(self, tape: Tape, position: bytes | None, start: tuple[int, int]) -> None:
        self._tape = tape
        self._kind = tape.prefix + self.form
        self._at, self._line = start
        if position is not None:
            place = decode_position(position, self._kind, tape.name)
            if place.at < self._at:
                raise DataError(
                    f"{tape.name}: the stored position lies before the first record that is still "
                    "there; the data owner must name the source this client has read from before"
                )
            if place.mark and place.mark != tape.mark(place.at):
                raise DataError(
                    f"{tape.name}: what lies before the stored position is not what was released "
                    "from; records may only be added at a file's end. The data owner must put the "
                    "old file back; what was released from it cannot be released again"
                )
            self._at, self._line = place.at, place.line
        elif tape.base:
            raise DataError(
                f"{tape.name}: its first records were released from and forgotten, but this client "
                "has no position in it; the data owner must bring the client's own database back, "
                "or remove the spool as well"
            )
        self._check_length()
        self._inside = self._at > start[0] and tape.line(self._at - 1, 1) != b"\n"
        self._stuck: tuple[int, bool] | None = None

    @property
    def identity(self) -> str:
        """Form and file name: moving the folder makes no new source."""
        return self._kind if self._tape.prefix else f"{self.form}:{self._tape.name}"

    @property
    def columns(self) -> list[str] | None:
        """Unknown, unless the form has a header."""
        return None

    @property
    def ended(self) -> bool:
        """Whether the end was reached and everything was handed out."""
        end, final = self._tape.extent(self._at)
        return final and self._at >= end

    @property
    def total(self) -> int | None:
        """Unknown: nobody has counted the lines."""
        return None

    @property
    def progress(self) -> float | None:
        """The share of the bytes read, unknown where the file may grow."""
        if self._tape.follow:
            return None
        end, _ = self._tape.extent(self._at)
        return min(self._at / end, 1.0) if end else 1.0

    def read(self, limit: int, timeout: float) -> list[Slot]:
        """Return up to `limit` slots, none if nothing came within `timeout` seconds."""
        deadline = time.monotonic() + timeout
        slots: list[Slot] = []
        while True:
            extent = self._check_length()
            # a record that was not complete is looked at again only once there is more of it
            while extent != self._stuck and len(slots) < limit and (slot := self._next(*extent)):
                slots.append(slot)
            if len(slots) >= limit:
                return slots
            if self._tape.extent(self._at) != extent:
                continue
            if slots or (extent[1] and self._at >= extent[0]):
                return slots
            left = deadline - time.monotonic()
            self._tape.wait(max(left, 0.0))
            if left <= 0:
                return []

    def anchored(self, position: bytes) -> bytes:
        """Return a position with a mark of what lies before it, for storing."""
        place = decode_position(position, self._kind, self._tape.name)
        return msgspec.json.encode(msgspec.structs.replace(place, mark=self._tape.mark(place.at)))

    def forget(self, position: bytes) -> None:
        """Release storage that only slots up to this committed position needed."""
        place = decode_position(position, self._kind, self._tape.name)
        self._tape.forget(min(place.at, self._at))

    def close(self) -> None:
        """Close the files."""
        self._tape.close()

    @abstractmethod
    def _cut(self, first: bytes, end: int, final: bool) -> Cut | None:
        """Cut the record that starts with this line; None if it is not complete yet."""

    def _next(self, end: int, final: bool) -> Slot | None:
        while line := self._tape.line(self._at, min(RECORD_LIMIT + 1, end - self._at)):
            complete = final or line.endswith(b"\n")
            if self._inside or (complete and not line.strip(b"\r\n")):
                self._advance(line)
                continue
            if len(line) > RECORD_LIMIT:
                return self._slot(Cut(line, None, "the line is too long"))
            cut = self._cut(line, end, final) if complete else None
            if cut is None:
                break
            return self._slot(cut)
        self._stuck = (end, final)
        return None

    def _slot(self, cut: Cut) -> Slot:
        line = self._line
        fault = None if cut.fault is None else f"line {line}: {cut.fault}"
        self._advance(cut.raw)
        place = Place(self._kind, self._at, self._line)
        return Slot(cut.record, fault, msgspec.json.encode(place), line)

    def _advance(self, raw: bytes) -> None:
        self._at += len(raw)
        self._line += raw.count(b"\n")
        self._inside = not raw.endswith(b"\n")

    def _check_length(self) -> tuple[int, bool]:
        extent = self._tape.extent(self._at)
        if extent[0] < self._at:
            raise DataError(
                f"{self._tape.name}: the file is shorter than what was already released from; the "
                "data owner must put the whole file back, records may only be added at its end"
            )
        return extent
