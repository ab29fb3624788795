"""What happened to a stream, as its estimates show it: recoveries, losses, another status."""

from __future__ import annotations

from collections import deque
from datetime import datetime
from typing import Literal, NamedTuple

from pipeline.messages.estimate import EstimateMessage
from pipeline.words import counted

#: Happenings that are kept.
KEPT = 60
#: A silence is shorter than this, or than so many of the study's rhythms.
SILENCE_SECONDS, RHYTHMS = 2.0, 4
#: Nor longer than what is usual: so many times what four of five of the last gaps stay within.
TIMES, USUAL, GAPS, FEWEST = 3, 0.8, 20, 5
Kind = Literal["status", "pause", "recovery", "rebuilt", "loss", "letters", "revision"]


class Happening(NamedTuple):
    """One of them; `at` in seconds since 1970, by the worker's clock."""

    at: float
    kind: Kind
    text: str


class Happenings:
    """Compares each estimate with the one before it.

    rhythm: Seconds after which a worker publishes, if there is anything new.
    """

    def __init__(self, rhythm: float) -> None:
        self._silence = max(SILENCE_SECONDS, RHYTHMS * rhythm)
        self._before: EstimateMessage | None = None
        self._gaps: deque[float] = deque(maxlen=GAPS)
        self.found: deque[Happening] = deque(maxlen=KEPT)

    def take(self, message: EstimateMessage) -> None:
        """Take the next estimate."""
        before, self._before = self._before, message
        at = _seconds(message)
        if before is None:
            self._tell(at, "status", f"{message.status}{_because(message)}")
            return
        if message.study_revision != before.study_revision:
            self._tell(at, "revision", "another revision of the study: a new stream begins")
            return
        self._positions(before, message, at)
        if message.status != before.status:
            self._tell(at, "status", f"{before.status} → {message.status}{_because(message)}")
        self._counts(before, message, at)

    def _positions(self, before: EstimateMessage, message: EstimateMessage, at: float) -> None:
        silent = at - _seconds(before)
        new = message.releases - before.releases
        if message.state_version < before.state_version:
            self._tell(
                at, "rebuilt",
                f"the log positions went back by {before.state_version - message.state_version:,}: "
                "the state is being made anew from the log",
            )  # fmt: skip
        elif message.state_version == before.state_version:
            lasted = f" after {silent:.1f} s" if silent >= 0.1 else ""
            self._tell(
                at, "recovery",
                f"a worker took over{lasted} at the same log positions: nothing was lost",
            )  # fmt: skip
        else:
            if silent > max(self._silence, TIMES * self._usual()):
                self._tell(
                    at, "pause",
                    f"no estimate for {silent:.1f} s, then {counted(new, 'release')} in one: "
                    "clients were silent, or a worker came back",
                )  # fmt: skip
            self._gaps.append(silent)

    def _usual(self) -> float:
        """Return the gap in seconds that is usual: long where clients send in bursts."""
        gaps = sorted(self._gaps)
        return gaps[int(USUAL * len(gaps))] if len(gaps) >= FEWEST else 0.0

    def _counts(self, before: EstimateMessage, message: EstimateMessage, at: float) -> None:
        was, now = before.diagnostics, message.diagnostics
        if now.missing != was.missing:
            self._tell(at, "loss", f"{counted(now.missing, 'release')} known to be missing")
        if now.dead_letters > was.dead_letters:
            if self.found and self.found[-1].kind == "letters":
                self.found.pop()
            self._tell(at, "letters", f"{counted(now.dead_letters, 'dead letter')} in all by now")
        if now.erased > was.erased:
            self._tell(at, "loss", f"{counted(now.erased, 'release')} of erased clients left out")

    def _tell(self, at: float, kind: Kind, text: str) -> None:
        self.found.append(Happening(at, kind, text))


def _seconds(message: EstimateMessage) -> float:
    return datetime.fromisoformat(message.published_at).timestamp()


def _because(message: EstimateMessage) -> str:
    return f": {message.reason}" if message.reason else ""
