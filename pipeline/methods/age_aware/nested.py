"""What several releases of one client say together about a record's value at any time.

Epsilons about the present must not be added up: their sum can be too small. The nested rule
applies Proposition 1 of Lin et al. (2024) after each release to all that is known by then.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from pipeline.errors import ConfigError
from pipeline.methods.age_aware.guarantee import present_epsilon
from pipeline.types import Vector

#: Delta by age in slots: `mixing.deltas` or `mixing.forward` of an age at least 0.
Mixing = Callable[[int], float]


#: So many rounds are followed one by one; more say no more than rounds for ever, where that ends.
_ROUNDS = 64
#: Where it does not end, so many are, and each further one counts in full. How many there were, a
#: client says itself: an answer must not take as long as it likes.
_MOST = 10_000


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
    if any(not upload.epsilon > 0 or not np.isfinite(upload.epsilon) for upload in ordered):
        raise ConfigError("uploads: each epsilon must be above 0 and finite")
    past = [upload for upload in ordered if upload.slot <= slot]
    future = [upload for upload in reversed(ordered) if upload.slot > slot]
    return _approach(past, slot, backward) + _approach(future, slot, ahead)


def worst_epsilon(uploads: Sequence[Upload], backward: Mixing, ahead: Mixing) -> float:
    """Return the largest nested epsilon over all slots; 0 without a release.

    Before the first and after the last release it only falls.
    """
    if not uploads:
        return 0.0
    slots = [upload.slot for upload in uploads]
    return max(
        nested_epsilon(uploads, slot, backward, ahead) for slot in range(min(slots), max(slots) + 1)
    )


def bounded_rounds(delta: float, epsilon: float) -> float:
    """Return what equal rounds for ever say of the present, as an epsilon; infinite if it grows.

    delta: Over the slots between two rounds.
    epsilon: Classical, of each round. Bounded if and only if delta * e^epsilon < 1.
    """
    growth = delta * np.exp(epsilon)
    if growth >= 1:
        return float("inf")
    return float(epsilon + np.log1p(-delta) - np.log1p(-growth))


def repeated_epsilon(count: int, epsilon: float, backward: Vector, ahead: Vector) -> float:
    """Return what so many equal rounds say of a record's value in any one slot, at most.

    Exact up to 10,000 rounds, and above that never too small.

    count: Rounds with a release each, in the same slot of each, at least 1.
    epsilon: Classical, of each.
    backward, ahead: Delta of 0 to H slots, shape (H + 1,), H those of a round.
    """
    past, future = (_grown(count, epsilon, float(left[-1])) for left in (backward, ahead))
    if count > _MOST == max(len(past), len(future)):
        return repeated_epsilon(_MOST, epsilon, backward, ahead) + (count - _MOST) * epsilon
    slots = len(backward) - 1
    # the slots from a release on, until the next: what came before, and what comes after
    before = present_epsilon(past[:, None], backward[None, :-1])
    # where one direction is followed to its end, the other may be bounded long before
    missing = max(0, len(past) - len(future))
    future = np.append(future, np.full(missing, future[-1]))
    after = present_epsilon(
        np.append(0.0, future)[:, None], np.asarray(ahead)[None, np.arange(slots, 0, -1)]
    )
    if count <= len(past):
        # behind release j there are count - 1 - j more
        return float((before + after[:-1][::-1]).max())
    return float((before[-1] + after[-1]).max())


def _grown(count: int, epsilon: float, delta: float) -> Vector:
    """Return the epsilon of 1, 2, ... releases at the last of them, until it grows no more."""
    known = [epsilon]
    while len(known) < min(count, _MOST):
        known.append(epsilon + _fade(known[-1], delta))
        if len(known) >= _ROUNDS and delta * np.exp(epsilon) < 1:
            # what is left to come is known: no more than for ever
            known[-1] = bounded_rounds(delta, epsilon)
            break
    return np.array(known)


def _approach(uploads: Sequence[Upload], slot: int, mixing: Mixing) -> float:
    """Return the epsilon of releases on one side of a slot, the furthest first."""
    known, at = 0.0, slot
    for upload in uploads:
        known = upload.epsilon + _fade(known, mixing(abs(upload.slot - at)))
        at = upload.slot
    return _fade(known, mixing(abs(slot - at))) if uploads else 0.0


def _fade(known: float, delta: float) -> float:
    return float(present_epsilon(np.array(known), np.array(delta)))


def table(values: Vector) -> Mixing:
    """Return Delta by age from its values at 0, 1, ...; older than the last counts as the last."""
    return lambda age: float(values[min(age, len(values) - 1)])
