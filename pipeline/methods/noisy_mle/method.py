"""Noised estimates of many sites, as the registry knows them.

What the file of a new study of this kind says under [estimator].
"""

from __future__ import annotations

from collections.abc import Container
from typing import Any, TypeAlias

from pipeline.methods.base import Method, Plan, Proposal, Spec
from pipeline.methods.noisy_copies import plan as copies_facts
from pipeline.methods.noisy_copies.client import CopiesTask
from pipeline.methods.noisy_mle import plan as facts
from pipeline.methods.noisy_mle import spec as keys
from pipeline.methods.noisy_mle.client import SiteTask, chosen_release
from pipeline.methods.noisy_mle.report import SiteReport
from pipeline.methods.noisy_mle.server import SiteServer
from pipeline.study.growth import growth_of
from pipeline.study.model import Study

LINES = """\
kind = "noisy-mle"            # each client is a site, which releases whole windows at once
loss = "logistic"             # or "linear", of a number: see [data]
# What a site sends. "auto" chooses by public numbers, and `study check` says what and why:
# "score", noised sums at the newest model, or "sufficient" (linear), noised sums that need none.
# "copies" are noisy copies of a site's own fit, for large windows (docs/methods/noisy-mle.md).
# sites: about how many there are, public. largest_share: the most that one may weigh, of all.
method = { release = "auto", sites = 10, largest_share = 0.5 }
# ridge: a number, part of what is estimated: slopes are drawn to 0 by it
norm_bound = "typical"        # longer records than 99 % of usual ones weigh less; or a number
# noise_scale = 2             # of linear: the residuals' standard deviation; "copies" need it
level = 0.95
# Let old releases fade, by half after so many records of all sites (or "seconds"):
# forgetting = { half_life = 50000, of = "records" }
"""


AnyTask: TypeAlias = SiteTask | CopiesTask


class NoisyMle(Method[AnyTask]):
    """Noised sums or fits of each window of a site, weighed at the worker."""

    spec = Spec(
        kind="noisy-mle",
        title="noised scores of many sites, far ones weighed down",
        losses=keys.LOSSES,
        table="method",
        server_keys={
            "estimator.method.largest_share": "how much one site may weigh",
            "estimator.method.sites": "what `study check` reckons with",
        },
        template={"estimator": LINES},
        needs_noise=(
            'kind = "noisy-mle" weighs sites by their noise, so that it has no stream without '
            "noise; see the exact fit (`veilstream fit --without-privacy`), or set estimator.kind "
            '= "renewable"'
        ),
    )
    report = SiteReport()

    def resolve(self, study: Study, given: Container[str]) -> Study:
        """As `Method.resolve`."""
        del given
        keys.check(study)
        return study

    def grows(self, study: Study) -> bool:
        """As `Method.grows`: sums do, fits of a window do not."""
        return chosen_release(study) != "copies"

    def enter(self, meaning: dict[str, Any], study: Study) -> None:
        """As `Method.enter`: which release it is, not how the worker weighs it."""
        meaning["estimator"].pop("method", None)
        meaning["release"] = release = chosen_release(study)
        grown = growth_of(study, grows=self.grows(study))
        if grown.divisor:
            meaning["growth"] = [grown.divisor, grown.most]
        # without noise none are drawn, and no such study has a stream
        if release == "copies" and study.noised:
            said = keys.spec_of(study)
            task = CopiesTask(study)
            # what is derived, too: whoever derives another noise draws other releases, at another
            # cost. To six digits, which all machines find alike
            drawn = {"psi": f"{task.scale:.6g}", "ridge": f"{task.ridge:.6g}"}
            meaning["copies"] = {key: getattr(said, key) for key in keys.OF_COPIES} | {
                "drawn": drawn
            }

    def task(self, study: Study, revision: str = "", level: str | None = None) -> AnyTask:
        """As `Method.task`."""
        kind = CopiesTask if chosen_release(study) == "copies" else SiteTask
        return kind(study, revision, level)

    def server(self, task: AnyTask) -> SiteServer:
        """As `Method.server`."""
        return SiteServer(task)

    def plan(self, task: AnyTask, records: int, clients: int) -> Plan:
        """As `Method.plan`: its study says how many sites there are."""
        del clients
        if isinstance(task, CopiesTask):
            return copies_facts.plan(task, records)
        return facts.plan(task, records)

    def propose(self, study: Study, records: int, clients: int) -> Proposal:
        """As `Method.propose`."""
        found = facts.propose(study, records, clients)
        return copies_facts.fitting(study, found) if chosen_release(study) == "copies" else found


METHOD = NoisyMle()
