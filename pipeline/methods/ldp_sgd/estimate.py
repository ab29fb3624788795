"""The estimate of a study with locally private gradients, with its intervals side by side.

The coefficients are the average iterate after the burn-in. "ready" means that the path has mixed:
lambda_min times the sum of the steps is at least 50, with the smallest eigenvalue of the regressed
curvature, for each of several pooled paths by itself; and that the interval which the study shows
can be had. Source: ldp-sgd; the 50 is where coverage stops falling short in simulations
(docs/methods/ldp-sgd.md, "When intervals appear").
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from pipeline.estimators.estimate import Estimate, Status
from pipeline.methods.ldp_sgd.intervals import (
    HalfWidth,
    gradient_noise,
    half_widths,
    needs,
    plug_ins,
)
from pipeline.methods.ldp_sgd.path import LARGEST, SgdPath
from pipeline.methods.ldp_sgd.plug_in import PooledPlugIn
from pipeline.methods.ldp_sgd.random_scaling import random_scaling
from pipeline.methods.ldp_sgd.settings import allowed_lateness
from pipeline.methods.ldp_sgd.state import SgdState
from pipeline.methods.ldp_sgd.sums import Sums
from pipeline.methods.ldp_sgd.task import GradientTask
from pipeline.types import Matrix, Vector

#: A path that has moved less than this many relaxation times has no interval.
MIXED = 50.0


def estimate_sgd(task: GradientTask, state: SgdState, partitions: Sequence[int] = (0,)) -> Estimate:
    """Estimate the coefficients of a study with locally private gradients.

    Parameters
    ----------
    state
        The paths of all partitions.
    partitions
        The number of each path's partition.

    Returns
    -------
    Estimate
        Without intervals until the status is "ready".
    """
    paths = state.paths
    burnt = [path for path in paths if path.sums.records]
    parts = [path.stretch() for path in burnt]
    records = sum(part.records for part in parts)
    covariance: Matrix | None = None
    privacy: Matrix | None = None
    widths: Mapping[str, HalfWidth] = {}
    floored, condition = 0, None
    coefficients = task.first_model.coefficients
    status, reason = _early(task, paths)
    shared = task.partition_strategy == "shared"
    if burnt:
        origins = [path.origin for path in burnt]
        scaling = random_scaling(list(zip(parts, origins, strict=True)), shared=shared)
        coefficients = scaling.mean
        plugs = plug_ins(task, parts)
        numbers = [n for n, path in zip(partitions, paths, strict=True) if path.sums.records]
        reason = _unready(task, burnt, parts, plugs, numbers)
        status = "warming" if reason else "ready"
        reason = "; ".join(filter(None, [reason, _late(task, burnt, parts)]))
        shown = plugs.get(task.path.interval, plugs.get("plug-in"))
        if shown is not None:
            floored = shown.floored
            condition = shown.condition
            if status == "ready":
                covariance = shown.covariance
                privacy = shown.privacy_covariance(gradient_noise(task) ** 2)
                widths = half_widths(burnt, parts, scaling, plugs, shared=shared)
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
        effective_records=float(records) or None,
        point=_point(task, paths),
        widths=widths,
        staleness=_staleness(task, burnt, parts),
        interval=task.path.interval,
        needs={name: needs(task, name) for name in widths},
    )


def _point(task: GradientTask, paths: list[SgdPath]) -> Vector:
    """Return the newest iterate: of one path, of a shared one, or the mean of several."""
    start = task.first_model.coefficients
    if not paths:
        return start
    if task.partition_strategy == "shared":
        moved: Vector = np.sum([path.theta for path in paths], axis=0)
        return start + moved
    if len(paths) == 1:
        return paths[0].theta
    weights = [max(path.records, 1) for path in paths]
    mean: Vector = np.average([path.theta for path in paths], axis=0, weights=weights)
    return mean


def _early(task: GradientTask, paths: list[SgdPath]) -> tuple[Status, str]:
    if not paths:
        return "empty", "no release has come yet"
    if diverged := _diverged(task, paths):
        return "warming", diverged
    return "starting", f"the first {task.path.burn_in} records are left out of the average"


#: What makes a path mix sooner.
HELP = ": more records, larger steps (estimator.path), fewer features or a larger epsilon help"


def _unready(
    task: GradientTask,
    paths: list[SgdPath],
    parts: Sequence[Sums],
    plugs: Mapping[str, PooledPlugIn],
    numbers: Sequence[int],
) -> str:
    """Return why there are no intervals yet, and what would help; empty if there are."""
    if diverged := _diverged(task, paths):
        return diverged
    regressed = plugs.get("plug-in")
    if regressed is None:
        alone = (i for i, part in enumerate(parts) if "plug-in" not in plug_ins(task, [part]))
        name, blocks = _which(task, paths, numbers, next(alone, 0))
        return f"{name} has hardly begun to move, and intervals need a longer one{blocks}"
    moved = [part.moved for part in parts]
    if task.partition_strategy != "pooled":
        moved = [sum(moved)]
    mixed = [
        (not plug.floored, float(np.linalg.eigvalsh(plug.curvature)[0]) * steps)
        for plug, steps in zip(regressed.paths, moved, strict=True)
    ]
    least = min(mixed)
    if least < (True, MIXED):
        name, blocks = _which(task, paths, numbers, mixed.index(least))
        return (
            f"{name} is too short: {max(least[1], 0.0):.0f} relaxation times of its slowest "
            f"direction, and intervals need {MIXED:.0f}{blocks}"
            + ("" if _late(task, paths, parts) else HELP)
            # where models are late, that is the reason, and said behind this one
        )
    interval = task.path.interval
    if interval.startswith("plug-in") and (interval not in plugs or plugs[interval].floored):
        return (
            f'"{interval}" cannot be computed yet, as the noise still hides a part of the released '
            "curvature: more records, a larger privacy.split.curvature or privacy.epsilon help, "
            "or another estimator.path.interval"
        )
    return ""


def _which(
    task: GradientTask, paths: list[SgdPath], numbers: Sequence[int], place: int
) -> tuple[str, str]:
    """Name a path, and say that it withholds the intervals of others where there are any."""
    if task.partition_strategy != "pooled":
        return "the path", ""
    name = f"the path of partition {numbers[place]} ({paths[place].records} records)"
    return name, " in every partition" if len(paths) > 1 else ""


def _late(task: GradientTask, paths: list[SgdPath], parts: Sequence[Sums]) -> str:
    """Return what to do about models that are later than the steps allow for; empty if none is."""
    late = _staleness(task, paths, parts) or 0.0
    allowed = allowed_lateness(task)
    if late <= allowed:
        return ""
    return (
        f"models are {late:.0f} records late on average, and the steps allow for {allowed}: "
        "publish more often (stream.publish), slow the clients, or set estimator.path.behind"
    )


def _diverged(task: GradientTask, paths: list[SgdPath]) -> str:
    """Return what to do about a path that has left its range; empty if none has."""
    steps = "the operator must lower estimator.path.eta0 or kappa and begin a new study"
    after = min((path.diverged for path in paths if path.diverged is not None), default=None)
    if after is not None:
        return (
            f"the path left its range after {after} records and stands still: {steps}, or take out "
            "the client that drove it there (`veilstream state forget`); what was learnt before is "
            "kept"
        )
    if task.partition_strategy == "shared" and not np.max(np.abs(_point(task, paths))) <= LARGEST:
        return (
            f"the path has left its range: {steps}; to take out a client that drove it there "
            "(`veilstream state forget`) does not mend a shared path, as the gradients of others "
            "were taken where that client had led it"
        )
    return ""


def _staleness(task: GradientTask, paths: list[SgdPath], parts: Sequence[Sums]) -> float | None:
    """Return how many records late models were on average, in the stretches that count.

    Of all partitions in a shared path, where each counts its own; else of the path's own.
    """
    releases = sum(part.records for part in parts) / task.slots
    if not releases:
        return None
    total = sum(path.records for path in paths) if task.partition_strategy == "shared" else None
    late = [
        part.behind * ((total or path.records) / path.records)
        for path, part in zip(paths, parts, strict=True)
    ]
    return math.fsum(late) / releases
