"""A round of a client: the sum of its records' values in the planned slot, within public bounds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pipeline.errors import PrivacyError
from pipeline.records.encode import Arrays
from pipeline.release.model import Model
from pipeline.release.query import Exact, Query, VectorPart
from pipeline.types import Vector

if TYPE_CHECKING:
    from pipeline.methods.age_aware.task import AgedTask

#: Encoded values are whole multiples of 2^-20 before they are summed.
BITS = 20


def query(task: AgedTask, window: Arrays, model: Model) -> Query:
    """As `Task.query`: the slots of a round one after the other, the same records in each."""
    if len(window.responses) > task.slots:
        raise PrivacyError(f"a window holds at most {task.slots} records (window.records)")
    plan, number = task.plan, task.number
    first = int(plan.slots[number]) * plan.records
    values = np.full(plan.records, task.absent)
    collected = np.clip(window.responses[first : first + plan.records], -1.0, 1.0)
    known = ~np.isnan(collected)
    values[: len(collected)][known] = to_states(collected[known], task.states)
    whole = np.trunc(np.ldexp(values, BITS)).sum()
    total = Exact(np.array([whole], dtype=np.int64), np.array([-BITS]))
    return Query(model, {"sum": VectorPart(total, task.channel, plan.records)})


def to_states(values: Vector, states: Vector) -> Vector:
    """Return the nearest state of each value, before anything is summed; without states itself.

    What the mechanism reads must be what the model card speaks of.

    states: Rising, in the unit of the values, shape (S,); none for a card without any.
    """
    if not len(states):
        return values
    cuts = (states[1:] + states[:-1]) / 2
    found: Vector = states[np.searchsorted(cuts, values)]
    return found
