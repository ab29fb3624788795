"""What an estimate says of its sites, and what their study is told from public numbers alone.

Sites move together. A class that is rare lies far from the public start, which takes more models,
and there a logistic loss bends less. Derived in docs/methods/noisy-mle.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, NamedTuple

import msgspec
import numpy as np
from msgspec import Meta

from pipeline.estimators.estimate import Estimate, Progress
from pipeline.estimators.forgetting import effective
from pipeline.methods.base import Proposal, Report
from pipeline.methods.sites import robust
from pipeline.methods.sites.client import LONGEST_STEP, WeighedTask
from pipeline.methods.sites.robust import LEAST_SITES, limit_of, possible
from pipeline.methods.sites.state import (
    UNSURE,
    Weighed,
    needed_sites,
    next_point,
    recent_epochs,
)
from pipeline.release.task import RecordBounds
from pipeline.study.model import Study
from pipeline.study.reference import evenness, rarer_share, typical_norm_bound
from pipeline.study.versions import replace_keys
from pipeline.types import Matrix, Vector

#: How intervals are made.
INTERVAL = "sandwich, variance of scores and noise"
#: Sites that an estimate lists, the farthest first.
LISTED = 50
#: Those that a sentence names.
NAMED = 3
#: What an operator does about a site that is left out.
DO = (
    "what to do: estimate and intervals are those of the other sites. `veilstream client list` "
    "has the digest of each admitted client: ask the client whether columns, units and responses "
    "are those of the study. Revoke a client that lies (`veilstream client revoke`); a client "
    "that truly differs needs its own study"
)
#: What names a site in an estimate: a digest, in which nothing moves a terminal.
Digest = Annotated[str, Meta(pattern="^[0-9a-f]{32}\\Z")]


class Row(msgspec.Struct, frozen=True):
    """One site, as `listed` has it."""

    site: Digest
    share: float
    distance: float
    flag: bool


class Said(msgspec.Struct, frozen=True):
    """What is read of an estimate's `details`; `misplaced` is there for scores alone."""

    count: int
    flagged: list[Digest]
    sites: list[Row]
    misplaced: list[Digest] = []


class SiteReport(Report):
    """As `methods.base.Report`: sites that are far, and how much each weighs.

    unlike: What of a site's release is judged beside its distance.
    """

    def __init__(self, unlike: str) -> None:
        self._unlike = unlike

    def lines(self, study: Study, details: Mapping[str, Any]) -> Sequence[str]:
        """As `Report.lines`: who is left out, why, and what to do; nothing where nobody is."""
        said = _said_of(details)
        if said is None or not said.flagged:
            return ()
        size = len(study.coefficient_names)
        far = math.sqrt(robust.FLAGGED * robust.limit_of(size) / size)
        rows = {row.site: row for row in said.sites}
        named = [
            f"{name} ({self._why(said, rows.get(name), name, far)})"
            for name in said.flagged[:NAMED]
        ]
        more = len(said.flagged) - len(named)
        who = ", ".join(named) + (f" and {more} more" if more else "")
        return (
            f"flagged, with weight 0: {len(said.flagged)} of {said.count} sites: {who}",
            DO,
        )

    def clients(self, details: Mapping[str, Any]) -> dict[str, dict[str, float]]:
        said = _said_of(details)
        return (
            {}
            if said is None
            else {
                row.site: {"share": row.share, "distance": row.distance, "flag": int(row.flag)}
                for row in said.sites
            }
        )

    def _why(self, said: Said, row: Row | None, name: str, far: float) -> str:
        """Return why a site is left out, with its distance."""
        if name in said.misplaced:
            return "the points of its releases are not models of this study"
        if row is None:
            return "not among those that are listed"
        distance = f"distance {row.distance:.1f}"
        if row.distance > far:
            return f"{distance}: honest sites are at about 1, and left out from {far:.1f} on"
        return (
            f"{distance}; its {self._unlike} is unlike that of the others: its features have "
            "another spread, or it lies"
        )


def _said_of(details: Mapping[str, Any]) -> Said | None:
    """Return what an estimate says of its sites; None where it says nothing of the kind."""
    try:
        return msgspec.convert(dict(details), Said)
    except msgspec.ValidationError:
        return None


class Standing(NamedTuple):
    """How many of all `sites` have sent in the newest epochs; `needed` must have."""

    staying: int
    sites: int
    needed: int


class Solution(NamedTuple):
    """What the releases of some epochs say.

    lacking: Whether intervals lack anything that more epochs would give.
    far: Whether all that they lack is that releases were taken near enough.
    error: Mean square error of predictors: by chance, and by what releases leave out.
    estimate_at: Makes the estimate; of those that are tried, for one alone.
    """

    lacking: bool
    far: bool
    error: float
    estimate_at: Callable[[Standing], Estimate]


def chosen(
    parts: Weighed, sites_of: Callable[[list[int]], Any], solve: Callable[[Any], Solution]
) -> Estimate:
    """Return the estimate of the most epochs that give intervals, else that of the least error.

    sites_of: Returns the sites with their releases in some epochs, `names` among it.
    """
    kept = sorted(recent_epochs(parts))
    tried: list[Solution] = []
    staying = count = needed = 0
    for first in range(len(kept)):
        sites = sites_of(kept[first:])
        staying, count = len(sites.names), count or len(sites.names)
        needed = needed or needed_sites(parts, sites.names)
        if staying < needed:
            break
        tried.append(solve(sites))
        if not tried[-1].far:
            # intervals; or noise is in their way, and fewer releases have more of it
            break
    found = tried[-1]
    if found.lacking or found.far:
        found = min(tried, key=lambda one: one.error)
    return found.estimate_at(Standing(staying, count, needed))


