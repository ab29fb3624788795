"""Renewable estimation, as the registry knows it, and noised releases of it at the worker.

When intervals of a study come, how long they are, and what to set before it runs: from public
numbers alone, as a stream of the public population is followed by formulas (`expected`). Derived in
docs/methods/planning.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import numpy as np
from scipy.special import ndtri

from pipeline.errors import PrivacyError
from pipeline.estimators.estimate import Estimate
from pipeline.estimators.forgetting import EFFECTIVE_HALF_LIVES, counted_slots
from pipeline.losses import Bends
from pipeline.methods.base import Method, Plan, Proposal, Server, Spec
from pipeline.methods.renewable import spec as keys
from pipeline.methods.renewable.client import RenewableTask
from pipeline.methods.renewable.estimate import estimate_private, releases_needed, rounded_up
from pipeline.methods.renewable.expected import (
    MOST_RECORDS,
    Windows,
    expect,
    noise_size,
    reference_of,
)
from pipeline.methods.renewable.open import RECORDS_PER_COEFFICIENT, OpenServer
from pipeline.methods.renewable.solution import (
    FARTHEST,
    FLOOR,
    KNOWN,
    LONGEST_STEP,
    SURELY_KNOWN,
    noise_of,
)
from pipeline.methods.renewable.state import GROUPS, PrivateBatch, PrivateState, Shape, Weighed
from pipeline.privacy import memory
from pipeline.release.budget import most_releases
from pipeline.release.layout import Rows
from pipeline.release.policy import growth_of
from pipeline.release.task import RecordBounds
from pipeline.study.model import Study
from pipeline.study.reference import Seen, rarer_share, typical_norm_bound
from pipeline.study.versions import replace_keys
from pipeline.types import Integers, Vector

#: A plan has a class count so many standard deviations of its noise above 0: 98 of 100 streams are
#: then past what intervals need.
COUNTS_PLANNED = 5.0
#: No study is told to give its class counts more of its budget.
MOST_COUNTS = 0.3
#: First windows that a design chooses from, beginning at one of them.
SIZES, MIDDLE = (25, 50, 100, 250, 500, 1000, 2000), 3
#: A share of the gradient that is tried beside the usual one, where slope and curvature are largest
#: together, and by how much it must shorten intervals.
GRADIENT, GAIN = 0.8, 0.95
#: Windows of a client from which on noise that remembers costs less than it gains.
WORTH = 4
#: Most estimates rest on so much of what is behind the public start at least: the releases at the
#: first models are left out.
COUNTED = 0.9
#: A larger ridge leaves little of the coefficients.
LARGEST_RIDGE, LEAST_RIDGE = 0.3, 1e-3
#: A ridge that no slope notices of which records say anything.
NEXT_TO_NONE = 1e-5
#: The mean score of a record at a minimum that was found is below this.
SOLVED = 1e-6
#: The size for which a ridge is enough where a study of gdwd says neither: windows, and clients.
USUAL_WINDOWS, USUAL_CLIENTS = 160, 8


def plan(task: RenewableTask, records: int, clients: int, seen: Seen | None = None) -> Plan:
    """As `Method.plan`."""
    ridge, counted = task.study.estimator.ridge, counted_slots(task.study, records)
    reference = reference_of(task, seen)
    penalised = reference.curvature + np.diag(task.penalty)
    kept = _kept(task, ridge, seen) if ridge else None
    if not task.study.noised:
        inverse = np.linalg.pinv(penalised, hermitian=True)
        half = _half(task, np.diag(inverse @ reference.middle @ inverse) / counted)
        needed = RECORDS_PER_COEFFICIENT * task.size
        return Plan(latest=needed, usual=needed, usual_half=half, kept=kept)
    most = min(counted_slots(task.study, MOST_RECORDS), MOST_RECORDS)
    found = expect(task, counted, clients, most, seen)
    # without both classes there are no intervals at all
    classes = records_until(task, rarer_share(task.study), clients)
    first, lasting, whole = (
        int(MOST_RECORDS) if after is None else max(math.ceil(after), classes or 0)
        for after in (found.first, found.lasting, found.whole)
    )
    names = np.array(task.study.coefficient_names)[found.late]
    sure = rounded_up(_sure_ridge(task, counted, clients))
    return Plan(
        latest=max(_known_by_ridge(task, clients, ridge), classes or 0) if ridge else None,
        usual=lasting,
        usual_half=_half(task, found.variances),
        classes=classes,
        kept=kept,
        first=first,
        whole=whole,
        late=tuple(names.tolist()),
        ridge=None if ridge or task.size == 1 else sure,
        kept_by_ridge=_kept(task, sure, seen),
    )


def _kept(task: RenewableTask, ridge: float, seen: Seen | None) -> float | None:
    """Return which share of its size a slope keeps with a ridge: the median, None if one has none.

    By two fits to the population: where features go together, or a ridge takes much, the curvature
    at one of them says too much. `NEXT_TO_NONE` stands for no ridge, so that a fit exists where
    columns never vary, are alike, or separate the classes.
    """
    fits = []
    for one in (ridge, NEXT_TO_NONE):
        other = RenewableTask(replace_keys(task.study, {"estimator.ridge": one}))
        ref = reference_of(other, seen)
        slopes = ref.weights * task.loss.slope(ref.design @ ref.target, ref.responses)
        score = ref.design.T @ (ref.mass * slopes) + other.penalty * ref.target
        # one class alone has no best coefficients
        fits.append(
            ref.target[1:] if np.abs(score).max() < SOLVED else np.full(task.size - 1, np.nan)
        )
    with_it, without = np.abs(fits)
    # a column that never varies has no slope in either
    told = without > 1e-6 * without.max(initial=0.0)
    shares = with_it[told] / without[told]
    found = float(np.median(np.minimum(shares, 1.0))) if len(shares) else math.nan
    return None if math.isnan(found) else found


def _half(task: RenewableTask, variances: Vector) -> float:
    """Return half the length of a slope's interval, in the unit of estimates."""
    reach = float(ndtri((1 + task.study.estimator.level) / 2)) * task.response_scale[1]
    own = variances[1:] if len(variances) > 1 else variances
    return reach * math.sqrt(float(np.median(own)))


