"""The nested rule for any releases of a client, one by one: what equal rounds are held against."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from pipeline.methods.age_aware.schedule import present_epsilon
from pipeline.types import Vector

#: Delta by age in slots: `mixing.deltas` or `mixing.forward` of an age at least 0.
Mixing = Callable[[int], float]


class Upload(NamedTuple):
    """One release of a client: when, in slots of the study's clock, and its classical epsilon."""

    slot: int
    epsilon: float


def nested_epsilon(uploads: Sequence[Upload], slot: int, backward: Mixing, ahead: Mixing) -> float:
    """Return what all releases together say of a record's value in one slot, as an epsilon.

    For records that are independent of each other and follow a stationary chain; with a
    prior-free `backward` for whatever anybody knew of single records before.

    uploads: Releases in any order; several in one slot add up.
    slot: Of the value that is protected.
    backward, ahead: Delta towards the past, and towards the future.
    """
    ordered = sorted(uploads)
    past = [upload for upload in ordered if upload.slot <= slot]
    future = [upload for upload in reversed(ordered) if upload.slot > slot]
    return _approach(past, slot, backward) + _approach(future, slot, ahead)


def worst_epsilon(uploads: Sequence[Upload], backward: Mixing, ahead: Mixing) -> float:
    """Return the largest nested epsilon over all slots of at least one release.

    Before the first and after the last release it only falls.
    """
    slots = [upload.slot for upload in uploads]
    return max(
        nested_epsilon(uploads, slot, backward, ahead) for slot in range(min(slots), max(slots) + 1)
    )


def table(values: Vector) -> Mixing:
    """Return Delta by age from its values at 0, 1, ...; older than the last counts as the last."""
    return lambda age: float(values[min(age, len(values) - 1)])


def _approach(uploads: Sequence[Upload], slot: int, mixing: Mixing) -> float:
    """Return the epsilon of releases on one side of a slot, the furthest first."""
    known, at = 0.0, slot
    for upload in uploads:
        known = upload.epsilon + _fade(known, mixing(abs(upload.slot - at)))
        at = upload.slot
    return _fade(known, mixing(abs(slot - at))) if uploads else 0.0


def _fade(known: float, delta: float) -> float:
    return float(present_epsilon(np.array(known), np.array(delta)))
