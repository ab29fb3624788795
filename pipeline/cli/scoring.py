"""Balanced accuracy of a linear rule on the demonstration's held-out records."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import numpy as np

from pipeline.local.encode import Encoder, Row, stack
from pipeline.local.plan import Plan
from pipeline.messages.estimate import EstimateMessage
from pipeline.offline import OfflineRun
from pipeline.types import Vector
from producers.sources import open_source
from producers.sources.demo import heldout


class Shuttle:
    """The Shuttle stream as the demonstration splits it.

    Parameters
    ----------
    plan
        The study.
    clients
        Among how many clients the first 40,000 records are dealt, in turn.
    """

    def __init__(self, plan: Plan, clients: int) -> None:
        self._plan, self._clients = plan, clients

    @cached_property
    def _tail(self) -> tuple[np.ndarray[tuple[int, int], np.dtype[np.float64]], Vector]:
        encoder = Encoder(self._plan.study)
        return stack([encoder.encode(record) for record in heldout()], self._plan.size - 1)

    def score(self, coefficients: Sequence[float]) -> float:
        """Return the balanced accuracy on the records behind the streamed ones."""
        features, responses = self._tail
        weights = np.asarray(coefficients)
        said = np.where(weights[0] + features @ weights[1:] >= 0, 1.0, -1.0)
        rates = [float(np.mean(said[responses == c] == c)) for c in (-1.0, 1.0)]
        return sum(rates) / 2

    def fit(self, plan: Plan) -> EstimateMessage:
        """Stream the same windows in the same order through `plan`, in this process."""
        encoder = Encoder(plan.study)
        sources = [
            open_source(f"shuttle:{k}/{self._clients}", None, folder=Path())
            for k in range(self._clients)
        ]
        run = OfflineRun(plan)
        while not all(source.ended for source in sources):
            for k, source in enumerate(sources):
                rows: list[Row] = [
                    encoder.encode(slot.record)
                    for slot in source.read(plan.slots, 0.0)
                    if slot.record is not None
                ]
                run.add(f"site-{k}", rows)
        return run.estimate(0.0)[1]