def _known_by_ridge(task: RenewableTask, clients: int, ridge: float) -> int:
    """Return after how many records the ridge alone makes slopes known, to 1 %."""
    return _least(
        lambda records: _sure_ridge(task, records, clients) <= ridge,
        Windows(task, clients).begun + task.slots,
    )


def _sure_ridge(task: RenewableTask, records: float, clients: int) -> float:
    """Return the ridge that makes all slopes known after so many records, whatever features are.

    Features that fill nothing of their ranges have the noise alone for a curvature. Of d - 1 slopes
    its least eigenvalue is near -sqrt(2 (d - 1) v) = -s sqrt(2 - 2 / d).
    """
    lowered = math.sqrt(2 - 2 / task.size)
    return (KNOWN + lowered) * noise_size(task, records, clients) / COUNTED


def records_until(task: RenewableTask, share: float, clients: int) -> int | None:
    """Return after how many records a class of this share stands out of its noise, to 1 %.

    None: the study's releases hold no class counts.
    """
    if task.update_channels.counts is None or not task.classes:
        return None

    def stands_out(records: float) -> bool:
        return share * records >= COUNTS_PLANNED * _noise_of_counts(task, records, clients)

    return _least(stands_out, Windows(task, clients).begun)


def _least(is_enough: Callable[[float], bool], begin: float) -> int:
    """Return the least number of records from `begin` on that is enough, to 1 %."""
    few = enough = float(begin)
    while not is_enough(enough):
        few, enough = enough, 2 * enough
        if enough > MOST_RECORDS:
            return int(MOST_RECORDS)
    while enough > 1.01 * few:
        middle = math.sqrt(few * enough)
        few, enough = (few, middle) if is_enough(middle) else (middle, enough)
    return math.ceil(enough)


def _noise_of_counts(task: RenewableTask, records: float, clients: int) -> float:
    windows, channel = Windows(task, clients), task.update_channels.counts
    later = windows.noise(0.0, windows.released(records)) if records > windows.begun else 0.0
    deviation = 0.0 if channel is None else channel.standard_deviation
    return deviation * math.sqrt(windows.begun / task.slots + later)


