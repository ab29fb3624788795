"""From a study to the public rule of its path: steps, their caps, burn-in and start.

The paper, ldp-sgd, gives no defaults: these are this project's, from simulations. The caps are
derived in `steps`.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from pipeline.methods.ldp_sgd.path import Rule
from pipeline.methods.ldp_sgd.steps import StepRule, noise_cap, staleness_cap
from pipeline.methods.ldp_sgd.task import GradientTask
from pipeline.study.reference import moments

#: Public guesses by loss: mean curvature of a record, decay of the steps, and how far noise may
#: move a linear predictor: asymmetric losses are biased sooner.
CURVATURE = {"linear": 0.8, "expectile": 0.4, "logistic": 0.2}
ALPHA = {"linear": 0.501}
KAPPA = {"linear": 0.5}
#: The largest eigenvalue of the mean curvature is guessed as this multiple of a record's curvature.
LARGEST_SHARE = 2.0
#: No stream has more records than this.
NEVER = 2.0**53


@lru_cache(maxsize=32)
def rule_of(task: GradientTask) -> Rule:
    """Return the rule of a study's path."""
    path, loss = task.path, task.study.estimator.loss
    curvature = mean_curvature(task)
    noise = task.record_noise if task.study.noised else 0.0
    cap = min(
        noise_cap(path.kappa or KAPPA.get(loss, 0.25), curvature, task.loss.slope_bound, noise,
                  task.size),
        lateness_cap(task),
    )  # fmt: skip
    return Rule(
        steps=StepRule(path.eta0, path.alpha or ALPHA.get(loss, 0.6), cap),
        burn_in=path.burn_in,
        start=np.zeros(task.size)
        if task.partition_strategy == "shared"
        else task.first_model.coefficients,
        full=path.full,
        extra=task.extra_numbers,
        shared=task.partition_strategy == "shared",
    )


def lateness_cap(task: GradientTask) -> float:
    """Return the largest step at which late models do no harm."""
    behind = allowed_lateness(task) + task.slots
    return staleness_cap(LARGEST_SHARE * mean_curvature(task), behind)


def mean_curvature(task: GradientTask) -> float:
    """Return the guess of a record's mean curvature, its weight included.

    Features of unit variance have |(1, x)|^2 of about d: a clipping norm below the root of d
    leaves weights of about clipping_norm^2 / d, and A of about that much of H E[x x']. Features of
    a smaller variance have larger weights, so that the caps err towards short steps; at the default
    the noise cap depends on no variance, since noise moves x' theta by tr(A^-1 E[x x']).
    """
    guess = task.path.curvature or CURVATURE[task.study.estimator.loss]
    return guess * min(1.0, task.clipping_norm**2 / task.size)


def largest_move(task: GradientTask, rule: Rule) -> float:
    """Return how far one release can move a coefficient, whatever numbers a client sends.

    The worker refuses numbers that no honest client can send, and steps never grow.
    """
    return task.slots * min(rule.steps.eta0, rule.steps.cap) * task.largest_gradient


def slowest(task: GradientTask) -> float:
    """Return the guess of the smallest eigenvalue of the mean curvature.

    For independent features, uniform on their public ranges and over their levels: with `scaling =
    "unit"` the variance of a number is 1/3. Features that are correlated, or use a part of their
    range, have a smaller one.
    """
    products = moments(task.encoding, "uniform")
    guess = task.path.curvature or CURVATURE[task.study.estimator.loss]
    weight = min(1.0, task.clipping_norm**2 / float(np.trace(products)))
    return guess * weight * float(np.linalg.eigvalsh(products)[0])


def records_to_mix(rule: Rule, curvature: float, needed: float = 50.0) -> int:
    """Return after about how many records lambda_min times the sum of steps reaches `needed`.

    The sum is that of the stretch which counts: all but the first eighth, or the burn-in.

    Parameters
    ----------
    curvature
        A guess of the smallest eigenvalue of the mean curvature.
    """

    def mixed(records: float) -> float:
        left_out = max(rule.burn_in, records / 8)
        return curvature * (_moved(rule.steps, records) - _moved(rule.steps, left_out))

    most = 2.0
    while mixed(most) < needed and most < NEVER:
        most *= 2
    least = most / 2
    while most - least > 1e-3 * most:
        middle = (least + most) / 2
        least, most = (least, middle) if mixed(middle) >= needed else (middle, most)
    return math.ceil(most)


def _moved(steps: StepRule, records: float) -> float:
    """Return about the sum of the first steps: they stand at the cap, then fall as a power."""
    flat = max(math.pow(steps.eta0 / steps.cap, 1 / steps.alpha), 1.0)
    if records <= flat:
        return min(steps.cap, steps.eta0) * records
    fall = 1 - steps.alpha
    rest = steps.eta0 * (math.pow(records, fall) - math.pow(flat, fall)) / fall
    return min(steps.cap, steps.eta0) * flat + rest


def allowed_lateness(task: GradientTask) -> int:
    """Return how many records late a model may be before the steps are too long for it."""
    behind = task.path.behind
    return 2 * task.slots * task.study.stream.publish.releases if behind is None else behind
