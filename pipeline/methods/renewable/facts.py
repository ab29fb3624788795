"""What renewable estimation needs and promises, for `study check` and the doctor."""

from __future__ import annotations

import math

from pipeline.estimators.forgetting import EFFECTIVE_HALF_LIVES
from pipeline.methods.renewable.influence import influence
from pipeline.methods.renewable.open import RECORDS_PER_COEFFICIENT
from pipeline.methods.renewable.readiness import releases_needed
from pipeline.methods.renewable.task import RenewableTask


def facts(task: RenewableTask, clients: int) -> dict[str, object]:
    """Return what `study check` prints of a study: noise, and when intervals can come."""
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
    found["influence"] = influence(task, clients)
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