def default_ridge(task: RenewableTask) -> float:
    """Return the ridge of a study of gdwd that says none: at a usual size noise alone is less.

    Features that fill a part of their ranges do the rest. From the study file alone, so that
    clients and workers have the same.
    """
    return _as_ridge(KNOWN * noise_size(task, USUAL_WINDOWS * task.slots, USUAL_CLIENTS))


def _as_ridge(needed: float) -> float:
    return min(max(rounded_up(needed), LEAST_RIDGE), LARGEST_RIDGE)


@dataclass(frozen=True, slots=True)
class _Tried:
    """Keys that a design may set, the study with them, and what is expected of it."""

    changes: dict[str, Any]
    task: RenewableTask
    outlook: Plan

    @property
    def worth(self) -> tuple[float, float]:
        """How soon intervals stay, and how long they are: less is better."""
        half = self.outlook.usual_half
        return self.outlook.usual, math.inf if half is None else half


def propose(study: Study, records: int, clients: int, seen: Seen | None = None) -> Proposal:
    """As `Method.propose`."""
    if not study.noised:
        return Proposal({}, {})

    def tried(before: Mapping[str, Any], **more: Any) -> _Tried:
        changes = {**before, **{key.replace("__", "."): value for key, value in more.items()}}
        task = RenewableTask(replace_keys(study, changes))
        if study.estimator.loss == "gdwd":
            # it follows from the others
            changes["estimator.ridge"] = _as_ridge(_sure_ridge(task, records, clients))
            task = RenewableTask(replace_keys(study, changes))
        return _Tried(changes, task, plan(task, records, clients, seen))

    task, reasons = RenewableTask(study), dict[str, str]()
    typical = {"estimator.norm_bound": "typical"}
    reasons["estimator.norm_bound"] = (
        f"{typical_norm_bound(task.encoding):g} instead of {task.longest:.3g}, the longest "
        "that the ranges allow: 99 % of records that are distributed as declared are "
        "shorter, and all noise grows with it"
    )
    reasons["window.records"] = (
        "slots of the first windows, with which intervals come soonest. Windows grow by a tenth "
        "of what their client has released, as the noise of a release does not depend on its size"
    )
    best, at = tried(typical, window__records=SIZES[MIDDLE]), MIDDLE
    for step in (1, -1):
        # the other way only where this one is worse at once
        while at * step >= MIDDLE * step and 0 <= at + step < len(SIZES):
            found = tried(typical, window__records=SIZES[at + step])
            if found.worth >= best.worth:
                break
            best, at = found, at + step
    windows = Windows(best.task, clients)
    if best.task.remembers and windows.number(windows.released(records)) < WORTH:
        best = tried(best.changes, privacy__noise_memory=0)
        reasons["privacy.noise_memory"] = (
            f"a client has fewer than {WORTH} windows, and noise that remembers pays only from "
            "there on"
        )
    if (counts := _counts_needed(best.task, records / 2, clients)) > best.task.split.counts:
        given = min(rounded_up(counts), MOST_COUNTS)
        best = tried(best.changes, privacy__split={"counts": given})
        reasons["privacy.split"] = (
            f"counts have more than usual, so that a class with {rarer_share(study):.3g} of the "
            f"records stands out of their noise{'' if counts <= MOST_COUNTS else ', not in time'}"
        )
    elif not isinstance(best.task.loss, Bends) and best.task.split.middle is not None:
        # slope and curvature are largest together, so that one has what the other has not
        found = tried(best.changes, privacy__split={"gradient": GRADIENT})
        gained = (found.outlook.usual_half or 0.0) / (best.outlook.usual_half or math.inf)
        if gained < GAIN and found.outlook.usual <= records / 2:
            best = found
            reasons["privacy.split"] = f"intervals are {1 - gained:.0%} shorter at this size"
    if "estimator.ridge" in best.changes:
        reasons["estimator.ridge"] = (
            "gdwd needs one: the smallest that makes slopes known at this size, whatever features "
            "are like; its intervals are of penalised coefficients"
        )
    return Proposal(best.changes, reasons)


