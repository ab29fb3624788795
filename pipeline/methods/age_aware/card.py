"""A model card from histories of records, under differential privacy.

Each record's steps from slot to slot are counted by pair of states, and each count gets discrete
Laplace noise. A record that is replaced, with its whole history, moves the counts by at most
2 (slots - 1) in all. How far rows may be from the truth follows from public numbers and the noised
counts: noise by the law of its sum, chance by the bound of Weissman et al. (2003) on the l1
distance of an empirical law, for each number of steps that a row can have.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import gammainccinv

from pipeline.errors import ConfigError, DataError, PrivacyError
from pipeline.methods.age_aware.client import to_states
from pipeline.methods.age_aware.markov import Chain, safe_deltas
from pipeline.methods.age_aware.schedule import KEPT
from pipeline.methods.base import ModelCard
from pipeline.privacy.randomness import SecureStream
from pipeline.privacy.samplers import DiscreteLaplace
from pipeline.types import Integers, Matrix, Vector

if TYPE_CHECKING:
    from pipeline.methods.age_aware.client import AgedTask

#: Chance that any row is farther from the truth than its card says.
FAILURE = 1e-6
#: Decimals of a card's matrix.
_DECIMALS = 6


@dataclass(frozen=True, slots=True)
class Estimate:
    """What noised counts say: a matrix, shape (S, S), and how far each of its rows may be off."""

    matrix: Matrix
    error: float


def estimate(
    histories: Sequence[Vector], states: Vector, records: int, epsilon: float,
    stream: SecureStream,
) -> Estimate:  # fmt: skip
    """Count and noise the steps of all records; epsilon-DP about any one record's whole history.

    histories: Of each client the values of its records, slot after slot, NaN where one is missing:
        shape (slots * records,), in the unit of the states. What is left over of a slot is not
        used. How many there are is taken as public.
    states: Of the card, in its order, shape (S,).
    records: Of each client, in a slot.
    epsilon: In (0, 20].

    Raises DataError if no history has two slots, or two are the same; PrivacyError, before anything
    is drawn, if even equal counts could give age no credit.
    """
    # those that never change may well be alike
    changing = [values.tobytes() for values in histories if len(np.unique(values)) > 1]
    if len(set(changing)) < len(changing):
        raise DataError(
            "--source: two histories hold the same values, and records that are counted twice cost "
            "twice epsilon; name the history of each client once. Nothing has been drawn or spent"
        )
    slots = [len(values) // records for values in histories]
    most = max(slots, default=0)
    if most < 2:
        raise DataError(
            f"--source: a card is made of steps from slot to slot, and no source has two slots of "
            f"{records} records; give longer histories"
        )
    size, scale = len(states), 2 * (most - 1) / epsilon
    steps = records * sum(max(0, each - 1) for each in slots)
    if (least := _error(steps / size, size, scale, steps)) * size >= 1:
        raise PrivacyError(
            f"--epsilon: {steps} steps of {records * len(slots)} records at epsilon "
            f"{epsilon:g} are too few for a card of {size} states: its probabilities "
            f"would be wrong by {least:.2g} or more, and a card that errs by "
            f"{1 / size:.2g} saves no noise for old values. Nothing has been drawn or "
            "spent: pool more clients, use fewer states, or a larger epsilon"
        )
    counts = sum(
        _steps(values[: each * records].reshape(each, records), states)
        for values, each in zip(histories, slots, strict=True)
    )
    noise = DiscreteLaplace(scale).draw(size * size, stream).reshape(size, size)
    return _read(np.maximum(counts + noise, 0), scale, steps)


def model_card(
    task: AgedTask, group: str, histories: Sequence[Vector], epsilon: float
) -> ModelCard:
    """As `Rounds.model_card`: the states are those of the group's present card.

    Raises ConfigError if the study has no such group, or its card no states; else as `estimate`.
    """
    groups = task.plan.spec.groups
    if group not in groups:
        raise ConfigError(
            f"--group: the study has no group {group!r} (estimator.method.groups); it has "
            + ", ".join(map(repr, groups))
        )
    given = groups[group].states
    if given is None:
        raise ConfigError(
            f"estimator.method.groups.{group}.states: a card is estimated for states, and constant "
            'mixing has none; give the group states, such as with mixing = "birth-death" and any '
            "q, and estimate then"
        )
    states, (centre, unit) = np.array(given), task.response_scale
    values = [history * unit + centre for history in histories]
    found = estimate(values, states, task.plan.records, epsilon, SecureStream())
    chain, slots = Chain(states, found.matrix), task.plan.spec.slots
    left = safe_deltas(chain, slots, found.error)[0]
    rows = ",\n".join(f"  {[float(share) for share in row]}" for row in found.matrix)
    text = (
        f"# of group {group}: {len(histories)} histories, {task.plan.records} records each; "
        f"epsilon {epsilon:g} of each record's whole history\n"
        f'mixing = "matrix"\nstates = {given}\nmatrix = [\n{rows},\n]\n'
        f"error = {found.error:.6f}\ncard_epsilon = {epsilon:g}\n"
    )
    facts = {
        "group": group,
        "histories": len(histories),
        "epsilon": epsilon,
        "error": found.error,
        "left_after_half_a_round": float(left[(slots + 1) // 2]),
        "left_after_a_round": float(left[-1]),
    }
    return ModelCard(text, facts, _notes(left))


def _notes(left: Vector) -> tuple[str, ...]:
    half = len(left) // 2
    credit = (
        f"of a value at most {left[half]:.3g} is left after {half} slots and {left[-1]:.3g} after "
        f"{len(left) - 1} (Delta, with error counted in)"
    )
    if left[-1] > KEPT:
        credit = (
            "age spares no noise with this card: error is too large beside the matrix, or the "
            "records hardly change; pool more clients, use fewer states, or a larger epsilon"
        )
    slowest = (
        "the card is that of the records together: whoever changes more slowly than the others is "
        "promised too much by it. Give slower records a group of their own, or do not use it"
    )
    cost = (
        "it has cost its records card_epsilon, whether it is used or not: leave that key in the "
        "study, and every client's ledger is charged with its first release. A second estimate "
        "from the same records costs as much again: add both up in card_epsilon"
    )
    return credit, slowest, cost


def _steps(values: Matrix, states: Vector) -> Integers:
    """Count steps by the places of both states; one that is missing at either end is none."""
    order = np.argsort(states)
    rising = states[order]
    known = ~np.isnan(values)
    places = order[np.searchsorted(rising, to_states(np.where(known, values, rising[0]), rising))]
    both = known[:-1] & known[1:]
    counts = np.zeros((len(states), len(states)), dtype=np.int64)
    np.add.at(counts, (places[:-1][both], places[1:][both]), 1)
    return counts


def _read(counts: Integers, scale: float, steps: int) -> Estimate:
    size, totals = len(counts), counts.sum(axis=1)
    matrix = np.full((size, size), 1 / size)
    seen = totals > 0
    matrix[seen] = counts[seen] / totals[seen, None]
    # what decimals leave over goes to the most frequent step, and into the error
    matrix = np.floor(matrix * 10**_DECIMALS) / 10**_DECIMALS
    rows = np.arange(size)
    top = matrix.argmax(axis=1)
    matrix[rows, top] = 0.0
    matrix[rows, top] = np.round(1 - matrix.sum(axis=1), _DECIMALS)
    error = max(_error(float(total), size, scale, steps) for total in totals)
    return Estimate(matrix, min(1.0, error + size * 10.0**-_DECIMALS))


def _error(total: float, size: int, scale: float, steps: int) -> float:
    """Return how far a row of a noised total may be off in total variation, at most 1.

    Each of the `size` rows, for its noise and for chance, has an equal share of `FAILURE`.
    """
    share = FAILURE / (2 * size)
    # a draw on the integers is at most one larger than one of the continuous law
    noise = float(gammainccinv(size, share)) * scale + size
    if total <= noise:
        return 1.0
    laws = size * math.log(2) + math.log(steps) - math.log(share)
    return min(1.0, noise / total + math.sqrt(laws / (2 * (total - noise))))
