"""The demonstration on the sensors of the space shuttle: a classifier, scored on later records."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
from rich.console import Console

from pipeline.cli.context import say
from pipeline.cli.stage import Site
from pipeline.library.table import comparison
from pipeline.messages.estimate import EstimateMessage
from pipeline.methods import task_of
from pipeline.offline import OfflineRun
from pipeline.records.encode import Encoder, Row, stack
from pipeline.release.task import Task
from pipeline.study import without_privacy
from pipeline.types import Vector
from producers.sources import STREAMED, heldout, open_source

CLIENTS = 8


class Shuttle:
    """The Shuttle stream as the demonstration splits it.

    Parameters
    ----------
    task
        The study.
    clients
        Among how many clients the first 40,000 records are dealt, in turn.
    """

    seconds: float = 20.0
    ahead: float | None = None

    def __init__(self, task: Task, clients: int = CLIENTS) -> None:
        self._task, self._clients = task, clients
        self.sites: Sequence[Site] = [
            Site(f"site-{k}", f"shuttle:{k}/{clients}", len(range(k, STREAMED, clients)))
            for k in range(clients)
        ]

    def close(self, final: EstimateMessage, same: bool) -> dict[str, object]:
        """Score the rule on the held-out records, beside the same stream without privacy."""
        say("scoring on the held-out records, and streaming once more without privacy ...")
        plain = self.fit(task_of(without_privacy(self._task.study)))
        Console().print(comparison(final, plain))
        private, plainly = (self.score([c.value for c in m.coefficients]) for m in (final, plain))
        say(
            f"In words: on later records the private rule has a balanced accuracy of {private:.1%},"
            f" the rule without privacy {plainly:.1%}. The state was "
            f"{'' if same else 'NOT '}the same, bit by bit, after the crash. "
            "Read a coefficient as a finding only where it has an interval."
        )
        return {
            "balanced_accuracy": round(private, 4),
            "balanced_accuracy_without_privacy": round(plainly, 4),
            "scored_on": f"the {len(self._tail[1])} records behind the {STREAMED} streamed ones",
        }

    @cached_property
    def _tail(self) -> tuple[np.ndarray[tuple[int, int], np.dtype[np.float64]], Vector]:
        encoder = Encoder(self._task.study)
        return stack([encoder.encode(record) for record in heldout()], self._task.size - 1)[:2]

    def score(self, coefficients: Sequence[float]) -> float:
        """Return the balanced accuracy on the records behind the streamed ones."""
        features, responses = self._tail
        weights = np.asarray(coefficients)
        said = np.where(weights[0] + features @ weights[1:] >= 0, 1.0, -1.0)
        rates = [float(np.mean(said[responses == c] == c)) for c in (-1.0, 1.0)]
        return sum(rates) / 2

    def fit(self, task: Task) -> EstimateMessage:
        """Stream the same windows in the same order through `task`, in this process."""
        encoder = Encoder(task.study)
        sources = [open_source(site.source, None, folder=Path()) for site in self.sites]
        run = OfflineRun(task)
        while not all(source.ended for source in sources):
            for site, source in zip(self.sites, sources, strict=True):
                rows: list[Row] = [
                    encoder.encode(slot.record)
                    for slot in source.read(task.slots, 0.0)
                    if slot.record is not None
                ]
                run.add(site.name, rows)
        return run.estimate(0.0)[1]
