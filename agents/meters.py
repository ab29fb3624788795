"""What a worker counts and times as it goes; all else on /metrics is read when somebody asks."""

from __future__ import annotations

import time
from collections.abc import Iterable
from datetime import datetime

from prometheus_client import CollectorRegistry, Counter, Histogram

from pipeline.messages.envelope import DeadLetter

#: Seconds: of a commit to Redis, and from a release to the estimate that holds it.
COMMITS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)
DELAYS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 3600.0)


class Meters:
    """Meters of one worker, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.commits = Histogram(
            "veilstream_commit_seconds",
            "Time that Redis took to store a folded batch.",
            buckets=COMMITS,
            registry=self.registry,
        )
        self.delays = Histogram(
            "veilstream_release_to_estimate_seconds",
            "From the newest release in an estimate, by its client's clock, to its publication.",
            buckets=DELAYS,
            registry=self.registry,
        )
        self._letters = Counter(
            "veilstream_dead_letters_by_reason",
            "Records that this worker has set aside since it started, by reason.",
            ["reason"],
            registry=self.registry,
        )
        self._checks = Counter(
            "veilstream_verifications",
            "Comparisons with a second fold of the log since the worker started, by outcome.",
            ["outcome"],
            registry=self.registry,
        )
        for outcome in ("same", "different"):
            # one that begins with 1 has not increased
            self._checks.labels(outcome)

    def published(self, event_time: str | None) -> None:
        """Time an estimate that is out, whose newest release is of a time in RFC 3339."""
        if event_time is not None:
            came = datetime.fromisoformat(event_time).timestamp()
            self.delays.observe(max(0.0, time.time() - came))

    def letters(self, found: Iterable[DeadLetter]) -> None:
        """Count dead letters."""
        for letter in found:
            self._letters.labels(letter.fault.reason).inc()

    def verified(self, same: bool) -> None:
        """Count a comparison."""
        self._checks.labels("same" if same else "different").inc()
