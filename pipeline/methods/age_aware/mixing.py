"""How much of a value is left: Delta(t), the most that two values differ in law t slots later.

Delta bounds, over all pairs of a record's values now, the total variation distance between the
laws of its value t slots ago (Lin et al. 2024, definition 2). 1 hides nothing, 0 everything.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from pipeline.errors import ConfigError, PrivacyError
from pipeline.methods.age_aware.chains import Chain, check_law
from pipeline.types import Integers, Matrix, Vector

#: Whose knowledge Delta holds against.
#:
#: "prior-free": anybody, whatever they knew of single records before (the Birkhoff coefficient);
#: "stationary": only those who know the stationary law and no more;
#: "spectral": as "stationary", a bound by the second singular value (equation 8).
Kind = Literal["prior-free", "stationary", "spectral"]
#: Deltas are computed in floating point; too small a one would be a failure of privacy.
_UP, _MORE = 1 + 1e-9, 1e-12


def deltas(chain: Chain, ages: Integers, kind: Kind = "prior-free") -> Vector:
    """Return Delta for each age, shape (K,), in [0, 1], rounded up.

    ages: Slots between collection and publication, 0 or more, shape (K,).

    Raises ConfigError if an age is negative; and, of "stationary", errors as `known_law`.
    """
    if kind == "stationary":
        return known_law(chain, ages, chain.stationary)
    if kind == "spectral":
        return rounded_up(_spectral(chain, ages))
    return rounded_up(np.array([_birkhoff(kernel) for kernel in chain.powers(ages)]))


def known_law(chain: Chain, ages: Integers, law: Vector) -> Vector:
    """Return Delta against those who know a record's law at collection and no more, as `deltas`.

    law: Shape (S,), more than one state.

    Raises ConfigError if it is none; PrivacyError if it knows the value already: it would ask for
    no noise at all.
    """
    check_law(chain, law)
    if np.count_nonzero(law) < 2:
        raise PrivacyError(
            "delta: a law that gives one state all the probability leaves nothing to "
            'protect, so it asks for no noise at all; set delta = "prior-free"'
        )
    return rounded_up(np.array([_widest(_reversed(law, kernel)) for kernel in chain.powers(ages)]))


def rounded_up(found: Vector) -> Vector:
    """Return computed Deltas without what rounding may have taken from them, at most 1."""
    return np.asarray(np.minimum(1.0, found * _UP + _MORE))


def constant(rate: float, ages: Integers) -> Vector:
    """Return Delta for records of which only the speed is promised: (1 - rate)^t.

    The promise: P(y | x) <= ((2 - rate) / rate) P(y | x') for one slot and all values x, x', y.
    Then each cross ratio of a step is at most ((2 - rate) / rate)^2, its Birkhoff coefficient
    tanh(ln(phi) / 4) at most 1 - rate, and that of t steps at most the product. A record that keeps
    its value with some probability, and has many others, does not keep the promise: a value drawn
    anew with probability `rate` forgets that share in total variation alone.

    rate: In [0, 1).
    ages: 0 or more, shape (K,).
    """
    if not 0 <= rate < 1:
        raise ConfigError("mixing: `rate` must be at least 0 and below 1")
    if len(ages) and ages.min() < 0:
        raise ConfigError("ages must be 0 or more: a client cannot report the future")
    return np.asarray(np.minimum(1.0, (1.0 - rate) ** ages.astype(float) * _UP))


def odds(rate: float) -> float:
    """Return what `constant` promises: how many times as likely a value may be, one slot later."""
    return (2 - rate) / rate


def forward(chain: Chain, ages: Integers) -> Vector:
    """Return how much of a value is left in what comes `ages` slots later, shape (K,).

    The Dobrushin coefficient of the steps; it needs no law.
    """
    return rounded_up(np.array([_widest(kernel) for kernel in chain.powers(ages)]))


def _widest(rows: Matrix) -> float:
    """Return half the largest l1 distance between two rows."""
    if len(rows) < 2:
        return 0.0
    return float(np.abs(rows[:, None, :] - rows[None, :, :]).sum(axis=2).max() / 2)


def _reversed(law: Vector, kernel: Matrix) -> Matrix:
    """Return the law of the value then, for each value now that can be, shape (at most S, S)."""
    joint = law[:, None] * kernel
    now = joint.sum(axis=0)
    possible = now > 0
    return np.asarray((joint[:, possible] / now[possible]).T, dtype=np.float64)


def _birkhoff(kernel: Matrix) -> float:
    """Return tanh(ln(phi) / 4), phi the largest cross ratio of a kernel: 1 if one is infinite."""
    used = kernel[:, kernel.any(axis=0)]
    if (used == 0).any():
        return 0.0 if np.ptp(used, axis=0).max() == 0 else 1.0
    logs = np.log(used)
    differences = logs[:, None, :] - logs[None, :, :]
    return float(np.tanh(np.ptp(differences, axis=2).max() / 4))


def _spectral(chain: Chain, ages: Integers) -> Vector:
    """Return equation (8) with the second singular value: the second eigenvalue does not do.

    For chains that are not reversible it can be below the truth.
    """
    law = chain.stationary
    if law.min() <= 0:
        return np.ones(len(ages))
    root = np.sqrt(law)
    values = np.linalg.svd(root[:, None] * chain.matrix / root[None, :], compute_uv=False)
    rate = min(1.0, float(values[1]))
    return np.asarray(
        np.sqrt((1 - law.min()) / law.min()) * rate ** ages.astype(float), dtype=np.float64
    )
