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
    rhythm: Seconds between two models of the study, at most: to wait so long for one is normal.
    """

    def __init__(
        self, first: float = FIRST, clock: Callable[[], float] = time.time, rhythm: float = 0.0
    ) -> None:
        self._first, self._clock = first, clock
        self._first_of_model = max(first, min(AGAIN, 2 * rhythm))
        self._kind, self._since = ("", 0), 0.0
        #: When each was said last.
        self._said: dict[str, float] = {}

    def hint(self, what: str, done: int = 0) -> str:
        """Return what to say now, mostly nothing.

        what: What is waited for, such as "Kafka"; empty: nothing. Numbers in it may change.
        done: A count of what was done so far: where it has grown, a wait begins anew.
        """
        now, name = self._clock(), _NUMBER.sub("", what)
        if (name, done) != self._kind:
            self._kind, self._since = (name, done), now
        first = self._first_of_model if "model" in what else self._first
        if not what or now - self._since < first or now - self._said.get(name, -AGAIN) < AGAIN:
            return ""
        self._said[name] = now
        since = time.strftime("%H:%M:%S", time.localtime(self._since))
        # only a worker publishes models, and the first one may need more releases
        who = (
            ": `veilstream worker` must be running on this study; `veilstream watch` says what it "
            "lacks"
            if "model" in what
            else ""
        )
        return f"waiting for {what} since {since}{who}"


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
