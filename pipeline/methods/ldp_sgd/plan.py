"""Plans: what locally private gradients need, and when intervals can be hoped for.

What locally private gradients need and promise, for `study check` and the doctor.

For features uniform on their public ranges: of a path no number of records makes intervals certain,
since no ridge holds directions in which records say nothing. Sizes follow from the limit law and
the caps of `steps`; the bias of curved losses was fitted to simulations.

After how many records intervals can be hoped for, from public numbers alone.

How long an interval is that knows all but the noise, before any record is seen.

It is the limit law's, A^-1 M A^-1 / n, with the curvature of the public reference population and
the noise of the study's own gradients. What a path does not know as well makes real ones longer.
Source: ldp-sgd, limit; the population is this project's guess.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import scipy
from scipy.special import ndtri

from pipeline.errors import NumericError
from pipeline.linalg import sandwich
from pipeline.methods.base import Exact, Plan, Proposal
from pipeline.methods.ldp_sgd.client import GradientTask
from pipeline.methods.ldp_sgd.path import LARGEST, SgdPath
from pipeline.methods.ldp_sgd.plug_in import width_errors
from pipeline.methods.ldp_sgd.readiness import (
    GROWTH,
    LARGEST_ERROR,
    RECORDS_PER_COEFFICIENT,
    WANDERING,
    largest_cloud,
)
from pipeline.methods.ldp_sgd.spec import INTERVALS
from pipeline.methods.ldp_sgd.step_rule import (
    CURVATURE,
    MIXED,
    Rule,
    StepRule,
    allowed_lateness,
    guess_of,
    lateness_cap,
    mean_curvature,
    mean_products,
    planned_share,
    rule_of,
    scaling_of,
    slowest,
)
from pipeline.study.model import Study
from pipeline.study.versions import replace_keys
from pipeline.types import Matrix, Vector

#: Where noise moves predictors by more than this share of their scale, formulas do not hold.
LARGEST_CLOUD = 1.0


def _warnings(task: GradientTask) -> tuple[str, ...]:
    """Warn where one release can stop a path."""
    moved = largest_move(task, rule_of(task))
    if moved <= LARGEST:
        return ()
    said = (
        f"one release can move the path by {moved:.3g}, and beyond {LARGEST:g} the path stands "
        "still: lower estimator.path.eta0 or kappa, or any client can stop it"
    )
    return (said,)


def _facts(task: GradientTask) -> dict[str, object]:
    """Return the steps, and when intervals can be hoped for."""
    rule = rule_of(task)
    each = "in each partition, " if task.partition_strategy == "pooled" else ""
    return {
        "path": {
            "eta0": rule.steps.eta0,
            "alpha": rule.steps.alpha,
            "largest_step": largest_step(rule),
            "burn_in": rule.burn_in,
            "clipping_norm": task.clipping_norm,
            "intervals": ", ".join(task.path.intervals),
            "shown": task.path.shown,
            **_released(task),
            "largest_slope": task.loss.slope_bound,
            "models_late_at_most": allowed_lateness(task),
            "one_release_moves_at_most": largest_move(task, rule),
            "records_for_intervals": records_needed(task),
            "and": f"{each}if features are independent and uniform on their public ranges; "
            f"{_narrower(task)}",
        }
    }


def _released(task: GradientTask) -> dict[str, object]:
    """Return the noise of each part of a release, and what it costs a record where they are many.

    That of a matrix is on its diagonal; beside it, the deviation is 1 / sqrt 2 of it.
    """
    if not task.study.noised:
        return {"gradient_sd": 0.0}
    channels, found = task.channels, dict[str, object]()
    named = (("gradient", channels.gradient), ("curvature", channels.curvature),
             ("products", channels.products))  # fmt: skip
    for name, part in named:
        if part is not None:
            found[f"{name}_sd"] = part.standard_deviation
    if task.study.privacy.personal is not None:
        deviations = [part.standard_deviation for part in task.record_channels]
        found["gradient_sd"] = task.record_noise
        found["gradient_sd_by_level"] = dict(zip(task.budget.levels, deviations, strict=True))
    costs = task.budget.allocation.items() if len(task.budget.allocation) > 1 else ()
    unit = "mu" if task.budget.mechanism.order == 2 else "epsilon"
    return found | {f"{name}_{unit}": cost for name, cost in costs}


def slope_error(task: GradientTask, records: int) -> float:
    """Return the standard error of a slope from the noise alone, in the response's unit."""
    noise = task.record_noise if task.study.noised else 0.0
    return task.response_scale[1] * noise / (slowest(task) * math.sqrt(records))


#: Windows that are tried, the largest first: a larger one is cheaper, and makes models later.
WINDOWS = (500, 250, 100, 50, 20, 10)
#: Windows that a client should have, so that it hears of many models.
LEAST = 20
#: What a smaller window must save, as a share of the records that intervals need.
WORTH = 0.05


