"""When intervals of a renewable study come, how long they are, and what to set before it runs.

From public numbers alone: a stream of the public population is followed by formulas (`expected`).
Derived in docs/methods/planning.md.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from scipy.special import ndtri

from pipeline.errors import ConfigError, PrivacyError
from pipeline.estimators.estimate import median_kept
from pipeline.estimators.forgetting import counted_slots
from pipeline.methods.facts import Design, Outlook
from pipeline.methods.renewable.expected import (
    MOST_RECORDS,
    Windows,
    expect,
    noise_size,
    reference_of,
    start_slots,
)
from pipeline.methods.renewable.open_estimate import RECORDS_PER_COEFFICIENT
from pipeline.methods.renewable.solution import KNOWN, noise_of
from pipeline.methods.renewable.task import RenewableTask
from pipeline.study import Study, with_keys
from pipeline.study.reference import rarer_share, typical_norm_bound
from pipeline.types import Vector

#: A plan has a class count so many standard deviations of its noise above 0: 98 of 100 streams are
#: then past what intervals need.
COUNTS_PLANNED = 5.0
#: No study is told to give its class counts more of its budget.
MOST_COUNTS = 0.3
#: First windows that a design chooses from.
SIZES = (50, 100, 250, 500, 1000, 2000)
#: A share of the gradient that is tried beside the usual one, where slope and curvature are largest
#: together, and by how much it must shorten intervals.
GRADIENT, GAIN = 0.8, 0.95
#: Windows of a client from which on noise that remembers costs less than it gains.
WORTH = 4
#: A larger ridge leaves little of the coefficients.
LARGEST_RIDGE, LEAST_RIDGE = 0.3, 1e-3
#: The size for which a ridge is enough where a study of gdwd says neither: windows, and clients.
USUAL_WINDOWS, USUAL_CLIENTS = 160, 8


def outlook(task: RenewableTask, records: int, clients: int) -> Outlook:
    """As `Method.outlook`."""
    ridge, counted = task.study.estimator.ridge, counted_slots(task.study, records)
    reference = reference_of(task)
    penalised = reference.curvature + np.diag(task.penalty)
    kept = median_kept(penalised, task.penalty) if ridge else None
    if not task.study.noised:
        inverse = np.linalg.pinv(penalised, hermitian=True)
        half = _half(task, np.diag(inverse @ reference.middle @ inverse) / counted)
        needed = RECORDS_PER_COEFFICIENT * task.size
        return Outlook(needed, needed, None, half, kept=kept)
    most = min(counted_slots(task.study, MOST_RECORDS), MOST_RECORDS)
    found = expect(task, counted, clients, most)
    # without both classes there are no intervals at all
    classes = records_until(task, rarer_share(task.study), clients)
    first, lasting, whole = (
        int(MOST_RECORDS) if after is None else max(math.ceil(after), classes or 0)
        for after in (found.first, found.lasting, found.whole)
    )
    names = np.array(task.study.coefficient_names)[found.late]
    sure = _up(KNOWN * noise_size(task, counted, clients))
    held = np.append(0.0, np.full(task.size - 1, sure))
    return Outlook(
        latest=max(_known_by_ridge(task, clients, ridge), classes or 0) if ridge else None,
        usual=lasting,
        longest=None,
        usual_half=_half(task, found.variances),
        classes=classes,
        kept=kept,
        first=first,
        whole=whole,
        late=tuple(names.tolist()) if whole > first else (),
        ridge=None if ridge or task.size == 1 else sure,
        kept_by_ridge=median_kept(reference.curvature + np.diag(held), held),
    )


def half_length(task: RenewableTask, records: float, clients: int) -> float:
    """Return half the length of a slope's interval after so many, where curvature is known.

    In the unit of estimates.
    """
    reference, windows = reference_of(task), Windows(task, clients)
    slots = windows.released(records - start_slots(task, clients))
    noise = noise_of(task).of_gradient(max(windows.noise(0.0, slots), 1.0), slots)
    meat = reference.middle / slots + noise**2 * np.eye(task.size)
    bread = (reference.vectors / np.maximum(reference.values, 1e-12)) @ reference.vectors.T
    return _half(task, np.diag(bread @ meat @ bread))


def _half(task: RenewableTask, variances: Vector) -> float:
    """Return half the length of a slope's interval, in the unit of estimates."""
    reach = float(ndtri((1 + task.study.estimator.level) / 2)) * task.response_scale[1]
    own = variances[1:] if len(variances) > 1 else variances
    return reach * math.sqrt(float(np.median(own)))


def _known_by_ridge(task: RenewableTask, clients: int, ridge: float) -> int:
    """Return after how many records the ridge alone makes slopes known, to 5 %."""
    records = float(start_slots(task, clients) + task.slots)
    while KNOWN * noise_size(task, records, clients) > ridge and records < MOST_RECORDS:
        records *= 1.05
    return math.ceil(min(records, MOST_RECORDS))


def records_until(task: RenewableTask, share: float, clients: int) -> int | None:
    """Return after how many records a class of this share stands out of its noise, to 5 %.

    None: the study's releases hold no class counts.
    """
    if task.update_channels.counts is None or not task.classes:
        return None
    records = float(start_slots(task, clients))
    while share * records < COUNTS_PLANNED * _noise_of_counts(task, records, clients):
        records *= 1.05
        if records > MOST_RECORDS:
            break
    return math.ceil(records)


def _noise_of_counts(task: RenewableTask, records: float, clients: int) -> float:
    channel, begun = task.update_channels.counts, start_slots(task, clients)
    windows = Windows(task, clients)
    noise = windows.noise(0.0, windows.released(records - begun)) if records > begun else 0.0
    deviation = 0.0 if channel is None else channel.standard_deviation
    return deviation * math.sqrt(begun / task.slots + noise)


