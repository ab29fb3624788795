"""The schedule of rounds: who releases which slot, with how much noise, and the expected loss.

A pure function of the public study, the same in each round: worker and clients compute it from
their own study file, so that nobody can hand a client another one.

The aggregate is the mean of noised client means; its loss is the squared distance from the mean of
the same records at the end of the round. As what clients drift is added by the model card, it is
one cost for each client (equation (3a) of Lin et al. 2024, expanded).

A client adds Laplace noise for `classical` epsilon to what its records are at collection. About
what they are t slots later that says less: `present` epsilon (Lin et al. 2024).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from scipy.optimize import linear_sum_assignment

from pipeline.errors import ConfigError, PrivacyError
from pipeline.methods.age_aware.markov import (
    Chain,
    Moments,
    Start,
    constant,
    deltas,
    forward,
    laws,
    moments,
    safe_deltas,
)
from pipeline.methods.age_aware.spec import Group, Spec, chain_of, clients_of, spec_of
from pipeline.study.model import Study
from pipeline.types import Integers, Vector
from pipeline.words import counted


def expected_loss(about: Moments, records: int, scale: Vector, use: str) -> Vector:
    """Return the expected squared error of a client's mean at the end of the round, shape (K,).

    In closed form, without a bound or a simulation, as the model card knows it.

    records: How many the client has.
    scale: Of the Laplace noise of its mean, shape (K,), >= 0.
    use: "debiased": the worker adds the drift of the card; "wiener": it weighs upload and card so
        that the loss is least.
    """
    now, then = about.variance_now / records, about.variance_then / records
    both, noise = about.covariance / records, 2 * scale**2
    if use == "wiener":
        heard = then + noise
        gain = np.divide(both, heard, out=np.zeros_like(both), where=heard > 0)
        loss = now - gain * both
    else:
        loss = then + now - 2 * both + noise
    # rounding alone can make a loss of nothing negative
    return np.maximum(loss, 0.0)


#: Where more than this share of a value is left, its age is no help.
KEPT = 0.99


@dataclass(frozen=True)
class Card:
    """A group's model, and how much of a value is left after 0 to H slots, H those of a round.

    backward, ahead: Delta towards the past and towards the future, shape (H + 1,).
    """

    group: Group
    chain: Chain
    law: Vector
    backward: Vector
    ahead: Vector

    @property
    def steady(self) -> bool:
        """Whether a record has the same law in every slot."""
        return self.group.law is None


@dataclass(frozen=True)
class Plan:
    """Who reports what in each round; arrays have one entry for each client, shape (m,).

    spec, cards: What the study says, and its cards by group.
    names, groups: The clients, and the group of each.
    records: How many each has in one slot.
    slots, ages: When the value is collected, and how many slots before the end of the round.
    deltas: How much of it is left by then.
    epsilons, capped: Of the release, about the value collected; whether the cap decides it.
    scales: Of the Laplace noise of the client's mean, in the unit of a record.
    mean_then, mean_now: What the card expects at collection and at the end.
    gains: How much of what an upload differs from `mean_then` is believed.
    losses, alone: Expected squared error of each client's share; without any upload, by its card.
    """

    spec: Spec
    cards: dict[str, Card]
    names: tuple[str, ...]
    groups: tuple[str, ...]
    records: int
    slots: Integers
    ages: Integers
    deltas: Vector
    epsilons: Vector
    capped: np.ndarray
    scales: Vector
    mean_then: Vector
    mean_now: Vector
    gains: Vector
    losses: Vector
    alone: Vector

    @cached_property
    def numbers(self) -> dict[str, int]:
        """The place of each client in the arrays."""
        return {name: number for number, name in enumerate(self.names)}

    def number(self, client: str) -> int:
        """Return the place of a client; ConfigError if the study does not name it."""
        found = self.numbers.get(client)
        if found is None:
            raise ConfigError(
                f"--client: {client!r} is in no group of this study (estimator.method.groups), so "
                "that its plan has no slot for it; use a name that it has, or ask the operator "
                "(backtest reads the names from --client-column; fit knows none, so use backtest)"
            )
        return found

    def card(self, number: int) -> Card:
        """Return the model card of a client."""
        return self.cards[self.groups[number]]

    def last_round(self, number: int) -> float:
        """Return the last round of a client for which its card holds; infinite without an end."""
        last = self.card(number).group.last_round
        return math.inf if last is None else last

    @property
    def knows_level(self) -> bool:
        """Whether all cards know what a record is on average, and not only how fast it changes."""
        return all(card.group.mixing != "constant" for card in self.cards.values())

    @property
    def no_age_credit(self) -> list[str]:
        """Groups that age spares no noise: next to nothing is forgotten within a round."""
        return [name for name, card in self.cards.items() if float(card.backward[-2]) > KEPT]


def plan_of(study: Study) -> Plan:
    """Return the plan of a study.

    Raises ConfigError if clients and slots do not fit; PrivacyError if a client's noise would be
    less than the study's own policy allows.
    """
    spec, ends = spec_of(study), study.data.response.ends
    members = clients_of(spec)
    records = study.window.records // spec.slots
    cards = {name: card_of(group, spec, ends) for name, group in spec.groups.items()}
    places = _places(spec, len(members), spec.capacity or 1)
    ages = spec.slots - 1 - np.arange(spec.slots, dtype=np.int64)
    by_group = _tables(spec, cards, ages, sensitivity(*ends, records), records, 1 / len(members))
    groups = tuple(members.values())
    cost = np.array([by_group[group]["losses"][places] for group in groups])
    # each client's loss is its own, so that one assignment is the best plan
    chosen = cost.argmin(axis=1) if spec.capacity is None else linear_sum_assignment(cost)[1]
    slots = places[chosen]
    at = [(by_group[group], int(slot)) for group, slot in zip(groups, slots, strict=True)]
    names = by_group[groups[0]]
    plan = Plan(
        spec=spec, cards=cards, names=tuple(members), groups=groups, records=records, slots=slots,
        ages=ages[slots],
        **{name: np.array([row[name][slot] for row, slot in at]) for name in names},
    )  # fmt: skip
    check_policy(plan)
    return plan


def check_policy(plan: Plan) -> None:
    """Refuse a plan by which a client would spend more than the study's policy allows.

    From the cards alone: epsilon is recomputed, not believed. Raises PrivacyError.
    """
    for number, epsilon in enumerate(plan.epsilons.tolist()):
        card, age = plan.card(number), int(plan.ages[number])
        left = np.array([card.backward[age]])
        allowed = classical_epsilon(plan.spec.epsilon_now, left, plan.spec.cap).classical[0]
        if not epsilon <= allowed * (1 + 1e-9):
            raise PrivacyError(
                f"the plan gives client {plan.names[number]!r} less noise than its age allows: "
                "nothing is released; report it to whoever made this program"
            )


def card_of(group: Group, spec: Spec, ends: tuple[float, float]) -> Card:
    """Return the model of a group with its deltas."""
    chain, ages = chain_of(group, ends), np.arange(spec.slots + 1, dtype=np.int64)
    law = chain.stationary if group.law is None else np.array(group.law)
    if group.rate is not None:
        left = constant(group.rate, ages)
        return Card(group, chain, law, left, left)
    if group.error:
        return Card(group, chain, law, *safe_deltas(chain, spec.slots, group.error))
    return Card(group, chain, law, deltas(chain, ages, spec.delta), forward(chain, ages))


def _tables(
    spec: Spec, cards: dict[str, Card], ages: Integers, moved: float, records: int, weight: float
) -> dict[str, dict[str, Vector]]:
    """Return what each slot would give a client of each group, shape (K,); names as in `Plan`."""
    found = {}
    for name, card in cards.items():
        start: Start = "stationary" if card.steady else "round"
        left = card.backward[ages]
        noise = classical_epsilon(spec.epsilon_now, left, spec.cap)
        scale = moved / noise.classical
        then = laws(card.chain, card.law, ages, start, spec.slots - 1)
        about = moments(card.chain.states, then, card.chain.powers(ages))
        heard = about.variance_then / records + 2 * scale**2
        gain = about.covariance / records / heard if spec.use == "wiener" else np.ones(len(ages))
        chosen = weight**2 * expected_loss(about, records, scale, spec.use)
        # the card alone, without any upload
        alone = weight**2 * np.maximum(about.variance_now / records, 0.0)
        found[name] = {
            "losses": chosen, "alone": alone, "deltas": left, "epsilons": noise.classical,
            "capped": noise.capped, "scales": scale, "mean_then": about.mean_then,
            "mean_now": about.mean_now, "gains": gain,
        }  # fmt: skip
    return found


def _places(spec: Spec, clients: int, each: int) -> Integers:
    """Return the open slots, each as often as it takes clients; ConfigError if these do not fit."""
    if beyond := [slot for slot in spec.closed if slot >= spec.slots]:
        raise ConfigError(
            f"estimator.method.closed: there is no slot {beyond[0]}; a round has slots 0 to "
            f"{spec.slots - 1}"
        )
    slots = np.setdiff1d(np.arange(spec.slots), spec.closed)
    if not len(slots):
        raise ConfigError(
            "estimator.method.closed: all slots of a round are closed, so that nobody could ever "
            "release; leave one open"
        )
    if len(slots) * (spec.capacity or clients) < clients:
        raise ConfigError(
            f"estimator.method.capacity: {counted(clients, 'client')} and "
            f"{counted(len(slots), 'open slot')} with {counted(spec.capacity or clients, 'place')} "
            "each do not fit; raise it, use more slots, or close fewer"
        )
    return np.repeat(slots, min(each, clients)).astype(np.int64)


class Noise(NamedTuple):
    """How much noise each age needs, shape (K,).

    classical: Epsilon at collection.
    capped: Where the age alone would have allowed more than the cap.
    """

    classical: Vector
    capped: np.ndarray


def present_epsilon(classical: Vector, delta: Vector) -> Vector:
    """Return the epsilon about a record's value now: ln(1 + Delta (e^classical - 1)).

    Proposition 1. It holds for one release; several do not add up: see `repeated_epsilon`.
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
