"""After how many records intervals can be hoped for, from public numbers alone."""

from __future__ import annotations

import math

import numpy as np

from pipeline.methods.ldp_sgd.path import SgdPath
from pipeline.methods.ldp_sgd.plug_in import width_errors
from pipeline.methods.ldp_sgd.readiness import (
    LARGEST_ERROR,
    RECORDS_PER_COEFFICIENT,
    WANDERING,
    largest_cloud,
)
from pipeline.methods.ldp_sgd.settings import (
    MIXED,
    Rule,
    guess_of,
    mean_products,
    planned_share,
    rule_of,
    scaling_of,
    slowest,
)
from pipeline.methods.ldp_sgd.steps import StepRule
from pipeline.methods.ldp_sgd.task import GradientTask
from pipeline.types import Matrix

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
