"""The estimate of a private study from its integer sums: intervals, a status, and the reason.

Whether a private stream can give intervals, how far it is on the way, and what would help.

Every condition is a share in [0, 1] that grows in proportion to the records: at 1 it holds. So each
says by itself how many records are missing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pipeline.estimators.estimate import (
    FAR,
    Estimate,
    Progress,
    Status,
    class_weights,
    dispersion_of,
    kept_of,
)
from pipeline.estimators.forgetting import effective
from pipeline.linalg import condition_number, solve_positive
from pipeline.losses import Regression
from pipeline.methods.renewable.client import RenewableTask
from pipeline.methods.renewable.solution import (
    LEAST_RELEASES,
    LEAST_SPREAD,
    PER_COEFFICIENT,
    SURELY_KNOWN,
    Bread,
    Solution,
    shortened,
    solved,
)
from pipeline.methods.renewable.state import (
    PrivateState,
    Sums,
    Weighed,
    newest_sums,
    noise_of_counts,
    total_of,
)
from pipeline.study.reference import law_of, moments
from pipeline.types import Matrix, Vector

#: Slopes that lie in hidden directions at least so much as the one that does most are named.
ALONG = 0.5
#: Records have a direction that noise hides, and not noise alone, where features as the study
#: declares them would have so many times its size there: twice what is surely known.
SURPRISING = 2 * SURELY_KNOWN
#: A class is taken to occur when its count is so many standard deviations of the noise above 0.
COUNTS_NOISE = 3.0


@dataclass(frozen=True, slots=True)
class Condition:
    """What intervals need: how much of it there is, in [0, 1], and what to say meanwhile."""

    share: float
    reason: str

    @property
    def holds(self) -> bool:
        """Whether intervals need nothing more here."""
        return self.share >= 1


def progress_of(conditions: Sequence[Condition], slots: int) -> Progress:
    """Return how far a stream of so many record slots is on the way to all its intervals."""
    return Progress.of(min((1.0, *(c.share for c in conditions))), slots)


def releases_needed(task: RenewableTask) -> int:
    """Return how many recent releases intervals need."""
    if "middle" in task.layout.columns(1):
        return LEAST_RELEASES
    return max(PER_COEFFICIENT * task.size, LEAST_SPREAD)


def enough_releases(task: RenewableTask, releases: float) -> Condition:
    """Return whether the spread between releases is known.

    releases: Effective number of those of the newest epochs.
    """
    needed = releases_needed(task)
    reason = f"intervals need {needed} recent releases; {int(releases)} have come"
    if task.study.estimator.forgetting is not None:
        reason += ", weighed by their age: a longer half-life keeps more"
    return Condition(min(1.0, releases / needed), reason)


def both_classes(task: RenewableTask, parts: Weighed) -> Condition:
    """Return whether both noised counts stand out of their noise: one class has no best fit.

    A regression has no classes that could be missing.
    """
    channel = task.update_channels.counts
    if channel is None or not task.classes:
        return Condition(1.0, "")
    rarer = float((total_of(parts, lambda state: state.counts)[:2] * channel.unit).min())
    deviation = noise_of_counts(task, parts)
    least = COUNTS_NOISE * deviation
    share = min(1.0, max(0.0, rarer / least))
    # noise that remembers hardly grows with the records, other noise as their root
    share = share if task.remembers else share**2
    if share >= 1:
        return Condition(1.0, "")
    return Condition(
        share,
        "one class is so rare that its noised count may be only noise: it is "
        f"{max(rarer, 0.0):,.0f}, which noise moves by up to {2 * deviation:,.0f}, and intervals "
        f"need {least:,.0f}. What would give intervals: more records of both classes; in a new "
        "study a larger privacy.split.counts",
    )


def known_curvature(task: RenewableTask, found: Solution, slots: int) -> Condition:
    """Return whether all coefficients can be told apart beside the noise, or which cannot."""
    if not found.unknown.any():
        return Condition(1.0, "")
    bread = found.bread
    least = float(bread.values.min())
    share = min(0.999, max(0.0, least / (SURELY_KNOWN * bread.noise)))
    names = np.array(task.study.coefficient_names)[found.unknown]
    which = "any coefficient" if found.unknown.all() else ", ".join(names)
    told = (
        f"no interval for {which}: the records so far do not say enough of "
        f"{max(bread.hidden, 1)} of {task.size} combinations of coefficients beside the noise."
    )
    ways = _ways(task, share, SURELY_KNOWN * bread.noise - least, slots)
    return Condition(share, f"{told} {ways}{_alike(task, found) or _undeclared(task, found)}")


def _alike(task: RenewableTask, found: Solution) -> str:
    """Name the features of the hidden direction; empty if it is not one, or may be noise alone.

    A feature that stays near one end of its range is as good as constant beside the intercept, one
    that fills little of it as good as absent; others go together. Of several hidden directions
    noise says which features they hold, and of one while features as declared would be hidden too.
    """
    bread: Bread = found.bread
    if bread.hidden != 1 or _declared_along(task, bread) < SURPRISING * bread.noise:
        return ""
    turned = bread.turned
    along = turned[1:] >= ALONG * turned[1:].max()
    names, of_levels = np.array(task.study.coefficient_names[1:]), task.encoding.levels
    levels, numbers = names[along & of_levels].tolist(), names[along & ~of_levels].tolist()
    if turned[0] < ALONG * turned[1:].max():
        if not levels and len(numbers) == 1:
            return (
                f". The values of {numbers[0]} seem to fill little of its range, so that nobody "
                "knows what it takes from the others: give a transform or a narrower range, or "
                "declare it as a category if it has a few values (data.features). This needs a new "
                "study"
            )
        return ""
    told = []
    if numbers:
        told.append(
            f"{' and '.join(numbers)}, whose values seem to stay near one end of the range: give a "
            "transform or a narrower range, or a typical value if they are spread around it "
            "(data.features)"
        )
    if levels:
        told.append(
            f"{' and '.join(levels)}, which nearly all records seem to have: make it the base level"
            " (data.features)"
        )
    return (
        f". The records hardly tell the intercept from {'; or from '.join(told)}. This needs a "
        "new study"
    )


def _declared_along(task: RenewableTask, bread: Bread) -> float:
    """Return the curvature that the hidden direction has if features are as the study says."""
    along = bread.vectors[:, int(np.argmin(bread.values))]
    products = moments(task.encoding, law_of(task.encoding))
    of_a_record = float(bread.vectors[0] ** 2 @ bread.values)
    return of_a_record * float(along @ products @ along)


def _undeclared(task: RenewableTask, found: Solution) -> str:
    """Name the features in hidden directions of which a new study could say more; empty: none.

    Which of them fill little of their range is hidden with them.
    """
    features, turned = task.encoding.features, found.bread.turned
    along = turned >= ALONG * turned.max() if found.bread.hidden else found.unknown
    named = (along & found.unknown)[1:]
    names, of_levels = np.array(task.study.coefficient_names[1:]), task.encoding.levels
    numbers = [name for name in names[named & ~of_levels].tolist() if name in features]
    levels = names[named & of_levels].tolist()
    told = []
    if numbers:
        told.append(
            f"if values of {' or of '.join(numbers)} fill little of its range, a transform or a "
            "narrower range (data.features) gives intervals sooner"
        )
    if levels:
        told.append(
            f"if nearly all records have {' or '.join(levels)}, make it the base level, and if "
            "hardly any have, leave it out (data.features)"
        )
    return f". In a new study: {'; '.join(told)}" if told else ""


def _ways(task: RenewableTask, share: float, lacking: float, slots: int) -> str:
    """Say what would make the last unknown direction known: each of these alone.

    How many more records is said by the progress, which knows what else is missing.
    """
    estimator, epsilon = task.study.estimator, task.study.privacy.epsilon or 0.0
    missing = progress_of([Condition(share, "")], slots).records
    ways = []
    if missing is not None and missing < 1e9:
        ways.append("more records")
    ways.append(f"estimator.ridge = {rounded_up(estimator.ridge + lacking):g}")
    times = 1 / share if share > 0 else math.inf
    if epsilon * times <= 20:
        ways.append(f"privacy.epsilon = {rounded_up(epsilon * times):g}")
    each = "Each of these alone" if len(ways) > 1 else "This"
    return (
        f"{each} would do, about: {', or '.join(ways)}. A ridge pulls coefficients towards "
        "0, and intervals are then of these; `veilstream replay --ridge` shows what it would do"
    )


def rounded_up(number: float) -> float:
    """Return a positive number with two digits, rounded up."""
    step = 10.0 ** (math.floor(math.log10(number)) - 1)
    return float(f"{math.ceil(number / step - 1e-9) * step:.3g}")


#: How intervals are made.
INTERVAL = "sandwich, released middle"
#: The same where the middle is not released.
BETWEEN = "sandwich, spread between releases"
STILL_MOVING = (
    "the estimate still moves away from the models at which clients computed these releases, so "
    "intervals would not cover the value that it moves to: wait for more releases at newer models"
)


def estimate_private(
    task: RenewableTask, sums: PrivateState | Weighed, missing: int = 0
) -> Estimate:
    """Estimate the coefficients of a private study.

    sums: The sums of all partitions: one state, or those of the buckets with their weights.
    missing: Releases of all clients that never came, below numbers that did.

    Returns: Without intervals until the status is "ready". A deterministic function of the sums.
    """
    parts: Weighed = [(1.0, sums)] if isinstance(sums, PrivateState) else sums
    weights = _weights(task, parts)
    if any(state.epochs for _, state in parts):
        return _later(task, parts, weights, missing)
    return _at_start(task, parts, weights)


def _at_start(task: RenewableTask, parts: Weighed, weights: tuple[float, float]) -> Estimate:
    """Return the estimate while there are releases of the public start alone."""
    releases = sum(state.releases for _, state in parts)
    slots = sum(state.slots for _, state in parts)
    first = _start_curvature(task) * np.eye(task.size) + np.diag(task.penalty)
    status, reason = _start_status(task, releases)
    starts = [(w, float(state.start[-1])) for w, state in parts]
    once, twice = (sum(w**power * count for w, count in starts) for power in (1, 2))
    return Estimate(
        coefficients=_first_coefficients(task, parts, first, weights),
        weights=weights,
        status=status,
        reason=reason,
        records=slots,
        releases=releases,
        condition=condition_number(first) if releases else None,
        effective_records=task.slots * effective(once, twice),
        interval=INTERVAL,
        progress=progress_of([enough_releases(task, releases)], slots),
    )


def _solve(task: RenewableTask, parts: Weighed, missing: int) -> Solution:
    """Return the coefficients from as many of the newest epochs as make the error smaller.

    Where that leaves fewer releases than intervals need, from as many as give intervals, if any do.
    """
    best, ended = None, False
    for sums in newest_sums(task, parts, missing):
        found = solved(task, sums)
        ended = ended or (best is not None and (
            found.error > best.error or (found.moving and not best.moving)
        ))  # fmt: skip
        if best is None or not ended:
            best = found
        elif best.sums.releases >= releases_needed(task):
            break
        elif not found.unknown.all() and all(c.holds for c in _conditions(task, parts, found)):
            return found
    if best is None:
        raise ValueError("there is no release behind the public start")
    return best


def _later(
    task: RenewableTask, parts: Weighed, weights: tuple[float, float], missing: int
) -> Estimate:
    """Return the estimate from releases that hold a curvature."""
    slots = sum(state.slots for _, state in parts)
    found = _solve(task, parts, missing)
    sums, bread = found.sums, found.bread
    unknown = known_curvature(task, found, slots)
    conditions = [*_conditions(task, parts, found), unknown]
    lacking = [one.reason for one in conditions if not one.holds and one is not unknown]
    if found.unknown.all() and conditions[0].holds and conditions[1].holds:
        # then that is why models are far, and the estimate moves
        lacking = [unknown.reason]
    status: Status = "ready"
    reason, covariance, privacy, kept = unknown.reason, None, None, None
    if lacking or found.unknown.all() or found.covariance is None:
        status, reason = "warming", [*lacking, unknown.reason][0]
    else:
        hides = np.diag(found.hidden)
        covariance, privacy = found.covariance + hides, found.privacy + hides
        for matrix in (covariance, privacy):
            matrix[found.unknown, :] = matrix[:, found.unknown] = math.nan
        if task.penalty.any():
            kept = np.where(found.unknown, math.nan, kept_of(bread.matrix, task.penalty))
    details: dict[str, Any] = {}
    if found.design_effect is not None:
        details["design_effect"] = found.design_effect
    dispersion = None
    if sums.slopes is not None:
        carried = float(sums.curvature[0, 0]) / sums.slots
        dispersion = dispersion_of(sums.slopes / sums.slots, carried)
        if dispersion is not None:
            error = _noise_of_dispersion(task, sums, dispersion, carried)
            details["dispersion_error"] = task.response_scale[1] ** 2 * error
    return Estimate(
        coefficients=found.coefficients,
        covariance=covariance,
        privacy_covariance=privacy,
        weights=weights,
        status=status,
        reason=reason,
        records=slots,
        releases=sum(state.releases for _, state in parts),
        condition=condition_number(bread.matrix),
        floored=bread.hidden,
        effective_records=sums.records,
        dispersion=dispersion,
        interval=INTERVAL if sums.middle is not None else BETWEEN,
        kept=kept,
        progress=progress_of(conditions, slots),
        details=details,
    )


def _noise_of_dispersion(
    task: RenewableTask, sums: Sums, dispersion: float, carried: float
) -> float:
    """Return the standard deviation that noise alone gives a dispersion."""
    channels = task.update_channels
    deviations = [part.standard_deviation for part in (channels.counts, channels.curvature) if part]
    squared, curved = (math.sqrt(sums.noise) / sums.slots * one for one in deviations)
    return math.hypot(squared, dispersion * curved) / carried


def _conditions(task: RenewableTask, parts: Weighed, found: Solution) -> list[Condition]:
    """Return what intervals need beside known coefficients."""
    least = found.least_error
    near = min(1.0, least / found.bent) if found.bent > 0 else 1.0
    return [
        enough_releases(task, found.sums.releases),
        both_classes(task, parts),
        # old models leave the newest epochs when as many records again have come
        Condition(1 - 0.5 * found.moving, STILL_MOVING),
        Condition(min(near, 1.0 if found.bent < least else 0.999), FAR),
    ]


def _start_curvature(task: RenewableTask) -> float:
    """Return a public guess of the mean curvature in every direction, for the first step only."""
    return task.loss.start_curvature * task.norm_bound**2 / task.size


def _first_coefficients(
    task: RenewableTask, parts: Weighed, bread: Matrix, weights: tuple[float, float]
) -> Vector:
    """Return what the releases at the start say: one step, or a regression without features.

    A step with a guessed curvature may put records beyond the threshold of their slopes, where no
    curvature leads back; the best intercept alone needs no guess, and keeps them near.
    """
    total = total_of(parts, lambda state: state.start)
    slots = float(total[-1]) * task.slots
    if slots == 0:
        return task.first_model.coefficients
    mean = total[:-1] * task.initial_channels.gradient.unit / slots
    if isinstance(task.loss, Regression):
        squares = sum(w * w * float(state.start[-1]) for w, state in parts)
        spread = math.sqrt(squares) * task.initial_channels.gradient.standard_deviation / slots
        alone = task.loss.intercept_of(float(mean[0]), spread)
        return np.append(alone, np.zeros(task.size - 1))
    score = weights[0] * mean[: task.size] + weights[1] * mean[task.size :]
    return -shortened(task, solve_positive(bread, score))


def _weights(task: RenewableTask, parts: Weighed) -> tuple[float, float]:
    if not task.classes or task.update_channels.counts is None:
        return 1.0, 1.0
    unit = task.update_channels.counts.unit
    counts = total_of(parts, lambda state: state.counts)
    return class_weights(float(counts[0]) * unit, float(counts[1]) * unit, task.largest_weight)


def _start_status(task: RenewableTask, releases: int) -> tuple[Status, str]:
    if releases == 0:
        return "empty", "no release has come yet"
    needed = task.study.stream.publish.releases
    if releases >= needed:
        return "starting", (
            f"{releases} releases have come, all from before the first model; intervals need some "
            "that are taken at a model"
        )
    return "starting", (
        f"the first model goes out after {needed} releases (stream.publish.releases); {releases} "
        "have come. It goes out sooner if one client has used up its stream.max_in_flight_windows"
    )