def _counts_needed(task: RenewableTask, records: float, clients: int) -> float:
    """Return the share of the budget with which both counts stand out after so many records."""
    if not task.classes or task.update_channels.counts is None:
        return 0.0
    noise = COUNTS_PLANNED * _noise_of_counts(task, max(records, task.slots), clients)
    lacking = noise / (rarer_share(task.study) * max(records, task.slots))
    # shares are of the squared budget where the noise is Gaussian, of epsilon where it is Laplace
    return task.split.counts * lacking ** (2 if task.budget.mechanism.order == 2 else 1)


#: Said of a study without noise.
OPEN = "anything: releases without noise can hold any sums, at any point"


def influence(task: RenewableTask, clients: int, usual: int) -> dict[str, object]:
    """Return what one release can do at most, for `study check`.

    clients: How many there are, all alike: a release holds a tenth of its client's slots.
    usual: As of the plan.
    """
    if not task.study.noised:
        return {"one_release_moves_at_most": OPEN}
    return {
        "one_release_moves_at_most": largest_move(task, counted_slots(task.study, usual), clients),
        "after": (
            f"{usual:,} records, when intervals usually stay; where windows grow, so does what "
            "one of them holds, and it moves as far later"
        ),
        "in": (
            "how far all coefficients move together (the root of their squared changes, for "
            "features encoded to [-1, 1]), by the worst numbers that a client can invent in the "
            f"largest window that it may have by then as one of {clients}"
        ),
        "against_it": (
            "admit only clients that you trust (trust.releases), watch each client's share "
            "(`veilstream page`), and take out a client that has lied (`veilstream state forget`); "
            "window.growth = 0 keeps all windows small, with more noise in all"
        ),
    }


def largest_move(task: RenewableTask, slots: float, clients: int) -> float:
    """Return how far one noised release can move the coefficients: the length of that.

    In a state whose mean curvature is that of the reference and whose models are at the estimate:
    tickets keep a client from a model of its own. There theta = t - M^-1 S with S = 0, and one
    release more makes it t - (M + E)^-1 D. Where a release of n among N slots may hold g and a in
    an entry, |D| <= (sqrt(d) + 1) g / N, as the mean of the others is within g / n, and |E| <= (d a
    + n |M|) / N. The least eigenvalue of M + E is above that of M less |E|, and above the floor of
    the bread; and no step is longer than `LONGEST_STEP` allows, or `FARTHEST`.

    slots: N, those of that release included; > 0.

    Returns: In encoded units of the features, and the response's own.
    """
    channels, size, windows = task.update_channels, task.size, Windows(task, clients)
    window = min(float(windows.next_window(slots)), slots)
    gradient, curvature = (
        part.largest(int(window)) * part.unit / slots
        for part in (channels.gradient, channels.curvature)
        if part is not None
    )
    ref = reference_of(task)
    least = float(ref.values[0]) - size * curvature - window / slots * float(ref.values[-1])
    noise = noise_of(task).of_curvature(max(windows.noise(0.0, slots), 1.0), slots)
    weight = float(ref.curvature[0, 0]) + curvature
    reach = (math.sqrt(size) + 1) * gradient / max(least, FLOOR * noise)
    usual = FARTHEST * math.sqrt(weight / (max(least, 0.0) + SURELY_KNOWN * noise))
    return min(reach, max(LONGEST_STEP / task.norm_bound, usual)) * task.response_scale[1]


def facts(task: RenewableTask, clients: int, usual: int) -> dict[str, object]:
    """Return what `study check` prints of a study: noise, and what one release can do."""
    found: dict[str, object] = {}
    if task.study.noised and task.update_channels.curvature is not None:
        found["noise"] = {
            "gradient_sd": task.update_channels.gradient.standard_deviation,
            "curvature_sd": task.update_channels.curvature.standard_deviation,
            **_also(task),
            "start_gradient_sd": task.initial_channels.gradient.standard_deviation,
            "order_of_norm": task.budget.mechanism.order,
            "norm_bound": task.norm_bound,
            "l1_bound": task.bounds.l1,
            **({"largest_weight": task.largest_weight} if task.classes else _slopes(task)),
        }
    found["influence"] = influence(task, clients, usual)
    if task.study.estimator.forgetting is not None:
        found["forgetting"] = _forgetting(task)
    return found


