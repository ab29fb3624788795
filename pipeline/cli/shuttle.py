"""The demonstration on the sensors of the space shuttle: a classifier, scored on later records."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
from rich.console import Console

from pipeline.cli.context import say
from pipeline.cli.stage import Demonstration, Site, told_apart
from pipeline.library.comparing import comparison, counts
from pipeline.messages.estimate import EstimateMessage
from pipeline.prediction.scores import Confusion
from pipeline.records.encode import Encoder, Row, stack
from pipeline.release.task import Task
from pipeline.types import Vector
from producers.sources import STREAMED, heldout, open_source

CLIENTS = 8


class Shuttle(Demonstration):
    """The Shuttle stream as the demonstration splits it.

    clients: Among how many clients the first 40,000 records are dealt, in turn.
    """

    seconds = 20.0
    ahead = None

    def __init__(self, task: Task, clients: int = CLIENTS) -> None:
        super().__init__(task)
        self.sites = [
            Site(f"site-{k}", f"shuttle:{k}/{clients}", len(range(k, STREAMED, clients)))
            for k in range(clients)
        ]

    def close(self, final: EstimateMessage, same: bool) -> dict[str, object]:
        """Score the rule on the held-out records, beside the exact fit without privacy."""
        say("scoring on the held-out records, and fitting the streamed ones without privacy ...")
        exact = self.exact()
        Console().print(comparison(final, exact))
        private, plainly = (self.score([c.value for c in m.coefficients]) for m in (final, exact))
        said = told_apart(final, exact, "the exact fit", same)
        say(
            f"In words: on later records the private rule has a balanced accuracy of {private:.1%},"
            f" the exact fit without privacy {plainly:.1%}. {said}"
        )
        return {
            "balanced_accuracy": round(private, 4),
            "balanced_accuracy_without_privacy": round(plainly, 4),
            "scored_on": f"the {len(self._tail[1])} records behind the {STREAMED} streamed ones",
            "coefficients": len(exact.coefficients),
            **counts(final, exact),
        }

    @cached_property
    def _tail(self) -> tuple[np.ndarray[tuple[int, int], np.dtype[np.float64]], Vector]:
        encoder = Encoder(self._task.study)
        return stack([encoder.encode(record) for record in heldout()], self._task.size - 1)[:2]

    def score(self, coefficients: Sequence[float]) -> float:
        """Return the balanced accuracy on the records behind the streamed ones."""
        features, responses = self._tail
        weights, held = np.asarray(coefficients), Confusion()
        said = np.where(weights[0] + features @ weights[1:] >= 0, 1.0, -1.0)
        held.add_all(responses, said)
        return held.balanced_accuracy or 0.0

    def _slots(self) -> Iterator[tuple[str, Row | None]]:
        """Yield windows of the clients in turn."""
        encoder = Encoder(self._task.study)
        sources = [open_source(site.source, None, folder=Path()) for site in self.sites]
        while not all(source.ended for source in sources):
            for site, source in zip(self.sites, sources, strict=True):
                for slot in source.read(self._task.slots, 0.0):
                    if slot.record is not None:
                        yield site.name, encoder.encode(slot.record)
