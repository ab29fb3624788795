"""Noised estimates of many sites, as the registry knows them."""

from __future__ import annotations

from typing import Any, ClassVar

from pipeline.methods.base import Method
from pipeline.methods.facts import Design, Missed, Outlook, Sizes
from pipeline.methods.noisy_mle import facts, spec
from pipeline.methods.noisy_mle.server import SiteServer
from pipeline.methods.noisy_mle.task import SiteTask, chosen_release
from pipeline.study import Study


class NoisyMle(Method[SiteTask]):
    """As `methods.base.Method`."""

    title = "noised scores of many sites, far ones weighed down"
    tables = ("method",)
    losses = spec.LOSSES
    server_side: ClassVar = {
        "estimator.method.largest_share": "how much one site may weigh",
        "estimator.method.sites": "what `study check` reckons with",
    }
    client_side: ClassVar = {
        "estimator.method.release": "clients took other sums of their records",
    }

    def check(self, study: Study) -> None:
        """As `Method.check`."""
        spec.check(study)

    def enter(self, meaning: dict[str, Any], study: Study) -> None:
        """As `Method.enter`: which release it is, not how the worker weighs it."""
        meaning["estimator"].pop("method", None)
        meaning["release"] = chosen_release(study)

    def task(self, study: Study, level: str | None = None) -> SiteTask:
        """As `Method.task`."""
        return SiteTask(study, level)

    def server(self, task: SiteTask) -> SiteServer:
        """As `Method.server`."""
        return SiteServer(task)

    def facts(self, task: SiteTask) -> dict[str, object]:
        """As `Method.facts`."""
        return facts.facts(task)

    def warnings(self, task: SiteTask) -> tuple[str, ...]:
        """As `Method.warnings`."""
        return facts.warnings(task)

    def sizes(self, task: SiteTask, records: int) -> Sizes:
        """As `Method.sizes`."""
        return facts.sizes(task, records)

    def outlook(self, task: SiteTask, records: int) -> Outlook:
        """As `Method.outlook`."""
        return facts.outlook(task, records)

    def design(self, study: Study, records: int, clients: int) -> Design:
        """As `Method.design`."""
        return facts.design(study, records, clients)

    def better(self, task: SiteTask, missed: Missed) -> tuple[str, ...]:
        """As `Method.better`."""
        del task, missed
        return ("larger windows (window.records), and more sites",)


METHOD = NoisyMle()
