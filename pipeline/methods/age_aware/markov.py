"""Model cards as Markov chains, and how much of a value they leave after some slots.

Delta(t), the most that two values differ in law t slots later, bounds, over all pairs of a record's
values now, the total variation distance between the laws of its value t slots ago (Lin et al. 2024,
definition 2). 1 hides nothing, 0 everything.

Delta of a card that was estimated is never below that of the chain which it stands for. Of the true
matrix no more is known than that each of its rows is within `error` of the card's, in total
variation distance. t steps then miss by at most `error` times the sum of the card's own Dobrushin
coefficients of 0 to t - 1 steps (each difference of rows is carried on by the card's steps, which
shrink it); entries by no more than that. Both Deltas shrink over slots at least as their products
say, whatever the chain is.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

import numpy as np

from pipeline.errors import ConfigError, PrivacyError
from pipeline.types import Integers, Matrix, Vector

#: What the law of a client's records is known for.
#:
#: "collection": for the slot in which it reports, whichever that is (the paper's simulation);
#: "round": for the first slot of the round;
#: "stationary": for every slot, as the chain's own long-run law.
Start = Literal["collection", "round", "stationary"]
#: Most that probabilities may miss a sum of 1 by: rounding, and no more.
_SLACK = 1e-9


@dataclass(frozen=True)
class Chain:
    """A Markov chain of one record: independent of all other records, the same for each of them.

    states: Value of each state in the unit of the record, shape (S,), S >= 2, finite.
    matrix: Probability of a step from row to column, shape (S, S); rows sum to 1.

    Raises ConfigError if the matrix is not stochastic, or shapes do not fit.
    """

    states: Vector
    matrix: Matrix

    def __post_init__(self) -> None:
        """Refuse what is no chain."""
        states, matrix = self.states, self.matrix
        size = len(states)
        if size < 2 or states.ndim != 1 or not np.isfinite(states).all():
            raise ConfigError("chain: `states` must be at least two finite numbers")
        if matrix.shape != (size, size):
            raise ConfigError("chain: `matrix` must have one row and one column for each state")
        if not (np.isfinite(matrix).all() and (matrix >= 0).all()):
            raise ConfigError("chain: probabilities must be 0 or more")
        if (missed := np.abs(matrix.sum(axis=1) - 1)).max() > _SLACK:
            row = int(missed.argmax())
            raise ConfigError(
                "chain: the probabilities of each row must sum to 1, and those of row "
                f"{row + 1} of `matrix` sum to {matrix[row].sum():.10g}; correct that row"
            )

    @cached_property
    def stationary(self) -> Vector:
        """The law that a step does not change, shape (S,).

        Raises ConfigError if there are several: the chain falls apart into states that never meet.
        """
        size = len(self.states)
        system = np.vstack([self.matrix.T - np.eye(size), np.ones(size)])
        if np.linalg.matrix_rank(system) < size:
            raise ConfigError(
                "chain: it falls apart into states that never meet; a record that stays in its "
                "part for ever gets no credit for age: allow steps between the parts if there are "
                "any, else leave these records to another kind of study"
            )
        law = np.linalg.lstsq(system, np.append(np.zeros(size), 1.0), rcond=None)[0]
        law = np.maximum(law, 0.0)
        return np.asarray(law / law.sum(), dtype=np.float64)

    @cached_property
    def _powers(self) -> dict[bytes, Matrix]:
        return {}

    def powers(self, ages: Integers) -> Matrix:
        """Return the probabilities of so many steps each, shape (K, S, S).

        ages: Numbers of steps, 0 or more, shape (K,).
        """
        # clients share chains, and ask for the same ages one after the other
        asked = ages.tobytes()
        if (held := self._powers.get(asked)) is not None:
            return held
        if len(ages) and ages.min() < 0:
            raise ConfigError("ages must be 0 or more: a client cannot report the future")
        wanted, where = np.unique(ages, return_inverse=True)
        found, at = np.eye(len(self.states)), 0
        kernels = np.empty((len(wanted), *self.matrix.shape))
        for number, age in enumerate(wanted.tolist()):
            found, at = found @ np.linalg.matrix_power(self.matrix, age - at), age
            # rounding of long products must not show in the sums of rows
            found /= found.sum(axis=1, keepdims=True)
            kernels[number] = found
        found = kernels[where]
        found.flags.writeable = False
        self._powers[asked] = found
        return found


def cyclic(states: Vector, q: float) -> Chain:
    """Return the chain that goes on to the next state with probability q, the last to the first.

    The printed matrix of the paper; its stationary law is uniform and it is not reversible.
    """
    matrix = np.eye(len(states)) * (1 - q)
    matrix += q * np.roll(np.eye(len(states)), 1, axis=1)
    return Chain(states, matrix)


def birth_death(states: Vector, q: float) -> Chain:
    """Return the chain that goes to a neighbouring state with probability q in all; ends stay.

    Each of two neighbours gets q / 2; what an end state has no neighbour for, it keeps.
    """
    size = len(states)
    matrix = (np.eye(size, k=1) + np.eye(size, k=-1)) * q / 2
    return Chain(states, matrix + np.diag(1 - matrix.sum(axis=1)))


class Moments(NamedTuple):
    """A record at collection (a) and at the end of the round (b), for each age, shape (K,)."""

    mean_then: Vector
    variance_then: Vector
    mean_now: Vector
    variance_now: Vector
    covariance: Vector


def laws(chain: Chain, law: Vector, ages: Integers, start: Start, horizon: int) -> Matrix:
    """Return the law of a record at collection, for each age, shape (K, S).

    law: Probabilities of the states when `start` says, shape (S,); not used for "stationary".
    ages: Slots between collection and the end, shape (K,), 0 to `horizon`.
    horizon: Slots from the beginning of the round to its end.
    """
    check_law(chain, law)
    if start == "round":
        return np.asarray(law @ chain.powers(horizon - ages))
    return np.tile(law if start == "collection" else chain.stationary, (len(ages), 1))


def moments(states: Vector, then: Matrix, kernels: Matrix) -> Moments:
    """Return the moments of a record at collection and at the end of the round.

    states: Of the chain, shape (S,).
    then: Laws at collection, shape (K, S).
    kernels: Steps from collection to the end, shape (K, S, S).
    """
    expected = kernels @ states
    now = np.einsum("ks,kst->kt", then, kernels)
    a, b = then @ states, now @ states
    covariance = (then * states * expected).sum(axis=1) - a * b
    return Moments(a, then @ states**2 - a * a, b, now @ states**2 - b * b, covariance)


def check_law(chain: Chain, law: Vector) -> None:
    """Refuse what is no law of the chain's states; ConfigError."""
    fits = law.shape == chain.states.shape and np.isfinite(law).all() and (law >= 0).all()
    if not fits or abs(law.sum() - 1) > _SLACK:
        raise ConfigError("law: give one probability for each state, 0 or more, that sum to 1")


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