def plan(task: GradientTask, records: int, clients: int) -> Plan:
    """As `Method.plan`, whatever the number of clients."""
    del clients
    rule, curvature, scaling = rule_of(task), mean_curvature(task), scaling_of(task)
    trace = task.size if scaling is None else float(np.trace(scaling.first()))
    noise = task.record_noise if task.study.noised else 0.0
    # the step that an average over the path sees: its mean over the last seven eighths
    cap = SgdPath(rule).steps.cap
    step = float(np.mean(np.minimum(rule.steps.eta0 * np.linspace(records / 8, records, 64)
                                    ** -rule.steps.alpha, cap)))  # fmt: skip
    cloud = step * noise**2 * trace / (2 * curvature)
    logistic = task.loss.name == "logistic"
    scaled = cloud if logistic else cloud / task.loss.slope_bound**2
    released = "curvature" in INTERVALS.get(task.path.shown, "")
    sooner = []
    if scaled > LARGEST_CLOUD:
        sooner.append("a smaller estimator.path.kappa: its steps are too long for so much noise")
    if cap == lateness_cap(task) < rule.steps.eta0:
        sooner.append(
            "newer models, which allow longer steps: fewer window.records or "
            "stream.publish.releases, or what estimator.path.behind can truly be"
        )
    error = slope_error(task, records)
    return Plan(
        latest=None,
        usual=records_needed(task),
        usual_half=float(ndtri((1 + task.study.estimator.level) / 2)) * error,
        why=_narrower(task),
        exact=exact(task, records),
        slope_error=error,
        cloud=scaled,
        # what a released curvature moves is straightened as well
        relative_bias=GROWTH * cloud if logistic and not released else None,
        sooner=tuple(sooner),
        remedies=("",),
        bias_remedies=(_against_bias(task),),
        facts=_facts(task),
        warnings=_warnings(task),
    )


def _against_bias(task: GradientTask) -> str:
    """Say what brings estimates to their target."""
    shorter = "shorter steps: estimator.path.kappa or eta0 halved, which takes more records"
    if task.loss.name != "linear":
        return f"{shorter}; or a larger privacy.epsilon: a curved loss is biased by the noise"
    return f"{shorter}; or a later estimator.path.burn_in"


def _narrower(task: GradientTask) -> str:
    """Say what other records need, by the formula of exact intervals where the noise rules."""
    classes = ""
    if task.classes:
        classes = (
            "; classes of 15:85 need four times as many records as even ones; a plan assumes the "
            "share that data.response.typical says, or p if estimator.path.curvature is 0.8 p (1 - "
            "p)"
        )
    return (
        "a feature that uses half of its range needs 16 times as many records, and one that uses "
        f"a tenth 10,000 times as many{classes}; check old records: `veilstream study check "
        "STUDY --sample FILE`"
    )


