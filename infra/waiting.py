"""Ends and waits: signals ask for an orderly end, and no command is silent about a long wait."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Callable
from types import FrameType

#: Seconds after which a wait is worth a line, and between two lines of one wait.
FIRST, AGAIN = 5.0, 60.0
_NUMBER = re.compile(r"\d+")


class Waiting:
    """What a command waits for.

    first: Seconds before a wait is said.
    clock: Seconds since 1970.
    """

    def __init__(self, first: float = FIRST, clock: Callable[[], float] = time.time) -> None:
        self._first, self._clock = first, clock
        self._kind, self._since, self._next = "", 0.0, 0.0

    def hint(self, what: str) -> str:
        """Return what to say now, mostly nothing.

        what: What is waited for, such as "Kafka"; empty: nothing. Numbers in it may change.
        """
        now, kind = self._clock(), _NUMBER.sub("", what)
        if kind != self._kind:
            self._kind, self._since, self._next = kind, now, now + self._first
        if not what or now < self._next:
            return ""
        self._next = now + AGAIN
        since = time.strftime("%H:%M:%S", time.localtime(self._since))
        # only a worker publishes models
        who = ": `veilstream worker` must be running on this study" if "model" in what else ""
        return f"waiting for {what} since {since}{who}"


class Minutes:
    """Whether it is time for another line of how far a command is."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._next = clock, clock() + AGAIN

    def due(self) -> bool:
        """Whether the last line was a minute ago."""
        now = self._clock()
        if now < self._next:
            return False
        self._next = now + AGAIN
        return True


class Stopping:
    """From now on, SIGINT and SIGTERM of this process ask for an orderly end.

    asked: Whether one of them has come.
    """

    def __init__(self) -> None:
        self.asked = False
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._ask)

    def _ask(self, _number: int, _frame: FrameType | None) -> None:
        self.asked = True
