"""What all files of records share: a tape is cut into slots.

The whole state is the offset: one in the middle of a line means that the rest of that line belongs
to a slot that was handed out already.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from pipeline.errors import DataError
from producers.sources.base import Position, Slot, decode_position
from producers.sources.tape import RECORD_LIMIT, Tape


class Cut(NamedTuple):
    """One record cut from a tape: its bytes, and the record or its fault."""

    raw: bytes
    record: Mapping[str, object] | None
    fault: str | None


class RecordFile(ABC):
    """The slots of a tape; a subclass cuts and parses one record.

    tape: Where the bytes come from.
    position: Behind which slot to resume; None is the start.
    start: Offset and line number of the first record on the tape.
    """

    form = ""
    #: Whether a line without anything in it is a record, and not left out.
    blanks = False

    def __init__(self, tape: Tape, position: bytes | None, start: tuple[int, int]) -> None:
        self._tape = tape
        self._kind = tape.prefix + self.form
        self._at, self._line = start
        if position is not None:
            found = decode_position(position, self._kind, tape.name)
            if found.at < self._at:
                raise DataError(
                    f"{tape.name}: the stored position lies before the first record that is still "
                    "there; the data owner must name the source this client has read from before"
                )
            if found.mark and found.mark != tape.mark(found.at):
                raise DataError(
                    f"{tape.name}: what lies before the stored position is not what was released "
                    "from; records may only be added at a file's end. The data owner must put the "
                    "old file back; what was released from it cannot be released again"
                )
            self._at, self._line = found.at, found.line
        elif tape.base:
            raise DataError(
                f"{tape.name}: its first records were released from and forgotten, but this client "
                "has no position in it; the data owner must bring the client's own database back, "
                "or remove the spool as well"
            )
        self._check_length()
        self._inside = self._at > start[0] and tape.line(self._at - 1, 1) != b"\n"
        self._stuck: tuple[int, bool] | None = None

    repeats = True

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
        found = decode_position(position, self._kind, self._tape.name)
        return msgspec.json.encode(msgspec.structs.replace(found, mark=self._tape.mark(found.at)))

    def forget(self, position: bytes) -> None:
        """Release storage that only slots up to this committed position needed."""
        found = decode_position(position, self._kind, self._tape.name)
        self._tape.forget(min(found.at, self._at))

    def close(self) -> None:
        """Close the files."""
        self._tape.close()

    @abstractmethod
    def _cut(self, first: bytes, end: int, final: bool) -> Cut | None:
        """Cut the record that starts with this line; None if it is not complete yet."""

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
