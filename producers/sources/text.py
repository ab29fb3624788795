"""Files of lines that are addressed by byte offsets, possibly while they grow.

The whole state is the offset: one in the middle of a line means that the rest of that line belongs
to a slot that was handed out already.
"""

from __future__ import annotations

import codecs
import hashlib
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import BinaryIO, NamedTuple

import msgspec
import numpy as np

from pipeline.errors import DataError
from pipeline.records.batch import Batch, Records
from pipeline.types import Integers
from producers.sources.base import Position, Slot, Slots, Source, decode_position

#: The bytes of one record; what is longer becomes an empty slot.
RECORD_LIMIT = 1 << 20
#: Bytes at a file's start, and before a position, that tell whether it is still the same file.
MARKED = 16_384
#: Seconds between two looks at a file that may grow.
POLL = 0.05
#: Seconds in which a file that was put in the place of a followed one must be as long.
GRACE = 5.0


class Tape(ABC):
    """The bytes of lines, in a file that is this client's own unless a subclass says otherwise.

    prefix: Of the kind of their positions; empty for a file that has a name.
    base: The offset of the first byte that is still there.
    follow: Whether there may come more.
    """

    name, prefix, base, follow = "standard input", "", 0, True
    _file: BinaryIO
    _at = 0

    @abstractmethod
    def extent(self, at: int) -> tuple[int, bool]:
        """Return the offset to which a reader at `at` may read, and if no record goes beyond."""

    def line(self, at: int, size: int) -> bytes:
        """Return up to `size` bytes of what is left of the line at `at`, with its newline."""
        if at != self._at:
            self._file.seek(at - self.base)
        line = self._file.readline(size)
        self._at = at + len(line)
        return line

    def block(self, at: int, size: int) -> bytes:
        """Return up to `size` bytes from `at` on."""
        return os.pread(self._file.fileno(), size, at - self.base)

    def columns(self) -> list[str] | None:
        """Return the header, where it is not the first line."""
        return None

    def mark(self, at: int) -> str:
        """Return a hash of the bytes before an offset; nothing where nobody else writes them."""
        del at
        return ""

    def version(self) -> object:
        """Return what changes whenever somebody else has written here."""
        return None

    def go_on(self, at: int) -> None:
        """Read on in what is in this one's place by now, if anything is.

        at: Where this one was read to; all of it, as far as it goes.
        """
        del at

    @abstractmethod
    def wait(self, seconds: float) -> None:
        """Wait a moment for more."""

    def forget(self, at: int) -> None:
        """Let go of what lies before an offset, if it is this client's to remove."""
        del at

    @abstractmethod
    def close(self) -> None:
        """Close the file."""


class File(Tape):
    """A data owner's file; while it is followed, another one may take its place."""

    def __init__(self, path: Path, follow: bool) -> None:
        self.name, self._place = path.name, path
        self.follow = follow
        self._replaced: float | None = None
        self._open()

    def _open(self) -> None:
        path = self._place
        try:
            self._file = path.open("rb")
        except OSError as error:
            raise DataError(
                f"{path.name}: cannot be opened ({error.strerror}); the data owner must name a "
                "file that this process may read"
            ) from None
        self._at = 0

    def extent(self, at: int) -> tuple[int, bool]:
        del at
        return os.fstat(self._file.fileno()).st_size, not self.follow

    def mark(self, at: int) -> str:
        """Return a hash of the first and the last bytes before an offset."""
        file, digest = self._file.fileno(), hashlib.blake2b(digest_size=16)
        for start in (0, max(0, at - MARKED)):
            digest.update(os.pread(file, min(MARKED, at - start), start))
        return digest.hexdigest()

    def version(self) -> object:
        found = os.fstat(self._file.fileno())
        return found.st_size, found.st_mtime_ns

    def go_on(self, at: int) -> None:
        """As `Tape.go_on`; DataError if the other file does not begin as this one did."""
        try:
            there = self._place.stat()
        except OSError:
            # between two steps of whoever renames it
            return
        if os.path.samestat(there, os.fstat(self._file.fileno())):
            self._replaced = None
            return
        now = time.monotonic()
        self._replaced = self._replaced or now
        if there.st_size < at and now - self._replaced < GRACE:
            return
        before, old = self.mark(at), self._file
        self._open()
        if there.st_size < at or self.mark(at) != before:
            old.close()
            raise DataError(
                f"{self.name}: another file was put in its place, which does not begin with the "
                "records that were read; the old one was read to its end. The data owner must put "
                "a file there that begins with all of its records; or start this client with the "
                "old file, where it is now, and the same --source-name, and give the new one a "
                "client of its own"
            )
        old.close()
        self._replaced = None

    def wait(self, seconds: float) -> None:
        time.sleep(min(seconds, POLL))

    def close(self) -> None:
        self._file.close()


