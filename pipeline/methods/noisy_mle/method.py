"""Noised sums of many sites, as the registry knows them."""

from __future__ import annotations

from collections.abc import Container
from typing import Any

from pipeline.methods.base import Method, Spec
from pipeline.methods.noisy_mle import plan as facts
from pipeline.methods.noisy_mle.client import SiteTask, check, chosen_release
from pipeline.methods.noisy_mle.estimate import estimate
from pipeline.methods.sites.client import LOSSES, SERVER_KEYS
from pipeline.methods.sites.report import SiteReport
from pipeline.methods.sites.server import SiteServer
from pipeline.release.policy import growth_of
from pipeline.study.model import Study

LINES = """\
kind = "noisy-mle"            # each client is a site, which releases whole windows at once
loss = "logistic"             # or "linear", of a number: see [data]
# What a site sends. "auto" chooses by public numbers, and `study check` says what and why:
# "score", noised sums at the newest model, or "sufficient" (linear), noised sums that need none.
# sites: about how many there are, public. largest_share: the most that one may weigh, of all.
method = { release = "auto", sites = 10, largest_share = 0.5 }
# ridge: a number, part of what is estimated: slopes are drawn to 0 by it
norm_bound = "typical"        # longer records than 99 % of usual ones weigh less; or a number
# noise_scale = 2             # of linear: the residuals' standard deviation, where it is known
level = 0.95
# Let old releases fade, by half after so many records of all sites (or "seconds"):
# forgetting = { half_life = 50000, of = "records" }
"""


class NoisyMle(Method[SiteTask]):
    """Noised sums of each window of a site, weighed at the worker."""

    spec = Spec(
        kind="noisy-mle",
        title="noised scores of many sites, far ones weighed down",
        losses=LOSSES,
        table="method",
        server_keys=SERVER_KEYS,
        template={"estimator": LINES},
        needs_noise=(
            'kind = "noisy-mle" weighs sites by their noise, so that it has no stream without '
            "noise; see the exact fit (`veilstream fit --without-privacy`), or set estimator.kind "
            '= "renewable"'
        ),
    )
    report = SiteReport("curvature")

    def resolve(self, study: Study, given: Container[str]) -> Study:
        del given
        check(study)
        return study

    def grows(self, study: Study) -> bool:
        del study
        return True

    def enter(self, meaning: dict[str, Any], study: Study) -> None:
        """As `Method.enter`: which release it is, not how the worker weighs it."""
        meaning["estimator"].pop("method", None)
        meaning["release"] = chosen_release(study)
        grown = growth_of(study, grows=True)
        if grown.divisor:
            meaning["growth"] = [grown.divisor, grown.most]

    task = SiteTask

    def server(self, task: SiteTask) -> SiteServer:
        return SiteServer(task, estimate)

    plan = staticmethod(facts.plan)
    propose = staticmethod(facts.propose)


METHOD = NoisyMle()