def propose(study: Study, records: int, clients: int) -> Proposal:
    """As `Method.propose`."""
    most = max(records // (LEAST * clients), WINDOWS[-1])
    best, least = WINDOWS[-1], float("inf")
    for window in WINDOWS:
        if window > most:
            continue
        task = GradientTask(replace_keys(study, {"window.records": window}))
        found = records_needed(task)
        if found < (1 - WORTH) * least:
            best, least = window, found
    reason = (
        f"the largest window with {LEAST} of each client whose models are not so late that steps "
        "must be shorter"
    )
    return Proposal({"window.records": best}, {"window.records": reason})


#: No stream has more records than this; a matrix is made anew less often.
NEVER, DOUBLINGS = 2.0**53, 53


def records_needed(task: GradientTask, products: Matrix | None = None) -> int:
    """Return after about how many records there are intervals.

    products: E[x x'] of (1, features), shape (d, d); by default that of `mean_products`.
    """
    rule, scaling = rule_of(task), scaling_of(task)
    products = mean_products(task) if products is None else products
    if scaling is None:
        return records_to_mix(rule, slowest(task, products))
    noise = task.record_noise if task.study.noised else 0.0
    inverse = np.asarray(
        np.linalg.inv(planned_share(task) * guess_of(task, products)), dtype=np.float64
    )
    # a record's gradient has about its largest slope where there is no noise
    own = task.loss.slope_bound**2 * products
    middle = own + noise**2 * np.eye(task.size)
    error = float(width_errors(inverse, middle, scaling.noise).max())
    known = (error / LARGEST_ERROR) ** 2
    average = float(np.trace(inverse @ middle @ inverse @ products))
    near = WANDERING * average / largest_cloud(task)
    counted = max(known, near, float(rule.unit), RECORDS_PER_COEFFICIENT * task.size)
    return math.ceil(rule.burn_in + counted)


def largest_step(rule: Rule) -> float:
    """Return the largest step with the matrix that a path begins with."""
    return min(rule.steps.eta0, SgdPath(rule).steps.cap)


def largest_move(task: GradientTask, rule: Rule) -> float:
    """Return how far one release can move a coefficient, whatever numbers a client sends.

    The worker refuses numbers that no honest client can send. The matrix is that which the path
    begins with, or what released curvatures, true or forged, make of it when it is made anew.
    """
    path, scaling = SgdPath(rule), rule.scaling
    reach = min(path.steps.eta0, path.steps.cap)
    if scaling is not None and path.matrix is not None:
        reach *= float(np.abs(path.matrix).sum(axis=1).max())
        for doublings in range(1, DOUBLINGS):
            records = rule.unit * ((1 << doublings) - 1)
            if not scaling.is_guess(records + task.slots):
                step = rule.steps.step(rule.burn_in + records + 1)
                reach = max(reach, scaling.reach(records + task.slots, step))
    return task.slots * reach * task.largest_gradient


def records_to_mix(rule: Rule, curvature: float) -> int:
    """Return after about how many records lambda_min times the sum of steps reaches `MIXED`.

    The sum is that of the stretch which counts: all but the first eighth, or the burn-in.

    curvature: A guess of the smallest eigenvalue of the mean curvature.
    """

    def mixed(records: float) -> float:
        left_out = max(rule.burn_in, records / 8)
        return curvature * (_moved(rule.steps, records) - _moved(rule.steps, left_out))

    most = 2.0
    while mixed(most) < MIXED and most < NEVER:
        most *= 2
    least = most / 2
    while most - least > 1e-3 * most:
        middle = (least + most) / 2
        least, most = (least, middle) if mixed(middle) >= MIXED else (middle, most)
    return math.ceil(most)


def _moved(steps: StepRule, records: float) -> float:
    """Return about the sum of the first steps: they stand at the cap, then fall as a power."""
    flat = max(math.pow(steps.eta0 / steps.cap, 1 / steps.alpha), 1.0)
    if records <= flat:
        return min(steps.cap, steps.eta0) * records
    fall = 1 - steps.alpha
    grown = math.log(records / flat)
    if fall > 0:
        grown = (math.pow(records, fall) - math.pow(flat, fall)) / fall
    rest = steps.eta0 * grown
    return min(steps.cap, steps.eta0) * flat + rest


#: An interval that reaches further to either side says little: in logits, or in deviations of the
#: residuals.
HALF = 0.5
#: Residual bounds are so many deviations of the residuals, if chosen as recommended.
HUBER = 1.345
#: Normal residuals stand for all by so many quantiles.
POINTS = 2000
#: Estimates are ready at the latest at so many times the records of an exact interval of `HALF`.
LATEST = 2.0


def exact(task: GradientTask, records: int, products: Matrix | None = None) -> Exact:
    """Return how long an exact interval is at so many records, and when it says something.

    products: E[x x'] of (1, features), shape (d, d); by default that of `mean_products`.

    Raises NumericError if they hold no information of a coefficient.
    """
    loss, unit = task.loss, task.response_scale[1]
    wanted = HALF
    if not task.classes:
        # the largest curvature is how much an asymmetric loss weighs one side at most
        wanted *= unit * loss.slope_bound / loss.curvature_bound / HUBER
    found = mean_products(task) if products is None else products
    if np.linalg.matrix_rank(found, hermitian=True) < task.size:
        # what is left of such a combination is rounding, and its inverse any number
        raise NumericError("some feature follows from the others")
    reach = float(scipy.special.ndtri((1 + task.study.estimator.level) / 2))
    widest = unit * reach * float(_deviations(task, found).max())
    enough = math.ceil((widest / wanted) ** 2)
    ready = max(math.ceil(LATEST * enough), records_needed(task, found))
    return Exact(widest / math.sqrt(records), wanted, enough, ready)


def _deviations(task: GradientTask, products: Matrix) -> Vector:
    """Return deviations of the coefficients after one record, in encoded units, shape (d,)."""
    weight = min(1.0, task.clipping_norm**2 / float(np.trace(products)))
    tau = task.study.estimator.tau if task.loss.name == "expectile" else 0.5
    if task.classes:
        # their slopes are as spread as they are curved
        curved = square = CURVATURE["logistic"]
    else:
        curved, square = of_residuals(tau or 0.5)
        curved *= task.loss.curvature_bound
    curvature = planned_share(task) * (task.path.curvature or curved) * weight * products
    noise = task.record_noise if task.study.noised else 0.0
    own = square * (weight * task.loss.slope_bound) ** 2 * products
    middle = own + noise**2 * np.eye(task.size)
    deviations: Vector = np.sqrt(np.diag(sandwich(curvature, middle)))
    return deviations


@lru_cache(maxsize=8)
def of_residuals(tau: float) -> tuple[float, float]:
    """Return mean curvature and mean square slope of an expectile, over their largest values.

    Of normal residuals about their expectile of level tau, in (0, 1), cut at `HUBER` deviations.
    """
    normal = scipy.special.ndtri((np.arange(POINTS) + 0.5) / POINTS)

    def slopes(centre: float) -> tuple[Vector, Vector]:
        off = normal - centre
        sides = np.where(off > 0, tau, 1 - tau) / max(tau, 1 - tau)
        return sides, sides * np.clip(off / HUBER, -1, 1)

    centre = scipy.optimize.brentq(lambda at: float(slopes(at)[1].sum()), -10, 10)
    sides, found = slopes(centre)
    curved = sides * (np.abs(normal - centre) <= HUBER)
    return float(curved.mean()), float((found**2).mean())