class Cut(NamedTuple):
    """One record cut from a tape: its bytes, and the record or its fault."""

    raw: bytes
    record: Mapping[str, object] | None
    fault: str | None


#: Bytes that are split into lines together, and fewer that are read line by line.
BLOCK, FEW = 1 << 19, 4096
NEWLINE, _RETURN = 10, 13


class Lines:
    """Whole lines of a tape, found together.

    raw: Their bytes, and perhaps some more.
    at, line: Offset and number of the first.
    odd: The bytes that make a line one that has to be cut by itself; a CR at its end does not.
    longest: So many bytes do not.

    odd: Of each line whether it is one, shape (n,).
    """

    def __init__(self, raw: bytes, at: int, line: int, odd: bytes, longest: int) -> None:
        data = np.frombuffer(raw, dtype=np.uint8)
        ends = np.flatnonzero(data == NEWLINE) + 1
        self._raw, self._data, self._at, self._line = raw, data, at, line
        self._returns = _RETURN in odd
        #: Offsets behind each line, behind that of the first.
        self._bounds = np.append(0, ends)
        self.odd = np.diff(self._bounds) > longest
        for byte in odd:
            if byte not in raw:
                continue
            places = np.flatnonzero(data == byte)
            if byte == _RETURN:
                places = places[data[np.minimum(places + 1, len(data) - 1)] != NEWLINE]
            lines = np.searchsorted(ends, places, side="right")
            self.odd[lines[lines < len(ends)]] = True

    def here(self, at: int) -> int | None:
        """Return the number of the line that begins at an offset; None if none of them does."""
        number = int(np.searchsorted(self._bounds, at - self._at))
        there = number < len(self.odd) and self._bounds[number] == at - self._at
        return number if there else None

    def some(self, at: int, most: int, *, blanks: bool) -> Some:
        """Return the lines from an offset on, at most so many.

        blanks: Whether those without anything in them are among them.
        """
        first = int(np.searchsorted(self._bounds, at - self._at))
        last = min(len(self.odd), first + most)
        text = self._raw[self._bounds[first] : self._bounds[last]]
        # where a CR makes a line odd, those at ends are no part of it; else it is white space
        if self._returns and b"\r" in text:
            text = text.replace(b"\r\n", b"\n")
        lines = text.split(b"\n")[:-1]
        bounds, numbers = self._bounds[first : last + 1] + self._at, np.arange(first, last)
        starts, ends, odd = bounds[:-1], bounds[1:], self.odd[first:last]
        if not blanks:
            heads = self._data[self._bounds[first:last]]
            short = np.flatnonzero((heads == NEWLINE) | (heads == _RETURN)).tolist()
            if blank := [at for at in short if not lines[at].strip(b"\r")]:
                lines = [line for line in lines if line.strip(b"\r")]
                starts, ends, numbers, odd = (
                    np.delete(each, blank) for each in (starts, ends, numbers, odd)
                )
        return Some(
            lines, starts, ends, numbers + self._line,
            np.flatnonzero(odd).tolist(), (int(bounds[-1]), self._line + last),
        )  # fmt: skip


class Some(NamedTuple):
    """Lines, one after the other.

    lines: Without their ends, but with a CR where that makes no line odd.
    starts, ends, numbers: Offsets where they begin, and behind them; and their numbers.
    odd: The places of those that have to be cut by themselves.
    behind: Offset and number behind the last, and behind blank lines that are left out.
    """

    lines: list[bytes]
    starts: Integers
    ends: Integers
    numbers: Integers
    odd: list[int]
    behind: tuple[int, int]


