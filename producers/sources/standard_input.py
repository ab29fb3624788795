"""What another program pipes in: how it is opened and read."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import BinaryIO, cast

from pipeline.errors import DataError

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
