"""The estimate of a study with locally private gradients, with its intervals side by side.

The coefficients are the average iterate after the burn-in; with a released curvature, the average
moved to where the path would come to rest, less what noise bends it. "ready" means that a
coefficient has an interval of the study's kind; `readiness` says which have. Source: ldp-sgd; the
move is this project's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipeline.estimators.estimate import Estimate, Status
from pipeline.methods.ldp_sgd import readiness
from pipeline.methods.ldp_sgd.client import GradientTask
from pipeline.methods.ldp_sgd.intervals import (
    HalfWidth,
    RandomScaling,
    gradient_noise,
    half_widths,
    needs,
    plug_ins,
    random_scaling,
)
from pipeline.methods.ldp_sgd.plug_in import PooledPlugIn, standard_errors
from pipeline.methods.ldp_sgd.readiness import Lack
from pipeline.methods.ldp_sgd.state import LARGEST, SgdPath, SgdState, Sums
from pipeline.methods.ldp_sgd.step_rule import allowed_lateness
from pipeline.types import Matrix, Vector


@dataclass(frozen=True, slots=True)
class _Paths:
    """The paths with records after their burn-in.

    begun: All paths, those in their burn-in, too.
    burnt, parts, numbers: Those past it, the sums that count, and the numbers of their partitions.
    """

    task: GradientTask
    begun: list[SgdPath]
    burnt: list[SgdPath]
    parts: list[Sums]
    numbers: list[int]
    scaling: RandomScaling
    plugs: Mapping[str, PooledPlugIn]

    @property
    def records(self) -> int:
        """How many count."""
        return sum(part.records for part in self.parts)


def estimate_sgd(task: GradientTask, state: SgdState, partitions: Sequence[int] = (0,)) -> Estimate:
    """Estimate the coefficients of a study with locally private gradients.

    state: The paths of all partitions.
    partitions: The number of each path's partition.

    Returns: Without intervals until the status is "ready"; NaN in the covariance stands for a
    coefficient that has none yet.
    """
    paths = state.paths
    covariance: Matrix | None = None
    privacy: Matrix | None = None
    widths: Mapping[str, HalfWidth] = {}
    floored, condition, records = 0, None, 0
    coefficients, own = task.first_model.coefficients, task.path.shown
    status, reason = _early(task, paths)
    burnt = [path for path in paths if path.sums.records]
    parts = [path.stretch() for path in burnt]
    if burnt:
        numbers = [n for n, path in zip(partitions, paths, strict=True) if path.sums.records]
        origins = [path.origin for path in burnt]
        scaling = random_scaling(
            list(zip(parts, origins, strict=True)), shared=task.partition_strategy == "shared"
        )
        found = _Paths(task, paths, burnt, parts, numbers, scaling, plug_ins(task, parts))
        records, shown = found.records, found.plugs.get(own, found.plugs.get("plug-in"))
        centre = found.plugs[own].centre if own in found.plugs else None
        coefficients = scaling.mean if centre is None else centre
        missing, reason = _missing(found, coefficients)
        status = "warming" if missing.all() else "ready"
        reason = "; ".join(filter(None, [reason, _late(task, burnt, parts)]))
        if shown is not None:
            floored, condition = shown.floored, shown.condition
        if shown is not None and status == "ready":
            covariance = _hidden(shown.covariance, missing)
            privacy = _hidden(shown.privacy_covariance(gradient_noise(task) ** 2), missing)
            widths = _widths(found, missing)
    return Estimate(
        coefficients=coefficients,
        covariance=covariance,
        privacy_covariance=privacy,
        status=status,
        reason=reason,
        records=state.slots,
        releases=state.releases,
        condition=condition,
        floored=floored,
        effective_records=float(records) or None,
        point=newest_point(task, paths),
        widths=widths,
        staleness=_staleness(task, burnt, parts),
        interval=own,
        needs={name: needs(task, name) for name in widths},
        # random scaling is read off the path, which shows how records go together
        details={} if own == "random-scaling" else {"design_effect": None},
    )


def _hidden(covariance: Matrix, missing: NDArray[np.bool_]) -> Matrix:
    """Return a covariance with NaN for coefficients that have no interval."""
    hidden: Matrix = np.where(missing[:, None] | missing[None, :], np.nan, covariance)
    return hidden


def _widths(found: _Paths, missing: NDArray[np.bool_]) -> dict[str, HalfWidth]:
    """Return half the lengths of the study's own interval, and of others where they are due."""
    widths = half_widths(found.scaling, found.plugs)
    own = found.task.path.shown
    mixed = not _mixing(found).coefficients.any()
    kept = {}
    for name, width in widths.items():
        plug = found.plugs.get(name)
        if name == own:
            kept[name] = _without(width, missing)
        elif plug is None or plug.centre is None:
            if mixed:
                kept[name] = width
        elif not readiness.lacks_curvature(plug, found.records).coefficients.any():
            kept[name] = width
    return kept