class RecordFile(Source):
    """The slots of a tape; a subclass cuts and parses one record, and many plain lines at once.

    tape: Where the bytes come from.
    position: Behind which slot to resume; None is the start.
    start: Offset and line number of the first record on the tape.
    """

    form = ""
    #: As `Lines` takes it.
    odd, longest = b"", RECORD_LIMIT
    #: Whether a line without anything in it is a record, and not left out.
    blanks = False
    #: Lines that are read together, at most.
    most = BLOCK

    def __init__(self, tape: Tape, position: bytes | None, start: tuple[int, int]) -> None:
        self._tape = tape
        self._kind = tape.prefix + self.form
        # moving the folder makes no new source
        self.identity = self._kind if tape.prefix else f"{self.form}:{tape.name}"
        self._at, self._line = start
        if position is not None:
            found = decode_position(position, self._kind, tape.name)
            if found.at < self._at:
                raise DataError(
                    f"{tape.name}: the stored position lies before the first record that is still "
                    "there; the data owner must name the source this client has read from before"
                )
            if found.mark and found.mark != tape.mark(found.at):
                raise _rewritten(tape.name)
            self._at, self._line = found.at, found.line
        elif tape.base:
            raise DataError(
                f"{tape.name}: its first records were released from and forgotten, but this client "
                "has no position in it; the data owner must bring the client's own database back, "
                "or remove the spool as well"
            )
        self._check_length()
        #: The last position that was marked, with its mark and what the file was then.
        self._marked = (self._at, tape.mark(self._at), tape.version())
        self._inside = self._at > start[0] and tape.line(self._at - 1, 1) != b"\n"
        self._stuck: tuple[int, bool] | None = None
        self._block = Lines(b"", self._at, self._line, b"", 0)

    @property
    def ended(self) -> bool:
        end, final = self._tape.extent(self._at)
        return final and self._at >= end

    @property
    def progress(self) -> float | None:
        """As `Source.progress`, of bytes."""
        if self._tape.follow:
            return None
        end, _ = self._tape.extent(self._at)
        return min(self._at / end, 1.0) if end else 1.0

    def read(self, limit: int, timeout: float) -> Sequence[Slot]:
        deadline = time.monotonic() + timeout
        while True:
            extent = self._check_length()
            # a record that was not complete is looked at again only once there is more of it
            if extent != self._stuck and (slots := self._some(limit, *extent)):
                return slots
            if self._tape.extent(self._at) != extent:
                continue
            if extent[1] and self._at >= extent[0]:
                return []
            if self._tape.follow:
                self._tape.go_on(self._at)
            left = deadline - time.monotonic()
            self._tape.wait(max(left, 0.0))
            if left <= 0:
                return []

    def _some(self, limit: int, end: int, final: bool) -> Sequence[Slot]:
        """Return the next slots: of lines that are found together, or of others one by one."""
        at = -1
        while at != self._at and self._here(end) is not None:
            at = self._at
            if together := self._together(limit, end, final):
                return together
        slots = list[Slot]()
        while len(slots) < limit and (slot := self._next(end, final)):
            slots.append(slot)
            if self._here(end) is not None:
                break
        return slots

    def _here(self, end: int) -> int | None:
        """Return which of the lines found together is next; None if it is to be read by itself."""
        if self._inside or not self._at:
            return None
        number = self._block.here(self._at)
        if number is None and end - self._at >= FEW:
            raw = self._tape.block(self._at, min(BLOCK, end - self._at))
            self._block = Lines(raw, self._at, self._line, self.odd, self.longest)
            number = self._block.here(self._at)
        return number

    def _together(self, limit: int, end: int, final: bool) -> Slots:
        """Return the slots of lines found together; those beside an odd one hardly take longer.

        There are none if the first is not complete.
        """
        found = self._block.some(self._at, min(limit, self.most), blanks=self.blanks)
        lines, odd = list[bytes](), dict[int, Slot]()
        # offsets behind lines, and their numbers
        places, done = list[Integers](), 0

        def take(part: slice) -> None:
            lines.extend(found.lines[part])
            places.append(np.stack([found.ends[part], found.numbers[part]]))

        for place in found.odd:
            # a record may have gone on in that line
            if place < done:
                continue
            take(slice(done, place))
            self._at, self._line = int(found.starts[place]), int(found.numbers[place])
            slot = self._next(end, final)
            if slot is None:
                break
            odd[len(lines)] = slot
            lines.append(b"")
            places.append(np.array([[self._at], [slot.line]]))
            done = int(np.searchsorted(found.starts, self._at))
        else:
            take(slice(done, None))
            self._at, self._line = max((self._at, self._line), found.behind)
        kind, (ends, numbers) = self._kind, np.concatenate(places, axis=1)

        def place_of(at: int) -> tuple[bytes, int]:
            if at in odd:
                return odd[at].position, odd[at].line
            line = int(numbers[at])
            return msgspec.json.encode(Position(kind, int(ends[at]), line + 1)), line

        return Slots(self._parsed(lines, odd) if lines else Records([]), place_of)

    def anchored(self, position: bytes) -> bytes:
        """As `Source.anchored`; DataError if it was rewritten since the last one was marked."""
        found = decode_position(position, self._kind, self._tape.name)
        at, mark, version = self._marked
        now = self._tape.version()
        if now != version and self._tape.mark(at) != mark:
            raise _rewritten(self._tape.name)
        # a change that comes between is seen at the next one
        self._marked = (found.at, self._tape.mark(found.at), now)
        return msgspec.json.encode(msgspec.structs.replace(found, mark=self._marked[1]))

    def forget(self, position: bytes) -> None:
        found = decode_position(position, self._kind, self._tape.name)
        self._tape.forget(min(found.at, self._at))

    def close(self) -> None:
        """Close the files."""
        self._tape.close()

    @abstractmethod
    def _cut(self, first: bytes, end: int, final: bool) -> Cut | None:
        """Cut the record that starts with this line; None if it is not complete yet."""

    @abstractmethod
    def _parsed(self, lines: list[bytes], odd: Mapping[int, Slot]) -> Batch:
        """Return the records of plain lines, which are without their ends.

        odd: What stands in some places, where the line is empty.
        """

    def _next(self, end: int, final: bool) -> Slot | None:
        while line := self._tape.line(self._at, min(RECORD_LIMIT + 1, end - self._at)):
            complete = final or line.endswith(b"\n")
            if self._inside or (complete and not (self.blanks or line.strip(b"\r\n"))):
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
        found = Position(self._kind, self._at, self._line)
        return Slot(cut.record, fault, msgspec.json.encode(found), line)

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


