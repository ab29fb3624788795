"""Noise at collection and protection of the present, one from the other (Lin et al. 2024).

A client adds Laplace noise for `classical` epsilon to what its records are at collection. About
what they are t slots later that says less: `present` epsilon.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from pipeline.errors import ConfigError
from pipeline.types import Vector


class Noise(NamedTuple):
    """How much noise each age needs, shape (K,).

    classical: Epsilon at collection.
    capped: Where the age alone would have allowed more than the cap.
    """

    classical: Vector
    capped: np.ndarray


def present_epsilon(classical: Vector, delta: Vector) -> Vector:
    """Return the epsilon about a record's value now: ln(1 + Delta (e^classical - 1)).

    Proposition 1. It holds for one release; several do not add up: see `nested`.
    """
    with np.errstate(divide="ignore"):
        # e^classical may be too large for a float where its logarithm is not
        return np.logaddexp(np.log1p(-delta), np.log(delta) + classical)


def classical_epsilon(present: float, delta: Vector, cap: float) -> Noise:
    """Return the epsilon at collection that gives `present` epsilon now, at most `cap`.

    Equation (5), the inverse of Proposition 1.

    present: Above 0.
    delta: In [0, 1], shape (K,); 0 would need no noise at all, so that the cap decides.
    cap: Most that may be known of the value at collection, at least `present`, finite.

    Raises ConfigError, naming the number that is out of its range.
    """
    if not 0 < present < np.inf:
        raise ConfigError("epsilon about the present must be above 0 and finite")
    if not present <= cap < np.inf:
        raise ConfigError("epsilon cap must be finite, and not below epsilon about the present")
    if not ((delta >= 0) & (delta <= 1)).all():
        raise ConfigError("delta must be in [0, 1]")
    with np.errstate(divide="ignore"):
        wanted = np.logaddexp(0.0, np.log(np.expm1(present)) - np.log(delta))
    return Noise(np.minimum(wanted, cap), wanted > cap)


def sensitivity(low: float, high: float, records: int) -> float:
    """Return how far one record's change moves the mean of so many, in their unit.

    low, high: Declared range, finite, the lower end first; values are clipped to it.
    records: At least 1.
    """
    return (high - low) / records
