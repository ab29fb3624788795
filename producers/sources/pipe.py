"""Standard input read once: nothing is kept but the record that is being read."""

from __future__ import annotations

from typing import BinaryIO

from producers.sources.standard_input import CHUNK, reader_of, unreadable
from producers.sources.tape import RECORD_LIMIT, Tape


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
