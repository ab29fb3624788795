"""What any study of sites can be told from public numbers alone: for `study check` and planning.

Sites move together. A class that is rare lies far from the public start, which takes more models,
and there a logistic loss bends less. Derived in docs/methods/noisy-mle.md.
"""

from __future__ import annotations

import math

from pipeline.methods.base import Proposal
from pipeline.methods.sites.client import WeighedTask
from pipeline.methods.sites.robust import LEAST_SITES, limit_of, possible
from pipeline.methods.sites.server import LONGEST_STEP
from pipeline.release.task import RecordBounds
from pipeline.study.model import Study
from pipeline.study.reference import evenness, rarer_share, typical_norm_bound
from pipeline.study.versions import replace_keys

#: What brings coverage to its level.
REMEDIES = ("larger windows (window.records), and more sites",)
#: At the reference, logistic losses bend at least this share of what they do at 0.
BEND = 0.55
#: Windows of every site before models are near, of even classes: at 0 and at a first model. Then as
#: many near the estimate as it takes at least: one, and one more, which a tenth to four fifths of
#: the streams of steep slopes and rare levels need (benchmarks.sites_coverage).
FIRST, LATER = 2, 2
#: So many logits from that of the rarer class, a model is as near as a first one of even classes.
FIRST_NEAR = 0.25


def largest_move(task: WeighedTask) -> float:
    """Return how far one site moves an estimate that has `LEAST_SITES` or more, at most."""
    share = possible(task.spec.largest_share, task.spec.sites)
    return math.sqrt(limit_of(task.size) * share)


def influence(task: WeighedTask) -> dict[str, object]:
    """Return how far sites that lie can move an estimate, and from how many on without limit."""
    sites = task.spec.sites
    # estimates start from medians over sites
    many = math.ceil(sites / 2) if sites >= LEAST_SITES else 1
    return {
        "one_site_moves_at_most": largest_move(task),
        "in": (
            "standard errors of all coefficients jointly, where many sites of about equal size "
            "do not truly differ. One of a handful of sites, or one with most of the records, "
            f"can move it by several times that; with fewer than {LEAST_SITES} sites nothing "
            "bounds it"
        ),
        "sites_that_lie_together": (
            f"{many} or more of {sites} sites move estimates without limit. Fewer move them by a "
            "bounded distance, and may not be flagged: a quarter by about 2 standard errors of "
            "one site alone, a third by 3, and 45 % by 6"
        ),
    }


def bend_of(task: RecordBounds) -> float:
    """Return the guess of a record's mean curvature at the reference, over that at 0."""
    # the mean of p (1 - p) is at most that of the mean
    return min(BEND, evenness(task.study)) if task.loss.name == "logistic" else 1.0


def first_windows(task: RecordBounds) -> int:
    """Return how many windows of every site are usually taken before models are near."""
    # of even classes the first model is one step off, since slopes are
    return FIRST + (max(_steps(task) - 1, 0) if task.classes else 0)


def _steps(task: RecordBounds) -> int:
    """Return after how many of Newton's steps an intercept is near that of the rarer class."""
    share, most = rarer_share(task.study), LONGEST_STEP / task.norm_bound
    goal, at, steps = math.log(share / (1 - share)), 0.0, 0
    while at - goal > FIRST_NEAR:
        here = 1 / (1 + math.exp(-at))
        at -= min((here - share) / (here * (1 - here)), most)
        steps += 1
    return steps


def propose(study: Study, records: int, clients: int, *, moving: bool) -> Proposal:
    """As `Method.propose`: windows, norm bound, sites and models.

    moving: Whether releases of the study wait for models.
    """
    shorter = RecordBounds(replace_keys(study, {"estimator.norm_bound": "typical"}))
    # one more than it takes until scores are near
    windows = first_windows(shorter) + LATER + 1
    window = max(1, min(records // (windows * clients), 100_000))
    changes: dict[str, object] = {"window.records": window, "estimator.norm_bound": "typical"}
    changes["estimator.method"] = {**(study.estimator.method or {}), "sites": clients}
    reasons = {
        "window.records": f"{windows} windows of each client: each has the same noise, "
        "whatever its size",
        "estimator.norm_bound": f"{typical_norm_bound(shorter.encoding):g} instead of "
        f"{shorter.longest:.3g}, the longest that the ranges allow: all noise grows with it",
        "estimator.method": "how many sites share the work; the rest is as it was",
    }
    publish = study.stream.publish
    if moving and clients < publish.releases:
        kept = {"seconds": publish.seconds, "pause": publish.pause}
        changes["stream.publish"] = {"releases": clients, **kept}
        reasons["stream.publish"] = (
            "a model after one window of each client, which the next window uses"
        )
    return Proposal(changes, reasons)