def default_ridge(task: RenewableTask) -> float:
    """Return the ridge of a study of gdwd that says none: what its intervals need at a usual size.

    From the study file alone, so that clients and workers have the same.
    """
    return _needed_ridge(task, USUAL_WINDOWS * task.slots, USUAL_CLIENTS)


def _needed_ridge(task: RenewableTask, records: float, clients: int) -> float:
    """Return the least ridge that makes slopes known after so many slots, whatever features are."""
    size = noise_size(task, records, clients)
    return min(max(_up(KNOWN * size), LEAST_RIDGE), LARGEST_RIDGE)


def design(study: Study, records: int, clients: int) -> Design:
    """As `Method.design`."""
    task = RenewableTask(study)
    if not study.noised:
        return Design({}, {})
    changes: dict[str, object] = {"estimator.norm_bound": "typical"}
    reasons = {
        "estimator.norm_bound": (
            f"{typical_norm_bound(task.encoding):g} instead of {task.longest:.3g}, the longest "
            "that the ranges allow: 99 % of records that are distributed as declared are "
            "shorter, and all noise grows with it"
        ),
    }
    plan = _Choice(study, changes, records, clients)
    plan = _with_window(plan)
    reasons["window.records"] = (
        "slots of the first windows, with which intervals come soonest. Windows grow by a tenth "
        "of what their client has released, as the noise of a release does not depend on its size"
    )
    if plan.task.remembers and plan.windows < WORTH:
        plan = plan.with_changes({"privacy.noise_memory": 0})
        reasons["privacy.noise_memory"] = (
            f"a client has fewer than {WORTH} windows, and noise that remembers pays only from "
            "there on"
        )
    plan, why = _with_split(plan)
    if why:
        reasons["privacy.split"] = why
    if study.estimator.loss == "gdwd":
        reasons["estimator.ridge"] = (
            "gdwd needs one: the smallest that makes slopes known beside the noise at this size; "
            "its intervals are of penalised coefficients"
        )
    return Design(plan.changes, reasons)


class _Choice:
    """A study with some keys set, and what is expected of it."""

    def __init__(
        self, study: Study, changes: dict[str, object], records: int, clients: int
    ) -> None:
        self._study, self._records, self._clients = study, records, clients
        task = RenewableTask(with_keys(study, changes, name="the design"))
        if study.estimator.loss == "gdwd":
            # it follows from the others
            ridge = _needed_ridge(task, records, clients)
            changes = {**changes, "estimator.ridge": ridge}
            task = RenewableTask(with_keys(study, changes, name="the design"))
        self.changes, self.task = changes, task
        self.outlook = outlook(task, records, clients)

    @property
    def windows(self) -> float:
        """How many windows each client has, those at the start not counted."""
        windows, later = Windows(self.task, self._clients), self._records
        return windows.number(windows.released(later - start_slots(self.task, self._clients)))

    def with_changes(self, more: dict[str, object]) -> _Choice:
        """Return the same with other keys, too."""
        return _Choice(self._study, {**self.changes, **more}, self._records, self._clients)

    def counts_needed(self) -> float:
        """Return the share of the budget with which both counts stand out at half the records."""
        task, records = self.task, max(self._records / 2, float(self.task.slots))
        if not task.classes or task.update_channels.counts is None:
            return 0.0
        noise = COUNTS_PLANNED * _noise_of_counts(task, records, self._clients)
        lacking = noise / (rarer_share(self._study) * records)
        # shares are of the squared budget where the noise is Gaussian, of epsilon where Laplace
        return task.split.counts * lacking ** (2 if task.budget.mechanism.order == 2 else 1)


def _with_window(plan: _Choice) -> _Choice:
    """Return the plan with first windows with which intervals last soonest."""

    def tried(place: int) -> _Choice:
        return plan.with_changes({"window.records": SIZES[place]})

    middle = SIZES.index(250)
    best, at = tried(middle), middle
    for step in (1, -1):
        while 0 <= at + step < len(SIZES):
            found = tried(at + step)
            if _worth(found) >= _worth(best):
                break
            best, at = found, at + step
        if at != middle:
            break
    return best


def _worth(plan: _Choice) -> tuple[float, float]:
    half = plan.outlook.usual_half
    return plan.outlook.usual, math.inf if half is None else half


def _with_split(plan: _Choice) -> tuple[_Choice, str]:
    """Return the plan with other shares of the budget, where these are worth it, and why."""
    counts = plan.counts_needed()
    if counts > plan.task.split.counts:
        given = min(_up(counts), MOST_COUNTS)
        in_time = "in time" if counts <= MOST_COUNTS else "though not in time"
        why = (
            f"counts have more than usual, so that a class with "
            f"{rarer_share(plan.task.study):.3g} of the records stands out of their noise, "
            f"{in_time}"
        )
        return plan.with_changes({"privacy.split": {"counts": given}}), why
    together = len(plan.task.secant.joint_bounds()[0]) == 1
    if together and plan.task.split.middle is not None:
        try:
            found = plan.with_changes({"privacy.split": {"gradient": GRADIENT}})
        except (ConfigError, PrivacyError):
            return plan, ""
        halves = [one.outlook.usual_half or 0.0 for one in (found, plan)]
        if halves[0] < GAIN * halves[1] and found.outlook.usual <= found._records / 2:
            why = f"intervals are {1 - halves[0] / halves[1]:.0%} shorter at this size"
            return found, why
    return plan, ""


def _up(number: float) -> float:
    """Return a number with two digits, rounded up."""
    step = 10.0 ** (math.floor(math.log10(number)) - 1)
    return float(f"{math.ceil(number / step - 1e-9) * step:.3g}")
