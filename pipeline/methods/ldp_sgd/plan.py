"""What locally private gradients need and promise, and when intervals can be hoped for.

For features uniform on their public ranges: of a path no number of records makes intervals certain,
since no ridge holds directions in which records say nothing. Sizes follow from the limit law and
the caps of `step_rule`; the bias of curved losses was fitted to simulations.

The length of an interval that knows all but the noise is the limit law's, A^-1 M A^-1 / n, with the
curvature of the public reference population and the noise of the study's own gradients. What a path
does not know as well makes real ones longer. Source: ldp-sgd, limit; the population is this
project's guess.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import scipy
from scipy.special import chdtri, ndtri

from pipeline.errors import NumericError
from pipeline.estimators.population import default_truth
from pipeline.linalg import sandwich
from pipeline.methods.base import Exact, Plan, Proposal
from pipeline.methods.ldp_sgd.client import GradientTask
from pipeline.methods.ldp_sgd.plug_in import known_widths
from pipeline.methods.ldp_sgd.readiness import (
    GROWTH,
    LARGEST_ERROR,
    RECORDS_PER_COEFFICIENT,
    largest_distance,
)
from pipeline.methods.ldp_sgd.spec import INTERVALS
from pipeline.methods.ldp_sgd.state import LARGEST, SgdPath
from pipeline.methods.ldp_sgd.step_rule import (
    CURVATURE,
    MIXED,
    USEFUL,
    Rule,
    Scaling,
    allowed_lateness,
    lateness_cap,
    mean_curvature,
    mean_products,
    planned_share,
    rule_of,
    scaling_of,
    slowest,
)
from pipeline.study.model import Study
from pipeline.study.reference import Seen
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


def slope_error(task: GradientTask, records: int, products: Matrix | None = None) -> float:
    """Return the standard error of a slope from the noise alone, in the response's unit.

    products: As `exact` takes them.
    """
    noise = task.record_noise if task.study.noised else 0.0
    return task.response_scale[1] * noise / (slowest(task, products) * math.sqrt(records))


#: Windows that are tried, the largest first: a larger one is cheaper, and makes models later.
WINDOWS = (500, 250, 100, 50, 20, 10)
#: Windows that a client should have, so that it hears of many models.
LEAST = 20
#: What a smaller window must save, as a share of the records that intervals need.
WORTH = 0.05


def plan(task: GradientTask, records: int, clients: int, seen: Seen | None = None) -> Plan:
    """As `Method.plan`, whatever the number of clients."""
    del clients
    rule, curvature, scaling = rule_of(task), mean_curvature(task), scaling_of(task)
    products = None if seen is None else seen.products
    first, usual, _ = due(task) if products is None else due_with(task, products)
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
    error = slope_error(task, records, products)
    return Plan(
        latest=None,
        usual=usual,
        first=first if first < usual else None,
        usual_half=float(ndtri((1 + task.study.estimator.level) / 2)) * error,
        why=_narrower(task),
        exact=exact(task, records, products),
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


def propose(study: Study, records: int, clients: int, seen: Seen | None = None) -> Proposal:
    """As `Method.propose`."""
    most = max(records // (LEAST * clients), WINDOWS[-1])
    best, least = WINDOWS[-1], float("inf")
    for window in WINDOWS:
        if window > most:
            continue
        task = GradientTask(replace_keys(study, {"window.records": window}))
        found = (due(task) if seen is None else due_with(task, seen.products))[1]
        if found < (1 - WORTH) * least:
            best, least = window, found
    reason = (
        f"the largest window with {LEAST} of each client whose models are not so late that steps "
        "must be shorter"
    )
    return Proposal({"window.records": best}, {"window.records": reason})


#: No stream has more records than this; a matrix is made anew less often.
NEVER, DOUBLINGS = 2.0**53, 53
#: Shares of streams with an interval: where half have had one, at the usual size, at the latest.
SHARES = (0.4, 0.8, 0.99)
#: Records at which a plan looks at a path, and how many are between.
LOOKS = np.exp(np.arange(0.0, math.log(NEVER), 1 / 32))
GAPS = np.diff(LOOKS, prepend=0.0)


def records_needed(task: GradientTask) -> int:
    """Return after about how many records four of five streams have intervals."""
    return due(task)[1]


@lru_cache(maxsize=64)
def due(task: GradientTask) -> tuple[int, ...]:
    """As `due_with` the products of `mean_products`."""
    return due_with(task, mean_products(task))


def due_with(task: GradientTask, products: Matrix) -> tuple[int, ...]:
    """Return after about how many records each of `SHARES` of all streams has intervals.

    products: E[x x'] of (1, features), shape (d, d).

    By the rule of `readiness`, of a path that is linear and whose matrix is about A^-1: what its
    predictors are off goes down by a step times itself and noise, whose mean square is spread over
    streams about as a chi-square of d degrees.
    """
    rule, scaling = rule_of(task), scaling_of(task)
    if scaling is None:
        return (records_to_mix(rule, slowest(task, products)),) * len(SHARES)
    curvature, middle = _moments(task, products)
    off = task.first_model.coefficients - default_truth(task)
    start = float(off @ curvature @ off) / curvature[0, 0]
    noise = float(np.trace(np.linalg.solve(curvature, middle))) / curvature[0, 0]
    rates = _rates(rule, scaling, curvature)
    gone, squares, square = np.cumsum(rates * GAPS), np.zeros(len(LOOKS)), 0.0
    for now, left in enumerate(np.exp(-2 * rates * GAPS)):
        squares[now] = square = square * left + rates[now] / 2 * (1 - left)
    found: list[int] = []
    chances, most = chdtri(task.size, 1 - np.array(SHARES)), largest_distance(task)
    for now, begin in enumerate(np.searchsorted(LOOKS, rule.burn_in + _mark(rule, LOOKS / 8))):
        weights = GAPS[begin : now + 1]
        counted = float(weights.sum())
        if counted < RECORDS_PER_COEFFICIENT * task.size:
            continue
        left = np.exp(gone[begin] - gone[begin : now + 1])
        # about the mean of the stretch, whose noise is also the path's
        own = weights @ squares[begin : now + 1] + 2 * (weights @ left) / counted - 1
        rest = noise * task.classes + start * math.exp(-2 * gone[begin]) * (weights @ left**2)
        spread = noise * own * chances[len(found) :] / task.size
        near = np.count_nonzero((spread + rest) / counted <= most)
        if near and _shown(scaling, curvature, middle, counted):
            found += [math.ceil(LOOKS[now])] * near
        if len(found) == len(SHARES):
            break
    return (*found, *[int(NEVER)] * (len(SHARES) - len(found)))


def _rates(rule: Rule, scaling: Scaling, curvature: Matrix) -> Vector:
    """Return what share of the way to the minimum a step goes at each look, shape (looks,)."""
    mark, steps = _mark(rule, LOOKS), rule.steps
    known = (mark > 0) & (mark >= (scaling.hidden(1) / USEFUL) ** 2)
    flattest = scipy.linalg.eigh(curvature, scaling.reference, eigvals_only=True)[0]
    trace = np.where(known, np.trace(np.linalg.inv(curvature)), np.trace(scaling.first()))
    cap = np.minimum(steps.cap, scaling.cloud / trace)
    rates: Vector = np.where(known, 1.0, flattest) * np.minimum(
        steps.eta0 * LOOKS**-steps.alpha, cap
    )
    return rates


def _mark(rule: Rule, records: Vector) -> Vector:
    """Return how many records the newest copy of the sums has, as `Rule.unit` says."""
    units = np.maximum(records - rule.burn_in, 0.0) // rule.unit
    marks: Vector = rule.unit * (np.exp2(np.floor(np.log2(units + 1))) - 1)
    return marks


def _shown(scaling: Scaling, curvature: Matrix, middle: Matrix, records: float) -> bool:
    """Whether a released curvature shows the length of every second slope's interval."""
    # the largest eigenvalue of a random matrix is about so far from its bound
    largest = (1 - len(curvature) ** (-2 / 3)) * scaling.hidden(records)
    flatter = curvature - largest * scaling.reference
    known = scaling.known(flatter, records)
    widths = known_widths(known, middle, scaling.noise / math.sqrt(records))
    return float(np.median(widths[1:] if len(widths) > 1 else widths)) <= LARGEST_ERROR


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
    steps = np.minimum(rule.steps.eta0 * LOOKS**-rule.steps.alpha, rule.steps.cap)
    moved = np.cumsum(steps * GAPS)
    left_out = np.interp(np.maximum(rule.burn_in, LOOKS / 8), LOOKS, moved)
    return math.ceil(float(np.interp(MIXED / curvature, moved - left_out, LOOKS, right=NEVER)))


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
    latest = due(task) if products is None else due_with(task, products)
    ready = max(math.ceil(LATEST * enough), latest[-1])
    return Exact(widest / math.sqrt(records), wanted, enough, ready)


def _deviations(task: GradientTask, products: Matrix) -> Vector:
    """Return deviations of the coefficients after one record, in encoded units, shape (d,)."""
    deviations: Vector = np.sqrt(np.diag(sandwich(*_moments(task, products))))
    return deviations


def _moments(task: GradientTask, products: Matrix) -> tuple[Matrix, Matrix]:
    """Return the mean curvature of a record, and the middle of its noised gradient, (d, d) each."""
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
    return curvature, own + noise**2 * np.eye(task.size)


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
