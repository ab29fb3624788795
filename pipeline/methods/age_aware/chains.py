"""How a client's records change: Markov chains with public values and public probabilities."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

import numpy as np

from pipeline.errors import ConfigError
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