def safe_deltas(chain: Chain, slots: int, error: float) -> tuple[Vector, Vector]:
    """Return Delta towards the past (prior-free) and towards the future, shapes (slots + 1,).

    chain: As the card says.
    slots: Longest age.
    error: Most that a row of the true matrix may be from the card's, in [0, 1).
    """
    ages = np.arange(slots + 1, dtype=np.int64)
    kernels, own = chain.powers(ages), forward(chain, ages)
    missed = error * np.concatenate([[0.0], np.cumsum(own[:-1])])
    back = [_widest_ratio(kernel, off) for kernel, off in zip(kernels, missed, strict=True)]
    return _shrinking(rounded_up(np.array(back))), _shrinking(rounded_up(own + 2 * missed))


def _widest_ratio(kernel: Matrix, off: float) -> float:
    """Return tanh(ln(phi) / 4), phi the largest cross ratio of any matrix so near to this one."""
    low, high = kernel - off, np.minimum(kernel + off, 1.0)
    if low.min() <= 0.0:
        return 1.0
    over = (np.log(high)[:, None, :] - np.log(low)[None, :, :]).max(axis=2)
    np.fill_diagonal(over, 0.0)
    return float(np.tanh((over + over.T).max() / 4))


def _shrinking(found: Vector) -> Vector:
    """Return the least bounds that follow: after s and t slots at most a product is left."""
    found = np.minimum.accumulate(np.append(1.0, found[1:]))
    for age in range(2, len(found)):
        found[age] = min(found[age], (found[1:age] * found[age - 1 : 0 : -1]).min())
    return found
