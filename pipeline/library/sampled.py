"""What a sample file says of its classes: from raw records, and NOT private."""

from __future__ import annotations

import math

import numpy as np
from scipy.special import logit

from pipeline.methods import method_of, task_of
from pipeline.methods.offline import offline_method
from pipeline.release.task import Task
from pipeline.study import with_keys
from pipeline.types import Vector

#: A guess of how frequent a class is is wrong from this ratio of odds on.
WRONG = 1.5


def classes_of(task: Task, responses: Vector) -> dict[str, object]:
    """Return how frequent the positive class is, and what that means for intervals.

    responses: Encoded; NaN where a record has none. Empty for responses without classes.
    """
    known = responses[np.isfinite(responses)]
    if not task.classes or not len(known):
        return {}
    share, response = float(np.mean(known > 0)), task.study.data.response
    found: dict[str, object] = {"share_of_positive": f"{share:.3g} of {len(known):,} responses"}
    supposed = 0.5 if response.typical is None else response.typical
    said = "is not given" if response.typical is None else f"is {response.typical:g}"
    if share in {0.0, 1.0}:
        found["classes"] = "one class alone: there is nothing to estimate"
    elif abs(float(logit(share) - logit(supposed))) > math.log(WRONG):
        found["classes"] = (
            f"data.response.typical {said}, so plans count with {supposed:g}{_later(task, share)}. "
            "Choose a guess by what is public, and run `veilstream study design` with it"
        )
    return found


def _later(task: Task, share: float) -> str:
    """Say when both counts stand out with this share of the positive class."""
    if offline_method(task.study) is not None:
        return ""
    study = with_keys(task.study, {"data.response.typical": share}, name="the sample")
    outlook = method_of(study).outlook(task_of(study), task.slots)
    if outlook.classes is None:
        return ""
    return (
        f". With {share:.2g} no interval comes before {outlook.classes:,} records, at which both "
        "noised class counts stand out of their noise"
    )
