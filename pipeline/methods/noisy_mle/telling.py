"""What an estimate says of its sites, whatever they release."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from pipeline.estimators.estimate import Estimate
from pipeline.methods.noisy_mle.state import SiteState
from pipeline.types import Vector

#: How intervals are made.
INTERVAL = "sandwich, variance of scores and noise"
#: Sites that an estimate lists, the farthest first.
LISTED = 50


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