def _without(width: HalfWidth, missing: NDArray[np.bool_]) -> HalfWidth:
    return lambda level: np.where(missing, np.nan, width(level))


def _missing(found: _Paths, coefficients: Vector) -> tuple[NDArray[np.bool_], str]:
    """Return which coefficients have no interval, shape (d,), and why; "" if all have one."""
    task, size, own = found.task, len(coefficients), found.task.path.shown
    nothing = np.ones(size, dtype=bool)
    if why := _diverged(task, found.burnt) or readiness.lacks_records(found.records, size):
        return nothing, why
    plug = found.plugs.get(own, found.plugs.get("plug-in"))
    if plug is None:
        alone = (i for i, p in enumerate(found.parts) if "plug-in" not in plug_ins(task, [p]))
        name, blocks = _which(found, next(alone, 0))
        return nothing, f"{name} has hardly begun to move, and intervals need a longer one{blocks}"
    about = coefficients if plug.bent is None else coefficients + plug.bent
    if plug.centre is not None and own in found.plugs:
        lacks = [
            readiness.lacks_curvature(plug, found.records),
            readiness.lacks_nearness(
                readiness.distance(task, found.parts, about, plug), task, plug, found.records
            ),
        ]
    else:
        errors = standard_errors(plug)
        square = readiness.cloud(found.parts, about, plug.paths[0].curvature)
        bent = readiness.bend(task, square, coefficients, plug.paths[0].curvature)
        lacks = [_mixing(found), readiness.lacks_straightness(bent, errors)]
    missing = np.any([lack.coefficients for lack in lacks], axis=0)
    names = np.array(task.study.coefficient_names)
    said = []
    for lack in lacks:
        if lack.coefficients.all():
            said.append(lack.reason)
        elif lack.coefficients.any():
            which = ", ".join(repr(str(name)) for name in names[lack.coefficients])
            said.append(f"no interval yet for {which}: {lack.reason}")
    return missing, "; ".join(said)


#: What makes a path mix sooner, or does without.
HELP = (
    ': more records, estimator.path.releases = "gradients+curvature", fewer features or a larger '
    "epsilon help"
)
INSTEAD = ': estimator.path.interval = "plug-in-curvature" needs no mixing; such steps never mix'


def _mixing(found: _Paths) -> Lack:
    """Return which coefficients have not mixed, in any of several pooled paths."""
    task, regressed = found.task, found.plugs.get("plug-in")
    size = len(found.scaling.mean)
    if regressed is None:
        return Lack(np.ones(size, dtype=bool), "the path has hardly begun to move")
    each = readiness.unmixed(task, found.burnt, found.parts, regressed)
    least = min(range(len(each)), key=lambda i: float(each[i].min()))
    name, blocks = _which(found, least)
    # where models are late, that is the reason, and said behind this one
    help_ = HELP if found.burnt[0].matrix is None else INSTEAD
    help_ = "" if _late(task, found.burnt, found.parts) else help_
    return readiness.lacks_mixing(np.min(each, axis=0), name, blocks + help_)


def _which(found: _Paths, place: int) -> tuple[str, str]:
    """Name a path, and say that it withholds the intervals of others where there are any."""
    if found.task.partition_strategy != "pooled":
        return "the path", ""
    name = f"the path of partition {found.numbers[place]} ({found.burnt[place].records} records)"
    return name, " in every partition" if len(found.burnt) > 1 else ""


def newest_point(task: GradientTask, paths: list[SgdPath]) -> Vector:
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
    if (
        task.partition_strategy == "shared"
        and not np.max(np.abs(newest_point(task, paths))) <= LARGEST
    ):
        return (
            f"the path has left its range: {steps}; to take out a client that drove it there "
            "(`veilstream state forget`) does not repair a shared path, as the gradients of others "
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
