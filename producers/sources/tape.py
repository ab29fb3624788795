"""A file of lines that is addressed by absolute byte offsets, possibly while it grows."""

from __future__ import annotations

import hashlib
import os
import time
from pathlib import Path

from pipeline.errors import DataError

#: The bytes of one record; what is longer becomes an empty slot.
RECORD_LIMIT = 1 << 20
#: Bytes at a file's start, and before a position, that tell whether it is still the same file.
MARKED = 16_384
#: Seconds between two looks at a file that may grow.
POLL = 0.05


class Tape:
    """The bytes of a data owner's file."""

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
