"""The estimate of a study with locally private gradients, with its intervals side by side.

The coefficients are the average iterate after the burn-in. "ready" means that the path has mixed:
lambda_min times the sum of the steps is at least 50, with the smallest eigenvalue of the regressed
curvature. Source: ldp-sgd; readiness: spec (c).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial

import numpy as np
from scipy.special import ndtri

from pipeline.errors import NumericError
from pipeline.estimators.estimate import Estimate, Status
from pipeline.estimators.sgd import plug_in
from pipeline.estimators.sgd.path import SgdPath
from pipeline.estimators.sgd.plug_in import PlugIn
from pipeline.estimators.sgd.random_scaling import RandomScaling, random_scaling
from pipeline.estimators.sgd.settings import allowed_lateness
from pipeline.estimators.sgd.state import SgdState
from pipeline.linalg import sandwich
from pipeline.local.plan import Plan
from pipeline.types import Matrix, Vector

#: A path that has moved less than this many relaxation times has no interval.
MIXED = 50.0
#: Half the length of the intervals at a level, shape (d,).
HalfWidth = Callable[[float], Vector]


def estimate_sgd(plan: Plan, state: SgdState) -> Estimate:
    """Estimate the coefficients of a study with locally private gradients.

    Parameters
    ----------
    state
        The paths of all partitions.

    Returns
    -------
    Estimate
        Without intervals until the status is "ready".
    """
    paths = state.paths
    burnt = [path for path in paths if path.sums.records]
    covariance = privacy = None
    widths: Mapping[str, HalfWidth] = {}
    floored, condition = 0, None
    coefficients = plan.first_model.coefficients
    status, reason = _early(plan, paths)
    if burnt:
        scaling = random_scaling([(path.stretch(), path.origin) for path in burnt])
        coefficients = scaling.mean
        status, reason = "warming", "the path has not moved in every direction yet"
        plug = _plug(burnt)
        if plug is not None:
            floored = plug.floored
            condition = float(np.linalg.cond(plug.curvature))
            status, reason = _status(plan, burnt, plug)
        if plug is not None and status == "ready":
            covariance = plug.covariance
            privacy = _privacy(plan, plug, sum(path.stretch().records for path in burnt))
            widths = _widths(burnt, scaling, plug)
    return Estimate(
        coefficients=coefficients,
        covariance=covariance,
        privacy_covariance=privacy,
        weights=(1.0, 1.0),
        status=status,
        reason=reason,
        records=state.slots,
        releases=state.releases,
        condition=condition,
        floored=floored,
        effective_records=float(sum(path.stretch().records for path in burnt)) or None,
        point=paths[0].theta if paths else coefficients,
        widths=widths,
        staleness=_staleness(plan, burnt),
    )


def _plug(paths: list[SgdPath]) -> PlugIn | None:
    try:
        return plug_in.without_release([path.stretch() for path in paths])
    except NumericError:
        return None


def _privacy(plan: Plan, plug: PlugIn, records: int) -> Matrix:
    size = plan.size
    if not plan.study.noised:
        return np.zeros((size, size))
    # of personal levels the loosest: which records had which is not kept, and this much is sure
    noise = plan.step.gradient.standard_deviation**2
    return sandwich(plug.curvature, noise * np.eye(size)) / records


def _widths(paths: list[SgdPath], scaling: RandomScaling, plug: PlugIn) -> dict[str, HalfWidth]:
    found: dict[str, HalfWidth] = {
        "random-scaling": scaling.half_width,
        "plug-in": partial(_normal, plug_in.standard_errors(plug)),
    }
    if len(paths) == 1:
        [path] = paths
        spread = path.batches.variance(path.sums) / path.sums.records
        found["online-batch-means"] = partial(_normal, np.sqrt(spread))
    return found


def _normal(errors: Vector, level: float) -> Vector:
    """Return half the length of normal intervals."""
    return float(ndtri((1 + level) / 2)) * errors


def _early(plan: Plan, paths: list[SgdPath]) -> tuple[Status, str]:
    if not paths:
        return "empty", "no release has come yet"
    if any(path.diverged is not None for path in paths):
        return "warming", _diverged(paths)
    burn_in = plan.study.path.burn_in if plan.study.path else 0
    return "starting", f"the first {burn_in} records are left out of the average"


def _status(plan: Plan, paths: list[SgdPath], plug: PlugIn) -> tuple[Status, str]:
    if any(path.diverged is not None for path in paths):
        return "warming", _diverged(paths)
    least = float(np.linalg.eigvalsh(plug.curvature)[0])
    mixed = min(least * path.stretch().moved for path in paths)
    if plug.floored or mixed < MIXED:
        return "warming", (
            f"the path has mixed {max(mixed, 0.0):.0f} times in its slowest direction, and "
            f"intervals need {MIXED:.0f}: more records, larger steps (estimator.path), fewer "
            "features or a larger epsilon help"
        )
    late = _staleness(plan, paths) or 0.0
    allowed = allowed_lateness(plan)
    if late > allowed:
        return "ready", (
            f"models are {late:.0f} records late on average, and the steps allow for {allowed}: "
            "publish more often (stream.publish), or set estimator.path.behind"
        )
    return "ready", ""


def _diverged(paths: list[SgdPath]) -> str:
    after = min(path.diverged for path in paths if path.diverged is not None)
    return (
        f"the path left its range after {after} records and stands still: the operator must lower "
        "estimator.path.eta0 or kappa and begin a new study; what was learnt before is kept"
    )


def _staleness(plan: Plan, paths: list[SgdPath]) -> float | None:
    """Return how many records late models were on average, in the stretch that counts."""
    stretches = [path.stretch() for path in paths]
    releases = sum(part.records for part in stretches) / plan.slots
    if not releases:
        return None
    return math.fsum(part.behind for part in stretches) / releases