def empty(coefficients: Vector, parts: Weighed) -> Estimate:
    """Return the estimate before the first release."""
    return Estimate(
        coefficients=coefficients,
        status="empty",
        reason="no release has come yet",
        records=sum(state.slots for _, state in parts),
        releases=0,
        interval=INTERVAL,
    )


def estimate_of(
    task: WeighedTask, parts: Weighed, names: Sequence[str], coefficients: Vector,
    covariance: Matrix, privacy: Matrix, *, weights: Vector, records: Vector, varied: Vector,
    squared: Vector, share: float, reason: str, far: bool, points: Matrix | None, settled: bool,
    more: dict[str, Any],
) -> Estimate:  # fmt: skip
    """Return an estimate with what it says of its sites.

    names: Digests of the M sites, sorted.
    covariance, privacy: Of the coefficients, and the part of it that noise causes, shape (d, d).
    weights, squared: Of the sites, and their squared distances, shape (M,).
    records, varied: Sums of w n and of w^2 n over releases of n slots and weight w, shape (M,).
    share: How far they are on the way to intervals, in [0, 1].
    reason, far: What intervals lack, and whether releases were taken too far from the estimate.
    points: Where the releases of the sites were taken, shape (M, d); None: at 0.
    settled: Whether the next ones may be taken at the estimate.
    more: What else the method says.
    """
    slots = sum(state.slots for _, state in parts)
    lost = "" if reason else endless(task.study.coefficient_names, covariance)
    # releases that are too far leave as many later ones come as there are now
    share = min(share, 0.5 if far else UNSURE if lost else 1.0)
    point = task.first_model.coefficients
    if task.at_models:
        point = next_point(task.norm_bound, coefficients, points, settled=settled)
    return Estimate(
        coefficients=coefficients,
        covariance=None if reason else covariance,
        privacy_covariance=None if reason else privacy,
        status="warming" if reason else "ready",
        reason=reason or lost,
        records=slots,
        releases=sum(state.releases for _, state in parts),
        effective_records=effective(float(weights @ records), float(weights**2 @ varied)),
        point=point,
        interval=INTERVAL,
        progress=Progress.of(share, slots),
        details=listed(names, weights, records, squared, task.size) | dropped(parts, names) | more,
    )


def lacking(share: float, *, known: bool) -> str:
    """Return which noise is in the way of intervals; empty if none is.

    share: How far the curvature stands out of its noise, in [0, 1].
    known: Whether the spread of the residuals does.
    """
    if share < 1:
        return (
            "the effects of the features cannot yet be told apart from the noise: intervals need "
            "more releases, larger windows (window.records), or a larger estimator.ridge"
        )
    if not known:
        return (
            "the spread of the residuals is not yet clear of its noise: intervals need more "
            "releases, or estimator.noise_scale where it is known"
        )
    return ""


def endless(names: Sequence[str], covariance: Matrix) -> str:
    """Say which coefficients have no interval, and what gives them one; empty if all have one.

    covariance: Of all coefficients; NaN for those whose intervals have no end, shape (d, d).
    """
    lost = np.array(names)[np.isnan(np.diag(covariance))].tolist()
    if not lost:
        return ""
    it = "it" if len(lost) == 1 else "them"
    return (
        f"no interval for {', '.join(lost)}: perhaps only noise tells {it} apart from other "
        f"features. More releases or larger windows (window.records) give {it} one"
    )


def far(standing: Standing, misplaced: Sequence[str]) -> str:
    """Say that scores were taken too far from the estimate, and what brings intervals.

    misplaced: Names of those that are left out.
    """
    staying, count, needed = standing
    if staying < needed:
        said = (
            f"{staying} of {count} sites have reported from a recent model, and intervals need "
            f"{needed}: with sites at older models they would be too short. Let the others send "
            "their next windows; sites that have stopped leave as models move on"
        )
    else:
        said = (
            "scores were taken at models too far from this estimate, so intervals would be too "
            f"short. They appear when {needed} of {count} sites have sent windows at newer "
            "models, usually with the third or fourth window of each, and later where one class is "
            "rare. Make models sooner (stream.publish); in a new study, use a larger "
            "estimator.ridge, or cut the same records into more windows (window.records)"
        )
    if misplaced:
        said += (
            ". Left out, because the points of their releases are not models of this study: "
            f"{', '.join(misplaced[:NAMED])}; ask them, or admit sites by name (trust.releases)"
        )
    return said


def dropped(parts: Weighed, names: Sequence[str]) -> dict[str, Any]:
    """Return which sites count no more: all of their releases are too old."""
    gone = sorted({name for _, state in parts for name in state.sites}.difference(names))
    return {"dropped": gone[:LISTED], "dropped_count": len(gone)}


def listed(
    names: Sequence[str], weights: Vector, records: Vector, squared: Vector, size: int
) -> dict[str, Any]:
    """Return what is shown of the sites: each one's share, distance and flag, the farthest first.

    weights, records, squared: Weight, records and squared distance of each, shape (M,).
    """
    mass = weights * records
    shares, order = mass / float(mass.sum()), np.argsort(-squared, kind="stable")
    out = weights == 0
    return {
        "design_effect": None,
        "count": len(names),
        "flagged": [names[m] for m in order[out[order]].tolist()][:LISTED],
        "sites": [
            {
                "site": names[m],
                "share": float(shares[m]),
                "distance": math.sqrt(float(squared[m]) / size),
                "flag": bool(out[m]),
            }
            for m in order[:LISTED].tolist()
        ],
    }


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
