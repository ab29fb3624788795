"""Where a client takes the sums of all its records again: at the newest model, or on the way there.

A step of Newton's method can lead away from where it should: from a point at which the loss is
nearly flat it is far too long. A client sees that in its own records, before it replaces anything.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from pipeline.records.blocks import with_intercept
from pipeline.records.encode import Arrays
from pipeline.release.model import Model
from pipeline.release.rows import clipped_to_norm, weight_of
from pipeline.types import Vector

if TYPE_CHECKING:
    from pipeline.methods.renewable.task import RenewableTask

#: Shares of the way to a model, tried in this order.
SHARES = 0.5 ** np.arange(6)
#: By how much of the quadratic term a step may be off: beyond it the term means little.
TRUSTED = 0.5


def point_again(
    task: RenewableTask, windows: Iterable[Arrays], before: Vector, model: Model
) -> Vector | None:
    """As `Task.point_again`."""
    share = _share(task, windows, before, model)
    return None if share is None else before + share * (model.coefficients - before)


def _share(
    task: RenewableTask, windows: Iterable[Arrays], before: Vector, model: Model
) -> float | None:
    """Return how much of the way the loss falls, or is near its parabola; None if nowhere.

    Falling alone would not do: a client's own best point may be another than that of all.
    """
    step, loss = model.coefficients - before, task.loss
    values, curvatures = np.zeros(len(SHARES) + 1), np.zeros(len(SHARES) + 1)
    slope, records = 0.0, 0
    shares = np.append(0.0, SHARES)
    for window in windows:
        design = with_intercept(clipped_to_norm(window.features, task))
        weight = weight_of(model.class_weights, window.responses)
        start, along = design @ before, design @ step
        slope += float(np.sum(weight * loss.slope(start, window.responses) * along))
        for place, share in enumerate(shares):
            at = start + share * along
            values[place] += np.sum(weight * loss.value(at, window.responses))
            bent = weight * loss.curvature(at, window.responses)
            curvatures[place] += np.sum(bent * along**2)
        records += len(along)
    penalty = records * task.penalty
    slope += float(before @ (penalty * step))
    curvatures += float(step @ (penalty * step))
    for place, share in enumerate(shares[1:], start=1):
        at = before + share * step
        rise = (
            values[place] - values[0] + float(at @ (penalty * at) - before @ (penalty * before)) / 2
        )
        parabola = share * slope + share**2 * curvatures[0] / 2
        bend = share**2 * max(curvatures[0], curvatures[place]) / 2
        if rise <= 0 or abs(rise - parabola) <= TRUSTED * bend:
            return float(share)
    return None
