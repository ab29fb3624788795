"""What locally private gradients need and promise, for `study check` and the doctor.

For features uniform on their public ranges: of a path no number of records makes intervals certain,
since no ridge holds directions in which records say nothing. Sizes follow from the limit law and
the caps of `steps`; the bias of curved losses was fitted to simulations.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.special import ndtri

from pipeline.methods.facts import Design, Missed, Outlook, Sizes, least_epsilon
from pipeline.methods.ldp_sgd.exact import exact
from pipeline.methods.ldp_sgd.forecast import largest_move, largest_step, records_needed
from pipeline.methods.ldp_sgd.path import LARGEST, SgdPath
from pipeline.methods.ldp_sgd.readiness import GROWTH
from pipeline.methods.ldp_sgd.settings import (
    allowed_lateness,
    lateness_cap,
    mean_curvature,
    rule_of,
    scaling_of,
    slowest,
)
from pipeline.methods.ldp_sgd.spec import INTERVALS
from pipeline.methods.ldp_sgd.task import GradientTask
from pipeline.study import Study, with_keys

#: Where noise moves predictors by more than this share of their scale, formulas do not hold.
LARGEST_CLOUD = 1.0


def sizes(task: GradientTask, records: int, clients: int) -> Sizes:
    """As `Method.sizes`, whatever the number of clients."""
    del clients
    least = records_needed(task)
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
    late = cap == lateness_cap(task) < rule.steps.eta0
    sooner = []
    if scaled > LARGEST_CLOUD:
        sooner.append("a smaller estimator.path.kappa: its steps are too long for so much noise")
    if late:
        sooner.append(
            "newer models, which allow longer steps: fewer window.records or "
            "stream.publish.releases, or what estimator.path.behind can truly be"
        )
    return Sizes(
        records_for_intervals=least,
        epsilon_for_intervals=None
        if least <= records or task.study.privacy.personal is not None
        else least_epsilon(task.study, records, lambda study: records_needed(GradientTask(study))),
        slope_error=slope_error(task, records),
        cloud=scaled,
        # what a released curvature moves is straightened as well
        relative_bias=GROWTH * cloud if logistic and not released else None,
        late=late,
        sooner=tuple(sooner),
    )


def better(task: GradientTask, missed: Missed) -> tuple[str, ...]:
    """As `Method.better`."""
    shorter = "shorter steps: estimator.path.kappa or eta0 halved, which takes more records"
    if missed.biased and task.loss.name != "linear":
        return (f"{shorter}; or a larger privacy.epsilon: a curved loss is biased by the noise",)
    if missed.biased:
        return (f"{shorter}; or a later estimator.path.burn_in",)
    tried = [
        f'estimator.path.interval = "{name}", which covered here' for name in missed.covering[:1]
    ]
    return (*tried, "")


def warnings(task: GradientTask) -> tuple[str, ...]:
    """As `Method.warnings`: where one release can stop a path."""
    moved = largest_move(task, rule_of(task))
    if moved <= LARGEST:
        return ()
    said = (
        f"one release can move the path by {moved:.3g}, and beyond {LARGEST:g} the path stands "
        "still: lower estimator.path.eta0 or kappa, or any client can stop it"
    )
    return (said,)


def facts(task: GradientTask, clients: int) -> dict[str, object]:
    """As `Method.facts`: the steps, and when intervals can be hoped for."""
    del clients
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


def outlook(task: GradientTask, records: int, clients: int) -> Outlook:
    """As `Method.outlook`, whatever the number of clients."""
    del clients
    error = slope_error(task, records)
    return Outlook(
        latest=None,
        usual=records_needed(task),
        usual_half=float(ndtri((1 + task.study.estimator.level) / 2)) * error,
        why=_narrower(task),
        exact=exact(task, records),
    )


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


def design(study: Study, records: int, clients: int) -> Design:
    """As `Method.design`."""
    most = max(records // (LEAST * clients), WINDOWS[-1])
    best, least = WINDOWS[-1], float("inf")
    for window in WINDOWS:
        if window > most:
            continue
        task = GradientTask(with_keys(study, {"window.records": window}, name="the design"))
        found = records_needed(task)
        if found < (1 - WORTH) * least:
            best, least = window, found
    reason = (
        f"the largest window with {LEAST} of each client whose models are not so late that steps "
        "must be shorter"
    )
    return Design({"window.records": best}, {"window.records": reason})
