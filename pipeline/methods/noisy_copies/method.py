"""Noisy copies of sites' own fits, as the registry knows them.

What the file of a new study of this kind says under [estimator].
"""

from __future__ import annotations

from collections.abc import Container
from typing import Any

from pipeline.methods.base import Method, Spec
from pipeline.methods.noisy_copies import plan as facts
from pipeline.methods.noisy_copies import spec as keys
from pipeline.methods.noisy_copies.client import CopiesTask
from pipeline.methods.noisy_copies.estimate import estimate
from pipeline.methods.sites.client import LOSSES, SERVER_KEYS
from pipeline.methods.sites.report import SiteReport
from pipeline.methods.sites.server import SiteServer
from pipeline.study.model import Study

LINES = """\
kind = "noisy-copies"         # each client is a site, which sends noisy copies of a window's fit
loss = "logistic"             # or "linear", of a number: see [data]
# copies: how many a release stands for. sites: about how many there are. Both are public.
# largest_share: the most that one site may weigh, of all.
method = { copies = 40, sites = 10, largest_share = 0.5 }
# ridge: a number, part of what is estimated: slopes are drawn to 0 by it
norm_bound = "typical"        # longer records than 99 % of usual ones weigh less; or a number
# noise_scale = 2             # of linear, which needs it: the residuals' standard deviation
level = 0.95
# Let old releases fade, by half after so many records of all sites (or "seconds"):
# forgetting = { half_life = 50000, of = "records" }
"""


class NoisyCopies(Method[CopiesTask]):
    """Mean and scatter of noisy copies of each window's fit, put together at the worker."""

    spec = Spec(
        kind="noisy-copies",
        title="noisy copies of sites' own fits, far ones weighed down",
        losses=LOSSES,
        table="method",
        server_keys=SERVER_KEYS,
        template={"estimator": LINES},
        needs_noise=(
            'kind = "noisy-copies" is nothing without noise, so that it has no stream without it; '
            "see the exact fit (`veilstream fit --without-privacy`), or set estimator.kind = "
            '"renewable"'
        ),
    )
    report = SiteReport("scatter")

    def resolve(self, study: Study, given: Container[str]) -> Study:
        del given
        keys.check(study)
        return study

    def enter(self, meaning: dict[str, Any], study: Study) -> None:
        """As `Method.enter`: what is drawn, not how the worker weighs it."""
        meaning["estimator"].pop("method", None)
        # without noise none are drawn, and no such study has a stream
        if not study.noised:
            return
        spec, task = keys.spec_of(study), CopiesTask(study)
        # what is derived, too: whoever derives another noise draws other releases, at another
        # cost. To six digits, which all machines find alike
        drawn = {"psi": f"{task.scale:.6g}", "ridge": f"{task.ridge:.6g}"}
        meaning["copies"] = {key: getattr(spec, key) for key in keys.DRAWN} | {"drawn": drawn}

    task = CopiesTask

    def server(self, task: CopiesTask) -> SiteServer:
        return SiteServer(task, estimate)

    plan = staticmethod(facts.plan)
    propose = staticmethod(facts.propose)


METHOD = NoisyCopies()
