"""How far one release can move an estimate, whatever numbers within its bounds a client sends."""

from __future__ import annotations

import math

from pipeline.estimators.forgetting import counted_slots
from pipeline.methods.renewable.design import plan
from pipeline.methods.renewable.expected import Windows, noise_size
from pipeline.methods.renewable.reference import reference_of
from pipeline.methods.renewable.solution import FLOOR, LONGEST_STEP
from pipeline.methods.renewable.task import RenewableTask

#: Said of a study without noise.
OPEN = "anything: releases without noise can hold any sums, at any point"


def influence(task: RenewableTask, clients: int) -> dict[str, object]:
    """Return what one release can do at most, for `study check`.

    clients: How many there are, all alike: a release holds a tenth of its client's slots.
    """
    if not task.study.noised:
        return {"one_release_moves_at_most": OPEN}
    usual = plan(task, task.slots, clients).usual
    return {
        "one_release_moves_at_most": largest_move(task, counted_slots(task.study, usual), clients),
        "after": (
            f"{usual:,} records, when intervals usually stay; where windows grow, so does what "
            "one of them holds, and it moves as far later"
        ),
        "in": (
            "how far all coefficients move together (the root of their squared changes, for "
            "features encoded to [-1, 1]), by the worst numbers that a client can invent in the "
            f"largest window that it may have by then as one of {clients}"
        ),
        "against_it": (
            "admit only clients that you trust (trust.releases), watch each client's share "
            "(`veilstream page`), and take out a client that has lied (`veilstream state forget`); "
            "window.growth = 0 keeps all windows small, with more noise in all"
        ),
    }


def largest_move(task: RenewableTask, slots: float, clients: int) -> float:
    """Return how far one noised release can move the coefficients: the length of that.

    In a state whose mean curvature is that of the reference and whose models are at the estimate:
    tickets keep a client from a model of its own. There theta = t - M^-1 S with S = 0, and one
    release more makes it t - (M + E)^-1 D. Where a release of n among N slots may hold g and a in
    an entry, |D| <= (sqrt(d) + 1) g / N, as the mean of the others is within g / n, and |E| <= (d a
    + n |M|) / N. The least eigenvalue of M + E is above that of M less |E|, and above the floor of
    the bread; and no step is longer than `LONGEST_STEP` allows.

    slots: N, those of that release included; > 0.

    Returns: In encoded units of the features, and the response's own.
    """
    channels, size = task.update_channels, task.size
    window = min(float(Windows(task, clients).next_window(slots)), slots)
    gradient, curvature = (
        part.largest(int(window)) * part.unit / slots
        for part in (channels.gradient, channels.curvature)
        if part is not None
    )
    values = reference_of(task).values
    least = float(values[0]) - size * curvature - window / slots * float(values[-1])
    least = max(least, FLOOR * noise_size(task, slots, clients))
    reach = (math.sqrt(size) + 1) * gradient / least
    return min(reach, LONGEST_STEP / task.norm_bound) * task.response_scale[1]
