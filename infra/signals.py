"""SIGINT and SIGTERM as a wish for an orderly end."""

from __future__ import annotations

import signal
from types import FrameType


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
