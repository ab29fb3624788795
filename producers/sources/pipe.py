"""Standard input read once: nothing is kept but the record that is being read."""

from __future__ import annotations

from collections.abc import Callable
from typing import BinaryIO, cast

from pipeline.errors import DataError
from producers.sources.base import RECORD_LIMIT, Tape

_CHUNK = 1 << 16


class Pipe(Tape):
    """A stream that cannot be read again as a tape; a reader must not go back.

    It waits for input as long as that takes, so records come as soon as they are there.

    Parameters
    ----------
    stream
        The input; read up to its first line.
    """

    def __init__(self, stream: BinaryIO) -> None:
        self.name = "standard input"
        self.follow = True  # how much there will be is not known
        # `read1` returns what is there, as `read` does for an unbuffered stream
        self._read = cast("Callable[[int], bytes]", getattr(stream, "read1", stream.read))
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
            chunk = self._read(_CHUNK)
        except (OSError, ValueError) as error:
            raise DataError(
                f"standard input: it cannot be read ({type(error).__name__}); the data owner must "
                "start the command with an open input"
            ) from None
        self._held += chunk
        self._ended = not chunk
