"""What equal rounds of one client say together about a record's value at any time.

Epsilons about the present must not be added up: their sum can be too small. The nested rule
applies Proposition 1 of Lin et al. (2024) after each release to all that is known by then.
"""

from __future__ import annotations

import numpy as np

from pipeline.methods.age_aware.guarantee import present_epsilon
from pipeline.types import Vector

#: So many rounds are followed one by one; more say no more than rounds for ever, where that ends.
_ROUNDS = 64
#: Where it does not end, so many are, and each further one counts in full. How many there were, a
#: client says itself: an answer must not take as long as it likes.
_MOST = 10_000


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


def _fade(known: float, delta: float) -> float:
    return float(present_epsilon(np.array(known), np.array(delta)))
