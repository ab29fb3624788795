"""What a page shows: estimates, clients, happenings and warnings, as JSON and under one lock."""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Callable
from dataclasses import asdict
from datetime import datetime
from threading import Lock
from typing import Any

from pipeline.library.forecast import Forecast
from pipeline.library.table import (
    information_line,
    progress_line,
    spread_line,
    state_of,
    target_line,
    title,
    unit_lines,
)
from pipeline.messages.estimate import EstimateMessage
from pipeline.methods import method_of
from pipeline.page.clients import Clients, budget_of
from pipeline.page.happenings import Happenings
from pipeline.page.history import History, Point
from pipeline.study.model import Study

#: Estimates that wait for a browser, at most: it skips older ones.
RECENT = 64
#: A difference of clocks that is said, in seconds.
SKEW_SECONDS = 60.0
#: By what estimates name a client.
DIGEST = re.compile(r"\b[0-9a-f]{32}\b")


class Watched:
    """Everything that was seen of one study.

    clock: Seconds since 1970; `steady`: seconds that never go back.
    """

    def __init__(
        self,
        study: Study,
        clock: Callable[[], float] = time.time,
        steady: Callable[[], float] = time.monotonic,
    ) -> None:
        self._study, self._clock, self._steady = study, clock, steady
        self._lock = Lock()
        self._history, self._clients = History(), Clients()
        self._happenings = Happenings(study.stream.publish.seconds)
        self._recent: deque[tuple[int, Point]] = deque(maxlen=RECENT)
        self._newest: EstimateMessage | None = None
        self._forecast, self._skew = Forecast(clock, steady), 0.0
        #: Who reads says here what keeps it from reading, by topic.
        self.warnings: dict[str, str] = {}
        #: How many estimates were taken.
        self.version = 0

    def estimate(self, message: EstimateMessage, *, live: bool) -> None:
        """Take the next estimate.

        live: It has just been published; an older one says nothing of clocks.
        """
        with self._lock:
            if self._newest is not None and message.published_at == self._newest.published_at:
                # a reader that connects anew begins with the newest
                return
            other = self._newest is not None and _names(self._newest) != _names(message)
            if other:
                self._history = History()
                self._recent.clear()
                self._forecast = Forecast(self._clock, self._steady)
            self._newest = message
            self._forecast.take(message, live=live)
            point = Point.of(message)
            if live:
                self._skew = self._clock() - point.at
            self._history.add(point)
            self._happenings.take(message)
            self._clients.folded(message)
            self.version += 1
            self._recent.append((self.version, point))

    def seen(self, change: Callable[[Clients], None]) -> None:
        """Let a reader of the log take note of records."""
        with self._lock:
            change(self._clients)

    def whole(self) -> dict[str, Any]:
        """Return all estimates that are kept, and what is said of the newest."""
        with self._lock:
            points = [asdict(point) for point in self._history.points]
            return {"version": self.version, "points": points, "now": self._now()}

    def since(self, version: int) -> dict[str, Any]:
        """Return the estimates after a version, and what is said of the newest."""
        with self._lock:
            points = [asdict(point) for number, point in self._recent if number > version]
            return {"version": self.version, "points": points, "now": self._now()}

    def around(self) -> dict[str, Any]:
        """Return what changes without an estimate: clients, happenings, warnings, ages."""
        with self._lock:
            age, newest = self._forecast.age, self._newest
            details = {} if newest is None else newest.details
            return {
                "clients": self._clients.table(method_of(self._study).report.clients(details)),
                "happenings": [happening._asdict() for happening in self._happenings.found],
                "warnings": self._warnings(),
                "age": None if age is None else round(age, 2),
                "missing": self._missing(),
                "clock": self._clock(),
            }

    def csv(self) -> str:
        """Return the kept estimates as CSV."""
        with self._lock:
            names = [] if self._newest is None else _names(self._newest)
            return "".join(self._history.csv(names))

    def _missing(self) -> str:
        """Return what is missing until all intervals are there, and when they come."""
        lines = [] if self._newest is None else [progress_line(self._newest)]
        return "; ".join(filter(None, [*lines, self._forecast.told()]))

    def _warnings(self) -> list[str]:
        told = list(self.warnings.values())
        if abs(self._skew) > SKEW_SECONDS:
            way = "behind" if self._skew > 0 else "ahead of"
            told.append(
                f"the worker's clock is {abs(self._skew) / 60:.0f} minutes {way} this machine's: "
                "times here are the worker's; whoever runs them must set the clocks"
            )
        return told

    def _named(self, line: str) -> str:
        """Return a line with the names of clients beside their digests."""
        if not DIGEST.search(line):
            return line
        names = self._clients.by_digest()
        return DIGEST.sub(
            lambda found: f"{names[found[0]]} ({found[0]})" if found[0] in names else found[0], line
        )

    def _now(self) -> dict[str, Any] | None:
        message = self._newest
        if message is None:
            return None
        at = datetime.fromisoformat(message.published_at).timestamp()
        told = [
            *unit_lines(message), target_line(message), spread_line(message, self._study),
            information_line(message),
            *map(self._named, method_of(self._study).report.lines(self._study, message.details)),
        ]  # fmt: skip
        return {
            "study": message.study,
            "title": title(message, self._study),
            "revision": message.study_revision,
            "names": _names(message),
            "level": message.level,
            "method": message.interval_method,
            "published": at,
            "event_time": message.event_time,
            "status": message.status,
            "state": state_of(message),
            "reason": message.reason,
            "progress": None if message.progress is None else message.progress.share,
            "missing": self._missing(),
            "records": message.records,
            "releases": message.releases,
            "clients": message.clients,
            "model": message.model_version,
            "privacy_share": message.diagnostics.privacy_share,
            "lost": message.diagnostics.missing,
            "duplicates": message.diagnostics.duplicates,
            "letters": message.diagnostics.dead_letters,
            "largest": message.diagnostics.largest_client_share,
            "errors": [row.standard_error for row in message.coefficients],
            "told": [line for line in told if line],
            "privacy": budget_of(message),
        }


def _names(message: EstimateMessage) -> list[str]:
    return [row.name for row in message.coefficients]