def _rewritten(name: str) -> DataError:
    return DataError(
        f"{name}: what lies before the stored position is not what was released "
        "from; records may only be added at a file's end. The data owner must put the "
        "old file back; what was released from it cannot be released again"
    )


#: How files begin that are no text, and what they are.
_PACKED = {
    b"\x1f\x8b": "gzip", b"PK\x03\x04": "ZIP or a workbook of Excel", b"\x28\xb5\x2f\xfd": "zstd",
    b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"PAR1": "Parquet", b"ARROW1": "Arrow",
    codecs.BOM_UTF16_LE: "UTF-16", codecs.BOM_UTF16_BE: "UTF-16",
}  # fmt: skip
OLD_ENDS = "line ends of CR alone; they must be LF or CR LF"


def check_start(line: bytes, name: str) -> None:
    """Refuse what is no text of lines, by its first line; DataError, saying what it is."""
    if packed := next((what for start, what in _PACKED.items() if line.startswith(start)), None):
        raise DataError(
            f"{name}: it is {packed}, and not text in UTF-8; the data owner must unpack it, "
            "save it as such, or give a Parquet or Arrow file that ending"
        )
    if b"\r" in line.strip():
        raise DataError(f"{name}: it has {OLD_ENDS}; the data owner must save it anew")
