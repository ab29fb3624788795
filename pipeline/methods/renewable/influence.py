"""How far one release can move an estimate, whatever numbers within its bounds a client sends."""

from __future__ import annotations

import math

import numpy as np

from pipeline.estimators.forgetting import counted_slots
from pipeline.methods.renewable.design import (
    MOST_SLOTS,
    outlook,
    reference_bread,
    usual_half,
)
from pipeline.methods.renewable.precision import FLOOR, noise_of
from pipeline.methods.renewable.solution import LONGEST_STEP
from pipeline.methods.renewable.task import RenewableTask

#: Said of a study without noise.
OPEN = "anything: releases without noise can hold any sums, at any point"


def influence(task: RenewableTask) -> dict[str, object]:
    """Return what one release can do at most, for `study check`."""
    if not task.study.noised:
        return {"one_release_moves_at_most": OPEN}
    usual = outlook(task, task.slots).usual
    least = _below_an_interval(task, usual)
    return {
        "one_release_moves_at_most": largest_move(
            task, counted_slots(task.study, usual) / task.slots
        ),
        "after": (
            f"{usual:,} records, when intervals usually appear; with twice as many it moves half "
            "as far"
        ),
        "less_than_an_interval": "never" if least is None else f"from about {least:,} records on",
        "in": (
            "how far all coefficients move together (the root of their squared changes, for "
            "features encoded to [-1, 1]), by the worst numbers that a client can invent"
        ),
        "against_it": (
            "admit only clients that you trust (trust.releases), watch each client's share "
            "(`veilstream page`), and take out a client that has lied (`veilstream state forget`)"
        ),
    }


def _below_an_interval(task: RenewableTask, usual: int) -> int | None:
    """Return from about how many slots on a release moves less than half an interval; None: never.

    To a tenth, and to two digits.
    """

    def is_below(slots: float) -> bool:
        moved = largest_move(task, counted_slots(task.study, slots) / task.slots)
        return moved < usual_half(task, slots)

    most = float(usual)
    while not is_below(most):
        most *= 2
        if most > MOST_SLOTS:
            return None
    few = max(most / 2, usual)
    while most > 1.1 * few:
        middle = math.sqrt(few * most)
        few, most = (few, middle) if is_below(middle) else (middle, most)
    unit: int = 10 ** max(0, math.floor(math.log10(most)) - 1)
    return math.ceil(most / unit) * unit


def largest_move(task: RenewableTask, releases: float) -> float:
    """Return how far one of so many noised releases can move the coefficients: the length of that.

    In a state whose mean curvature is that of the reference and whose models are at the estimate:
    tickets keep a client from a model of its own. There theta = t - M^-1 S with S = 0, and one
    release more makes it t - (M + E)^-1 D. Where g and a bound an entry of what a release may hold,
    in sums for each of its slots, |D| <= (sqrt(d) + 1) g / J, as the mean of the others is within
    g, and |E| <= (d a + |M|) / J. The least eigenvalue of M + E is above that of M less |E|, and
    above the floor of the bread; and no step is longer than `LONGEST_STEP` allows.

    releases: J, that one included; > 0.

    Returns: In encoded units of the features, and the response's own.
    """
    channels, noise, size = task.update_channels, noise_of(task), task.size
    gradient, curvature = (
        part.largest(task.slots) * part.unit / task.slots
        for part in (channels.gradient, channels.curvature)
        if part is not None
    )
    values = np.linalg.eigvalsh(reference_bread(task))
    least = float(values[0]) - (size * curvature + float(values[-1])) / releases
    least = max(least, FLOOR * noise.of_curvature(releases))
    reach = (math.sqrt(size) + 1) * gradient / releases / least
    return min(reach, LONGEST_STEP / task.norm_bound) * task.response_scale[1]
