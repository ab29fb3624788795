"""Standard normal numbers in floating point, for laws that no lattice holds.

By inversion: a number of 64 random bits is a sign and a tail probability of 63 bits. What floating
point can give away of them, and how far the caller's rounding hides it, says
docs/privacy/copies.md.
"""

from __future__ import annotations

import numpy as np
from scipy.special import ndtri

from pipeline.privacy.randomness import SecureStream
from pipeline.privacy.simulation import seeded
from pipeline.types import Vector

#: No draw is farther from zero: the quantile of 2^-65.
FARTHEST = 9.2


def normal_numbers(count: int, stream: SecureStream, *, simulated: bool = False) -> Vector:
    """Return independent standard normal numbers, shape (count,).

    simulated: Draw them from the seed of a simulation, which protects nobody.

    Raises PrivacyError as `seeded`.
    """
    if simulated:
        return seeded(stream).standard_normal(count)
    words = stream.uint64(count)
    tail = np.ldexp((words >> np.uint64(1)).astype(np.float64) + 0.5, -64)
    drawn: Vector = np.where(words & np.uint64(1), ndtri(tail), -ndtri(tail))
    return drawn
