"""What a command that only computes says of itself, where it takes more than some seconds."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from infra.process import AGAIN, FIRST
from pipeline.cli.context import say
from pipeline.words import counted

#: What takes long in all that a study file means, whatever its data.
_WHY = (
    "The time grows steeply with the number of coefficients, because every noised curvature has a "
    "row and a column for each. Ctrl-C stops it; nothing is changed"
)


class Work:
    """How far a computation for a study is.

    size: Number of coefficients.
    what: What is computed, such as "a plan".
    """

    def __init__(self, what: str, size: int) -> None:
        self._what, self._size, self._begun = what, size, time.monotonic()
        self._done = self._total = 0

    def report(self, done: int, total: int) -> None:
        """Take in that `done` of `total` parts, about equally long ones, are computed."""
        self._done, self._total = done, total

    def said(self) -> str:
        """Return the line that says how far it is, and about how long the rest takes."""
        taken = time.monotonic() - self._begun
        line = f"computing {self._what} with {counted(self._size, 'coefficient')} for {taken:.0f} s"
        if self._done:
            left = taken * (self._total - self._done) / self._done
            line += f": {self._done} of {self._total} designs, about {max(left, 1):.0f} s left"
        return f"{line}. {_WHY}"


@contextmanager
def while_computing(said: Callable[[], str], first: float = FIRST) -> Iterator[None]:
    """Say on standard error that a computation goes on: after `first` seconds, then each minute."""
    ended = threading.Event()

    def tell() -> None:
        wait = first
        while not ended.wait(wait):
            say(said())
            wait = AGAIN

    teller = threading.Thread(target=tell, daemon=True)
    teller.start()
    try:
        yield
    finally:
        ended.set()
        teller.join()
