"""What a study of copies needs and promises, from public numbers alone: `study check`, planning.

Of features that are as their ranges and typical values say. Derived in
docs/methods/noisy-copies.md.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from scipy.special import ndtri

from pipeline.errors import PrivacyError
from pipeline.estimators.forgetting import counted_slots
from pipeline.methods.base import Plan, Proposal
from pipeline.methods.noisy_copies.client import CopiesTask
from pipeline.methods.noisy_copies.estimate import limit
from pipeline.methods.sites.report import REMEDIES, bend_of, influence
from pipeline.methods.sites.report import propose as plan_of_sites
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
