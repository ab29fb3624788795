"""The rule of thumb beside a simulation: how many records intervals take, how far noise bends.

For features uniform on their public ranges. Source: ldp-sgd, sizes; curved losses: spec (f).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import msgspec
import numpy as np

from pipeline.errors import VeilstreamError
from pipeline.local.plan import Plan
from pipeline.methods import plan_of
from pipeline.methods.ldp_sgd.settings import (
    lateness_cap,
    mean_curvature,
    records_to_mix,
    rule_of,
    slowest,
)
from pipeline.methods.renewable.private_estimate import RELEASES_PER_COEFFICIENT
from pipeline.study import Study

#: Logistic estimates grow by this share of the noise's variance in the predictor (fitted).
LOGISTIC_GROWTH = 0.25
#: The largest epsilon that a study can have.
LARGEST_EPSILON = 20.0


@dataclass(frozen=True, slots=True)
class Sizes:
    """What formulas expect of a study at a number of records; None where there is no formula.

    Attributes
    ----------
    records_for_intervals
        With fewer records intervals hardly appear; often it takes up to twice as many.
    epsilon_for_intervals
        The epsilon at which the records at hand would do; None if none in the allowed range does.
    slope_error
        Standard error of a slope from the noise alone, in the unit in which estimates print it.
    cloud
        Variance of the linear predictor under the iterate's jitter, over its public scale: the
        largest slope for losses of numbers, 1 for classes. Formulas hold where it is small.
    relative_bias
        Of logistic coefficients: by what share the jitter makes them too large.
    late
        Whether it is models that may be late which keep the steps short, and not noise.
    """

    records_for_intervals: int
    epsilon_for_intervals: float | None = None
    slope_error: float | None = None
    cloud: float | None = None
    relative_bias: float | None = None
    late: bool = False


def sizes_of(plan: Plan, records: int) -> Sizes:
    """Return what the formulas say of a study at `records` records."""
    needed = _needed(plan)
    if not plan.by_record:
        return Sizes(needed)
    rule, curvature = rule_of(plan), mean_curvature(plan)
    noise = plan.record_noise if plan.study.noised else 0.0
    # the step that an average over the path sees: its mean, for steps that fall as i^-alpha
    last = rule.steps.steps(records, 1)[0] / (1 - rule.steps.alpha)
    step = min(float(last), rule.steps.cap)
    cloud = step * noise**2 * plan.size / (2 * curvature)
    logistic = plan.loss.name == "logistic"
    return Sizes(
        records_for_intervals=needed,
        epsilon_for_intervals=_epsilon(plan.study, records) if needed > records else None,
        slope_error=plan.response_scale[1] * noise / (slowest(plan) * math.sqrt(records)),
        cloud=cloud if logistic else cloud / plan.loss.slope_bound**2,
        relative_bias=LOGISTIC_GROWTH * cloud if logistic else None,
        late=rule.steps.cap == lateness_cap(plan) < rule.steps.eta0,
    )


def _needed(plan: Plan) -> int:
    if plan.by_record:
        return records_to_mix(rule_of(plan), slowest(plan))
    return RELEASES_PER_COEFFICIENT * plan.size * (plan.slots if plan.study.noised else 1)


def _epsilon(study: Study, records: int) -> float | None:
    """Return the least epsilon, on a grid of steps of a tenth, at which the records would do."""
    if study.privacy.epsilon is None or study.privacy.personal is not None:
        return None
    steps = math.ceil(math.log(LARGEST_EPSILON / study.privacy.epsilon) / math.log(1.1))
    for epsilon in study.privacy.epsilon * 1.1 ** np.arange(1, max(steps, 1)):
        privacy = msgspec.structs.replace(study.privacy, epsilon=float(epsilon))
        try:
            if _needed(plan_of(msgspec.structs.replace(study, privacy=privacy))) <= records:
                return float(epsilon)
        except VeilstreamError:
            return None
    return None