def _forgetting(task: RenewableTask) -> dict[str, object]:
    """Return on how many records an estimate rests at most, and whether intervals can come."""
    forgetting = task.study.estimator.forgetting
    if forgetting is None:
        return {}
    most = EFFECTIVE_HALF_LIVES * forgetting.half_life
    found: dict[str, object] = {"half_life": forgetting.half_life, "of": forgetting.of}
    if forgetting.of == "seconds":
        return {**found, "effective_records_at_most": f"those of {most:.4g} seconds"}
    needed = RECORDS_PER_COEFFICIENT * task.size
    if task.study.noised:
        needed = releases_needed(task) * task.slots
    found["effective_records_at_most"] = most
    if most < needed:
        found["advice"] = (
            f"too short for intervals: these need the weight of {needed:,} new record slots, and "
            f"old ones fade too soon; set half_life = {math.ceil(needed / EFFECTIVE_HALF_LIVES)} "
            "or more"
        )
    return found


def _also(task: RenewableTask) -> dict[str, object]:
    """Return the noise of what is released beside gradient and curvature, by its name."""
    channels, counted = task.update_channels, "counts" if task.classes else "squared_slopes"
    also = {"middle": channels.middle, counted: channels.counts}
    return {f"{name}_sd": part.standard_deviation for name, part in also.items() if part}


def _slopes(task: RenewableTask) -> dict[str, object]:
    """Return the bound of a regression's slopes, in the response's unit, and what it does."""
    unit, bound = task.response_scale[1], task.loss.slope_bound
    found: dict[str, object] = {"unit": unit}
    if task.loss.name != "linear":
        return {
            **found,
            "largest_mean": bound,
            "advice": "the noise grows with data.response.max: lower it to the largest count that "
            "matters; larger counts are clipped to it",
        }
    return {
        **found,
        "residual_bound": unit * bound,
        "advice": (
            "the gradient's noise is proportional to estimator.residual_bound, that of the "
            "squared slopes to its square. Lower it towards the largest residual that you "
            "expect, judged by what is public, but not far below the spread of the response, or "
            "the first models swing. Larger residuals count as if they had this size"
        ),
    }


class PrivateServer(Server[PrivateState]):
    """As `methods.base.Server`, for integer sums."""

    def __init__(self, task: RenewableTask) -> None:
        self._task, self._shape = task, Shape.of(task)
        self._start, self._later = (task.layout.columns(version) for version in (0, 1))

    def empty(self) -> PrivateState:
        return PrivateState(self._shape)

    def read(self, fields: dict[str, bytes]) -> PrivateState:
        return PrivateState.decode(self._shape, fields)

    def fold(self, state: PrivateState, rows: Rows) -> None:
        """As `Server.fold`; any order gives the same bits."""
        state.fold(self.batch(rows))

    def batch(self, rows: Rows) -> PrivateBatch:
        """Return releases part by part, those at the start apart."""
        at_start, slots = rows["version"] == 0, self._task.slots
        some = bool(at_start.any())
        later = rows[~at_start] if some else rows
        first, sums = rows["sums"][at_start], later["sums"]
        counted, nothing = _part(sums, self._later.get("counts")), sums[:, :0]
        # a regression has no classes: what it counts is the sum of squared slopes
        classes, squares = (counted, nothing) if self._shape.classes else (nothing, counted)
        if some:
            classes = np.concatenate([_part(first, self._start.get("counts")), classes])
        # where windows and noise are alike, releases say nothing of their place
        placed = self._task.remembers
        count = len(later)
        return PrivateBatch(
            counts=classes,
            start=first[:, self._start["gradient"]],
            slots=self.slots(rows),
            epochs=memory.epochs_of(later["model_watermark"], slots),
            expansion=later["point"],
            gradient=sums[:, self._later["gradient"]],
            curvature=sums[:, self._later["curvature"]],
            middle=_part(sums, self._later.get("middle")),
            squares=squares,
            blocks=later["records"].astype(np.int64) // slots,
            numbers=later["number"] if placed else np.zeros(count, dtype=np.int64),
            starts=later["starts"] if placed else np.zeros((count, memory.EPOCHS), dtype=np.int64),
            # any bits of a digest will do
            groups=(later["client"][:, 0] % GROUPS).astype(np.int64),
        )

    def estimate(self, parts: Weighed, partitions: Sequence[int], *, missing: int = 0) -> Estimate:
        del partitions
        return estimate_private(self._task, parts, missing)

    def start_is_over(self, states: Sequence[PrivateState], furthest: int) -> bool:
        """As `Server.start_is_over`.

        The first model is one step from zero, and its noise falls with the releases behind it only.
        Later estimates leave it slowly in directions whose curvature is below its noise, so a first
        model of one or two releases can spoil a long stream. Waiting costs nothing: releases at the
        start carry less noise than later ones. Nobody is held up either: it is over as soon as one
        client has sent all that `stream.max_in_flight_windows` or `trust.largest_share` allows.
        """
        stream, share = self._task.study.stream, most_releases(self._task.study, 0)
        held_at = [most for most in (self._task.most_at_start, share) if most]
        if any(state.epochs for state in states) or any(furthest >= most for most in held_at):
            return True
        return sum(int(state.start[-1]) for state in states) >= stream.publish.releases


