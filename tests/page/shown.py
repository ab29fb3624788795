"""Estimates as a page sees them, without a worker."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field

import msgspec

from pipeline.messages.envelope import rfc3339
from pipeline.messages.estimate import (
    Coefficient,
    Diagnostics,
    EstimateMessage,
    Position,
    ProgressMessage,
)
from pipeline.methods import task_of
from pipeline.study_file.load import parse_study
from tests.stage import study_text

TASK = task_of(parse_study(study_text("shown", partitions=1)))
NO_FAULT = Diagnostics(None, 0, False, None, 0.4, None, 0, 0, 0, 0, 0, 0.3)


@dataclass
class Stream:
    """A stream of estimates that settle down.

    size: How many coefficients.
    at: When the next one is published, seconds since 1970.
    """

    size: int = 3
    at: float = 1_700_000_000.0
    releases: int = 0
    chance: random.Random = field(default_factory=lambda: random.Random(1))
    newest: EstimateMessage | None = None

    def next(self, seconds: float = 0.5, **changes: object) -> EstimateMessage:
        """Return the next one, some seconds later."""
        self.at += seconds
        self.releases += 4
        width = 3 / math.sqrt(self.releases)
        ready = self.releases > 40
        rows = []
        for number in range(self.size):
            value = math.sin(number) + self.chance.gauss(0, width / 3)
            interval = (value - width, value + width) if ready else None
            error = width / 1.96 if ready else None
            rows.append(
                Coefficient(f"sensor_{number}", value, error, interval, error, error, kept=None)
            )
        message = EstimateMessage(
            study="shown", study_revision="r", estimator="renewable", loss="logistic",
            scaling="unit", coefficients=rows, level=0.95, interval_method="sandwich",
            intervals={}, records=20 * self.releases, releases=self.releases, clients=2,
            class_weights={}, dispersion=None, privacy=TASK.budget.guarantee,
            status="ready" if ready else "warming", reason="" if ready else "too few releases",
            diagnostics=NO_FAULT, state_version=self.releases, model_version=3,
            watermark=[Position("t", 0, self.releases)], event_time=None,
            published_at=rfc3339(self.at),
            progress=ProgressMessage(min(1.0, self.releases / 40), None if ready else 100),
        )  # fmt: skip
        self.newest = msgspec.structs.replace(message, **changes)
        return self.newest
