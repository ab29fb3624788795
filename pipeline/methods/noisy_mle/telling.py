"""What an estimate says of its sites, whatever they release."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from pipeline.estimators.estimate import Estimate
from pipeline.methods.noisy_mle.state import SiteState
from pipeline.types import Matrix, Vector

#: How intervals are made.
INTERVAL = "sandwich, variance of scores and noise"
#: Sites that an estimate lists, the farthest first.
LISTED = 50
#: Those that a sentence names.
NAMED = 3


def empty(coefficients: Vector, slots: int, releases: int) -> Estimate:
    """Return the estimate before the first release."""
    return Estimate(
        coefficients=coefficients,
        status="empty",
        reason="no release has come yet",
        records=slots,
        releases=releases,
        interval=INTERVAL,
    )


def lacking(share: float, *, known: bool) -> str:
    """Return which noise is in the way of intervals; empty if none is.

    share: How far the curvature stands out of its noise, in [0, 1].
    known: Whether the spread of the residuals does.
    """
    if share < 1:
        return (
            "under the noise the features' effects cannot be told apart yet: intervals need more "
            "releases, larger windows (window.records), or a larger estimator.ridge"
        )
    if not known:
        return (
            "the spread of the residuals does not stand out of its noise: intervals need more "
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
        f"no interval for {', '.join(lost)}: noise may still be all that tells {it} from other "
        f"features. More releases or larger windows (window.records) give {it} one"
    )


def far(staying: int, count: int, needed: int, misplaced: Sequence[str]) -> str:
    """Say that scores were taken too far from the estimate, and what brings intervals.

    staying: How many of `count` sites have sent at the newest models; `needed` must have.
    misplaced: Names of those that are left out.
    """
    if staying < needed:
        said = (
            f"{staying} of {count} sites have reported from a recent model, and intervals need "
            f"{needed}: with those that were at older ones they would be too short. Let the others "
            "send their next windows; sites that have stopped leave as models move on"
        )
    else:
        said = (
            "scores were taken at models too far from this estimate, so that intervals would be "
            f"too short: they come when {needed} of {count} sites have sent windows at newer "
            "models, usually with the third or fourth window of each; make models sooner "
            "(stream.publish) or cut the same records into more windows (window.records)"
        )
    if misplaced:
        said += (
            f". Left out, as the points of their releases are no models of this study: "
            f"{', '.join(misplaced[:NAMED])}; ask them, or admit sites by name (trust.releases)"
        )
    return said


def dropped(parts: Sequence[tuple[float, SiteState]], names: Sequence[str]) -> dict[str, Any]:
    """Return which sites count no more: all of their releases are too old."""
    gone = sorted({name for _, state in parts for name in state.sites}.difference(names))
    return {"dropped": gone[:LISTED], "dropped_count": len(gone)}


def listed(
    release: str, names: Sequence[str], weights: Vector, records: Vector, squared: Vector, size: int
) -> dict[str, Any]:
    """Return what is shown of the sites: each one's share, distance and flag, the farthest first.

    weights, records, squared: Weight, records and squared distance of each, shape (M,).
    """
    mass = weights * records
    shares, order = mass / float(mass.sum()), np.argsort(-squared, kind="stable")
    out = weights == 0
    return {
        "release": release,
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
