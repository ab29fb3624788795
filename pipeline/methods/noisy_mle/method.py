"""Noised estimates of many sites, as the registry knows them."""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Any

import numpy as np

from pipeline.methods.facts import Design, Missed, Outlook, Sizes
from pipeline.methods.noisy_mle import facts, spec
from pipeline.methods.noisy_mle.server import SiteServer
from pipeline.methods.noisy_mle.task import SiteTask, chosen_release
from pipeline.release.task import Task
from pipeline.study import Study


class NoisyMle:
    """As `methods.base.Method`."""

    title = "noised scores of many sites, far ones weighed down"
    tables = ("method",)
    losses = spec.LOSSES
    levels = False
    server_side: Mapping[str, str] = {
        "estimator.method.largest_share": "how much one site may weigh",
        "estimator.method.sites": "what `study check` reckons with",
    }
    client_side: Mapping[str, str] = {
        "estimator.method.release": "clients took other sums of their records",
    }

    def check(self, study: Study) -> None:
        """As `Method.check`."""
        spec.check(study)

    def complete(self, study: Study, given: Container[str]) -> Study:
        """As `Method.complete`: there are no such keys."""
        del given
        return study

    def enter(self, meaning: dict[str, Any], study: Study) -> None:
        """As `Method.enter`: which release it is, not how the worker weighs it."""
        meaning["estimator"].pop("method", None)
        meaning["release"] = chosen_release(study)

    def intervals(self, study: Study) -> tuple[str, ...]:
        """As `Method.intervals`."""
        del study
        return ()

    def task(self, study: Study, level: str | None = None) -> SiteTask:
        """As `Method.task`."""
        return SiteTask(study, level)

    def server(self, task: Task) -> SiteServer:
        """As `Method.server`."""
        return SiteServer(own(task))

    def facts(self, task: Task) -> dict[str, object]:
        """As `Method.facts`."""
        return facts.facts(own(task))

    def warnings(self, task: Task) -> tuple[str, ...]:
        """As `Method.warnings`."""
        return facts.warnings(own(task))

    def sizes(self, task: Task, records: int) -> Sizes:
        """As `Method.sizes`."""
        return facts.sizes(own(task), records)

    def outlook(self, task: Task, records: int) -> Outlook:
        """As `Method.outlook`."""
        return facts.outlook(own(task), records)

    def design(self, study: Study, records: int, clients: int) -> Design:
        """As `Method.design`."""
        return facts.design(study, records, clients)

    def better(self, task: Task, missed: Missed) -> tuple[str, ...]:
        """As `Method.better`."""
        del task, missed
        return ("larger windows (window.records), and more sites",)

    def whole_log(self, task: Task) -> str:
        """As `Method.whole_log`."""
        del task
        return ""

    def simulation(self, task: Task, rng: np.random.Generator) -> None:
        """As `Method.simulation`."""
        del task, rng


def own(task: Task) -> SiteTask:
    """Return a task as one of this method.

    Raises TypeError if it is another's.
    """
    if not isinstance(task, SiteTask):
        raise TypeError("a method serves tasks that it has made")
    return task


METHOD = NoisyMle()
