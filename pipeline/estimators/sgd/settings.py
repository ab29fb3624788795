"""From a study to the public rule of its path: steps, their caps, burn-in and start.

Source: ldp-sgd, defaults; caps: spec (c) and (f).
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from pipeline.errors import ConfigError
from pipeline.estimators.sgd.path import Rule
from pipeline.estimators.sgd.steps import StepRule, noise_cap, staleness_cap
from pipeline.local.plan import Plan
from pipeline.study.path import Path

#: Public guesses by loss: mean curvature of a record, decay of the steps, and how far noise may
#: move a linear predictor: asymmetric losses are biased sooner.
CURVATURE = {"linear": 0.8, "expectile": 0.4, "logistic": 0.2}
ALPHA = {"linear": 0.501}
KAPPA = {"linear": 0.5}
#: The largest eigenvalue of the mean curvature is guessed as this multiple of a record's curvature.
LARGEST_SHARE = 2.0


@lru_cache(maxsize=32)
def rule_of(plan: Plan) -> Rule:
    """Return the rule of a study's path.

    Raises
    ------
    ConfigError
        If the study is of another kind.
    """
    path, loss = _path(plan), plan.study.estimator.loss
    curvature = mean_curvature(plan)
    noise = plan.step.gradient.standard_deviation if plan.study.noised else 0.0
    cap = min(
        noise_cap(path.kappa or KAPPA.get(loss, 0.25), curvature, plan.loss.slope_bound, noise,
                  plan.size),
        staleness_cap(LARGEST_SHARE * curvature, allowed_lateness(plan) + plan.slots),
    )  # fmt: skip
    return Rule(
        steps=StepRule(path.eta0, path.alpha or ALPHA.get(loss, 0.6), cap),
        burn_in=path.burn_in,
        start=np.zeros(plan.size) if plan.several == "shared" else plan.first_model.coefficients,
        full=path.full,
        beside=plan.beside,
        shared=plan.several == "shared",
    )


def mean_curvature(plan: Plan) -> float:
    """Return the guess of a record's mean curvature, its weight included.

    Features of unit variance have |(1, x)|^2 of about d: a radius below the root of d leaves
    weights of about radius^2 / d, and A of about that much of H E[x x'].
    """
    guess = _path(plan).curvature or CURVATURE[plan.study.estimator.loss]
    return guess * min(1.0, plan.radius**2 / plan.size)


def largest_move(plan: Plan, rule: Rule) -> float:
    """Return how far one release can move a coefficient, whatever numbers a client sends.

    The worker refuses numbers that no honest client can send, and steps never grow.
    """
    return plan.slots * min(rule.steps.eta0, rule.steps.cap) * plan.largest_gradient


def records_to_mix(rule: Rule, curvature: float, needed: float = 50.0) -> int:
    """Return after about how many records lambda_min times the sum of steps reaches `needed`.

    Parameters
    ----------
    curvature
        A guess of the smallest eigenvalue of the mean curvature.
    """
    eta0, alpha, cap = rule.steps.eta0, rule.steps.alpha, rule.steps.cap
    wanted = needed / curvature
    # steps stand at the cap up to record `flat`, and fall as a power from there
    flat = max(math.pow(eta0 / cap, 1 / alpha), 1.0)
    if wanted <= flat * cap:
        return rule.burn_in + math.ceil(wanted / cap)
    rest = wanted - flat * min(cap, eta0)
    last = math.pow(rest * (1 - alpha) / eta0 + flat ** (1 - alpha), 1 / (1 - alpha))
    return rule.burn_in + math.ceil(last)


def allowed_lateness(plan: Plan) -> int:
    """Return how many records late a model may be before the steps are too long for it."""
    behind = _path(plan).behind
    return 2 * plan.slots * plan.study.stream.publish.releases if behind is None else behind


def _path(plan: Plan) -> Path:
    if plan.study.path is None:
        raise ConfigError('estimator.kind: only "ldp-sgd" moves a path')
    return plan.study.path