def _part(rows: Integers, columns: slice | None) -> Integers:
    return rows[:, :0] if columns is None else rows[:, columns]


#: Raised where the meaning of noised releases at the public start changes, by loss; else 1.
START_SEMANTICS = {"logistic": 2}
#: The same where the curvature of a loss does, with privacy off as well.
CURVATURE_SEMANTICS = {"gdwd": 4}

#: What the operator of an open study of a loss whose curvature jumps should know.
EARLY = (
    "estimator.loss: the sums keep curvatures that were taken at early models. Intervals of gdwd "
    "can then be too short if features have few levels: 95 % intervals have covered 86 %. Fit the "
    "records again at the end (`veilstream fit --without-privacy`)"
)


class Renewable(Method[RenewableTask]):
    """Releases of sums at the newest model, with or without noise."""

    spec = Spec(
        kind="renewable",
        title="renewable estimation from releases",
        gives="small windows, and with them early intervals",
        losses=("gdwd", "logistic", "linear", "poisson"),
    )

    def grows(self, study: Study) -> bool:
        """As `Method.grows`: where releases have noise."""
        return study.noised

    remembers = staticmethod(keys.remembers)

    def resolve(self, study: Study, given: Container[str]) -> Study:
        """As `Method.resolve`: of gdwd a ridge, with noise one for which intervals come; else none.

        A ridge would pull coefficients towards 0, and the estimate needs none where records say
        enough.
        """
        if "ridge" in given or (study.estimator.loss == "gdwd" and not study.noised):
            return study
        ridge = 0.0
        if study.estimator.loss == "gdwd":
            try:
                ridge = default_ridge(self.task(study))
            except PrivacyError:
                # a budget that cannot be kept is refused where a task is made
                return study
        estimator = msgspec.structs.replace(study.estimator, ridge=ridge)
        return msgspec.structs.replace(study, estimator=estimator)

    def enter(self, meaning: dict[str, Any], study: Study) -> None:
        if study.noised and study.estimator.loss in START_SEMANTICS:
            meaning["start"] = START_SEMANTICS[study.estimator.loss]
        if study.noised or study.estimator.loss in CURVATURE_SEMANTICS:
            meaning["secant"] = CURVATURE_SEMANTICS.get(study.estimator.loss, 1)
        if study.noised:
            meaning["privacy"]["split"] = keys.split_of(study, RecordBounds(study).loss).shares
        grown = growth_of(study, grows=study.noised)
        if grown.divisor:
            meaning["growth"] = [grown.divisor, grown.most]
        if keys.remembers(study) and study.privacy.noise_memory != 0:
            meaning["memory"] = memory.WINDOWS

    task = RenewableTask

    def server(self, task: RenewableTask) -> PrivateServer | OpenServer:
        """As `Method.server`, for a study with noise or without."""
        return PrivateServer(task) if task.study.noised else OpenServer(task)

    def plan(
        self, task: RenewableTask, records: int, clients: int, seen: Seen | None = None
    ) -> Plan:
        estimator = task.study.estimator
        kept = not task.study.noised and estimator.forgetting is None
        jumps = estimator.loss in keys.JUMPS and estimator.smoothing is None
        found = plan(task, records, clients, seen)
        return replace(
            found,
            facts=facts(task, clients, found.usual),
            warnings=(EARLY,) if kept and jumps else (),
        )

    propose = staticmethod(propose)


METHOD = Renewable()
