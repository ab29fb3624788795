"""Noised estimates of many sites, as the registry knows them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, TypeAlias

from pipeline.methods.base import Method
from pipeline.methods.facts import Design, Missed, Outlook, Sizes
from pipeline.methods.noisy_mle import beginning, copies_facts, facts, spec, telling
from pipeline.methods.noisy_mle.copies_task import CopiesTask
from pipeline.methods.noisy_mle.server import SiteServer
from pipeline.methods.noisy_mle.task import SiteTask, chosen_release
from pipeline.study.growth import growth_of
from pipeline.study.model import Study

AnyTask: TypeAlias = SiteTask | CopiesTask


class NoisyMle(Method[AnyTask]):
    """As `methods.base.Method`."""

    title = "noised scores of many sites, far ones weighed down"
    tables = ("method",)
    losses = spec.LOSSES
    no_open = (
        'kind = "noisy-mle" weighs sites by their noise, so that it has no stream without noise; '
        "see the exact fit (`veilstream fit --without-privacy`), or set estimator.kind = "
        '"renewable"'
    )
    told = staticmethod(telling.told)
    of_clients = staticmethod(telling.of_clients)
    server_side: ClassVar = {
        "estimator.method.largest_share": "how much one site may weigh",
        "estimator.method.sites": "what `study check` reckons with",
    }
    client_side: ClassVar = {
        "estimator.method.release": "clients took other sums of their records",
        "estimator.method": "clients drew their copies so",
    }

    def beginning(self, clients: int) -> Mapping[str, str]:
        """As `Method.beginning`: how many sites there are, its design says."""
        del clients
        return {"estimator": beginning.LINES}

    def check(self, study: Study) -> None:
        """As `Method.check`."""
        spec.check(study)

    def grows(self, study: Study) -> bool:
        """As `Method.grows`: sums do, fits of a window do not."""
        return chosen_release(study) != "copies"

    def enter(self, meaning: dict[str, Any], study: Study) -> None:
        """As `Method.enter`: which release it is, not how the worker weighs it."""
        meaning["estimator"].pop("method", None)
        meaning["release"] = release = chosen_release(study)
        grown = growth_of(study.window, grows=self.grows(study))
        if grown.divisor:
            meaning["growth"] = [grown.divisor, grown.most]
        # without noise none are drawn, and no such study has a stream
        if release == "copies" and study.noised:
            said = spec.spec_of(study)
            task = CopiesTask(study)
            # what is derived, too: whoever derives another noise draws other releases, at another
            # cost. To six digits, which all machines find alike
            drawn = {"psi": f"{task.scale:.6g}", "ridge": f"{task.ridge:.6g}"}
            meaning["copies"] = {key: getattr(said, key) for key in spec.OF_COPIES} | {
                "drawn": drawn
            }

    def task(self, study: Study, revision: str = "", level: str | None = None) -> AnyTask:
        """As `Method.task`."""
        kind = CopiesTask if chosen_release(study) == "copies" else SiteTask
        return kind(study, revision, level)

    def server(self, task: AnyTask) -> SiteServer:
        """As `Method.server`."""
        return SiteServer(task)

    def facts(self, task: AnyTask, clients: int) -> dict[str, object]:
        """As `Method.facts`: its study names the clients."""
        del clients
        if isinstance(task, CopiesTask):
            return copies_facts.facts(task)
        return facts.facts(task)

    def warnings(self, task: AnyTask) -> tuple[str, ...]:
        """As `Method.warnings`."""
        if isinstance(task, CopiesTask):
            return copies_facts.warnings(task)
        return facts.warnings(task)

    def sizes(self, task: AnyTask, records: int, clients: int) -> Sizes:
        """As `Method.sizes`."""
        del clients
        if isinstance(task, CopiesTask):
            return copies_facts.sizes(task, records)
        return facts.sizes(task, records)

    def outlook(self, task: AnyTask, records: int, clients: int) -> Outlook:
        """As `Method.outlook`."""
        del clients
        if isinstance(task, CopiesTask):
            return copies_facts.outlook(task, records)
        return facts.outlook(task, records)

    def design(self, study: Study, records: int, clients: int) -> Design:
        """As `Method.design`."""
        found = facts.design(study, records, clients)
        return copies_facts.fitting(study, found) if chosen_release(study) == "copies" else found

    def better(self, task: AnyTask, missed: Missed) -> tuple[str, ...]:
        """As `Method.better`."""
        del task, missed
        return ("larger windows (window.records), and more sites",)


METHOD = NoisyMle()
