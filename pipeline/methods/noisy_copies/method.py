"""Noisy copies of sites' own fits, as the registry knows them: what they need and promise.

Of features that are as their ranges and typical values say. Derived in
docs/methods/noisy-copies.md.
"""

from __future__ import annotations

import math
from collections.abc import Container
from dataclasses import replace
from typing import Any

import numpy as np
from scipy.special import ndtri

from pipeline.errors import PrivacyError
from pipeline.estimators.forgetting import counted_slots
from pipeline.methods.base import Method, Plan, Proposal, Spec
from pipeline.methods.noisy_copies import spec as keys
from pipeline.methods.noisy_copies.client import CopiesTask
from pipeline.methods.noisy_copies.estimate import estimate, limit
from pipeline.methods.sites.client import LOSSES, SERVER_KEYS
from pipeline.methods.sites.report import REMEDIES, SiteReport, bend_of, influence
from pipeline.methods.sites.report import propose as plan_of_sites
from pipeline.methods.sites.state import SiteServer
from pipeline.study.model import Study
from pipeline.study.reference import Seen, kept_moments
from pipeline.study.versions import replace_keys
from pipeline.types import Matrix

#: Above it the noise of a mean is more than all that records vary.
NOISY = 1.0


def facts(task: CopiesTask) -> dict[str, object]:
    """Return what `study check` prints of a study."""
    return {
        "noise": {
            "copies": task.copies,
            "psi": task.scale,
            "noise_over_sampling": task.scale / task.copies,
            "site_ridge": task.ridge,
            "least_site_ridge": task.least_ridge,
            "norm_bound": task.norm_bound,
            "floating_point_part_of_delta": task.floating_delta,
        },
        "sites": {"largest_share": task.spec.largest_share} | influence(task),
    } | ({} if task.classes else {"coefficients": _bound(task)})


def _bound(task: CopiesTask) -> dict[str, object]:
    """Say what the bound of linear coefficients means in the unit of the response."""
    response = task.study.data.response.name
    return {
        "coefficient_bound": task.radius,
        "length_at_most": task.radius * task.response_scale[1],
        "in": f"units of {response}: the root of the sum of squares of all coefficients as "
        f"estimates print them, the intercept from the middle of the range of {response}",
        "beyond_it": "no intervals come. With a bound of 1 it is enough that the model predicts "
        "values within that range wherever the features are in theirs",
    }


def warnings(task: CopiesTask) -> tuple[str, ...]:
    """Return what the operator should know, in words."""
    said = []
    noise, least = task.scale / task.copies, float(np.linalg.eigvalsh(_information(task))[0])
    if noise > NOISY:
        said.append(
            f"the noise of a site's mean is {noise:.3g} times what its records vary: scores "
            '(estimator.kind = "noisy-mle") say more unless windows are very small'
        )
    if task.ridge > task.slots * least:
        said.append(
            f"the sites' ridge, {task.ridge:.3g}, outweighs what a window's records say in some "
            f"direction, {task.slots * least:.3g}: use larger windows (window.records)"
        )
    return tuple(said)


def propose(study: Study, records: int, clients: int, seen: Seen | None = None) -> Proposal:
    """As `Method.propose`: with windows so small that floating point leaves room in delta."""
    del seen
    proposal = plan_of_sites(study, records, clients, moving=True)
    changes, window = dict(proposal.changes), proposal.changes["window.records"]
    while window > 1:
        changes["window.records"] = window
        try:
            CopiesTask(replace_keys(study, changes))
        except PrivacyError:
            window //= 2
        else:
            break
    return replace(proposal, changes=changes)


def plan(task: CopiesTask, records: int, clients: int, seen: Seen | None = None) -> Plan:
    """As `Method.plan`: its study says how many sites there are."""
    del clients
    information = _information(task, seen)
    kept = information + task.ridge / task.slots * np.eye(task.size)
    inverse = np.linalg.inv(information)
    noise = task.scale / task.copies
    variance = inverse + noise * inverse @ kept @ inverse
    reach = float(ndtri((1 + task.study.estimator.level) / 2)) * task.response_scale[1]
    half = reach * np.sqrt(np.diag(variance)[1:] / counted_slots(task.study, records))
    return Plan(
        latest=None,
        usual=_until(task, float(np.linalg.eigvalsh(information)[0])),
        usual_half=float(np.median(half)),
        why="intervals wait until the scatters show what records add to the sites' ridge",
        remedies=REMEDIES,
        facts=facts(task),
        warnings=warnings(task),
    )


def _until(task: CopiesTask, least: float) -> int:
    """Return from how many record slots on the least information stands out of the scatters."""
    ridge = task.ridge / task.slots
    degrees = (limit(task.size) * (least + ridge) / least) ** 2
    return max(1, math.ceil(degrees / (task.copies - 1))) * task.slots


def _information(task: CopiesTask, seen: Seen | None = None) -> Matrix:
    """Return what one record says, without the ridge, over the reference."""
    found = kept_moments(task.encoding, task.norm_bound, seen)
    if task.classes:
        return bend_of(task) * task.loss.start_curvature * found
    return found / task.deviation**2


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
        gives="a fit of its own from each site, and sites that lie are left out",
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

    plan = staticmethod(plan)
    propose = staticmethod(propose)


METHOD = NoisyCopies()
