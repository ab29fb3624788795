"""Standard input: how it is opened and read, and read once, without keeping what was read."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import BinaryIO, cast

from pipeline.errors import DataError
from producers.sources.tape import RECORD_LIMIT, Tape

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
        self.name = "standard input"
        self.follow = True  # how much there will be is not known
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
