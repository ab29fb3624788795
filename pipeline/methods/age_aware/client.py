"""A client's rounds: what is released, with what noise, and what it costs.

Epsilons about the present must not be added up: their sum can be too small. The nested rule
applies Proposition 1 of Lin et al. (2024) after each release to all that is known by then.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import msgspec
import numpy as np

from pipeline.errors import BudgetExceeded, PrivacyError
from pipeline.methods.age_aware.markov import odds
from pipeline.methods.age_aware.schedule import Plan, plan_of, present_epsilon
from pipeline.methods.age_aware.spec import clients_of, spec_of
from pipeline.privacy.accounting import total_mu
from pipeline.privacy.events import Event, Pure, parts
from pipeline.privacy.guarantee import Guarantee, guarantee_of
from pipeline.privacy.mechanism import Channel, Mechanism
from pipeline.privacy.sensitivity import rounding_of_vector
from pipeline.records.encoder import Arrays
from pipeline.release.budget import Budget
from pipeline.release.layout import Field, Layout
from pipeline.release.model import Model
from pipeline.release.policy import Decision, Directive, OpenWindow, ReleasePolicy, Send, Wait
from pipeline.release.query import Exact, Query, VectorPart
from pipeline.release.task import Task
from pipeline.study.model import Study
from pipeline.types import Vector


@dataclass(frozen=True, slots=True)
class WhenOver:
    """A round leaves when its last slot is over, and never before: what is sent early is fresher.

    So long the value of an earlier slot stays with the client, which alone knows it.
    """

    discards: ClassVar[bool] = False

    def decide(self, window: OpenWindow, directive: Directive, now: float) -> Decision:
        del directive, now
        return Send() if window.full else Wait("the end of the round" if window.taken else "")


class AgedTask(Task):
    """As `Task`: one noised sum of a client's records in the slot that the plan gives it.

    client: Whose task it is; None for the worker, which has that of all.
    plan: The study's, where it has been computed already.
    """

    keeps_slots = True
    budget: AgedBudget

    def __init__(
        self, study: Study, revision: str = "", level: str | None = None, *,
        client: str | None = None, plan: Plan | None = None,
    ) -> None:  # fmt: skip
        self.plan = plan_of(study) if plan is None else plan
        self._number = None if client is None else self.plan.number(client)
        self._of: dict[str, AgedTask] = {}
        self._after: dict[int, float] = {}
        super().__init__(study, revision, level)

    def make_budget(self, level: str | None) -> AgedBudget:
        del level
        return AgedBudget(self.study, self.plan, self._number)

    def of_client(self, name: str) -> AgedTask:
        """As `Task.of_client`; ConfigError if the study does not name the client."""
        if name not in self._of:
            self._of[name] = AgedTask(self.study, self.revision, client=name, plan=self.plan)
        return self._of[name]

    @property
    def number(self) -> int:
        """The client's place in the plan; PrivacyError for the task of no client."""
        if self._number is None:
            raise PrivacyError("a round is planned for each client: ask with `of_client`")
        return self._number

    @property
    def policy(self) -> ReleasePolicy:
        return WhenOver()

    @cached_property
    def _loosest(self) -> Channel:
        """The channel of the largest epsilon, on whose lattice all clients release."""
        order = self.budget.mechanism.order
        largest = float(self.plan.epsilons.max())
        # a record's values may be at either end of the encoded range
        return self.budget.mechanism.channel(2.0, rounding_of_vector(1, order), largest, 1.0)

    def channel_of(self, number: int) -> Channel:
        """Return what noises the sum of a client."""
        epsilons = self.plan.epsilons
        return self._loosest.stricter(float(epsilons.max() / epsilons[number]))

    @cached_property
    def deviations(self) -> Vector:
        """Standard deviation of the noise of each client's mean, in real units, shape (m,)."""
        whole = self._loosest.standard_deviation * self.response_scale[1] / self.plan.records
        return np.asarray(whole * self.plan.epsilons.max() / self.plan.epsilons)

    @property
    def unit(self) -> float:
        """What one of a release's integers is of a client's mean, in real units."""
        return self._loosest.unit * self.response_scale[1] / self.plan.records

    def worst(self, rounds: int) -> float:
        """Return what so many rounds say of any client's record at any one time, as an epsilon."""
        if rounds not in self._after:
            # each estimate asks, mostly for the same rounds as the one before
            self._after = {rounds: max(budget.after(rounds) for budget in self._worst)}
        return self._after[rounds]

    def at_any_time(self, rounds: int) -> float:
        """Return `worst`, at most privacy.epsilon: clients that would pay more have stopped."""
        return min(self.worst(rounds), self.study.privacy.epsilon or math.inf)

    @cached_property
    def _worst(self) -> list[AgedBudget]:
        """Budgets of the client of each group that pays most."""
        plan = self.plan
        most = {plan.groups[i]: int(i) for i in np.argsort(plan.epsilons, kind="stable")}
        return [AgedBudget(self.study, plan, number) for number in most.values()]

    @cached_property
    def channel(self) -> Channel:
        """What noises the sum of this client; PrivacyError for the task of no client."""
        return self.channel_of(self.number)

    @cached_property
    def states(self) -> Vector:
        """The values that a record of this client can have, encoded and rising; none: any."""
        centre, unit = self.response_scale
        found = self.plan.card(self.number).group.states
        return np.array([]) if found is None else (np.sort(np.array(found)) - centre) / unit

    @cached_property
    def absent(self) -> float:
        """What a slot without a record counts as, encoded: what its card expects."""
        centre, unit = self.response_scale
        return min(max((float(self.plan.mean_then[self.number]) - centre) / unit, -1.0), 1.0)

    @property
    def layout(self) -> Layout:
        """As `Task.layout`: one form for all clients, with room for the largest noise."""
        widest = self.channel_of(int(self.plan.epsilons.argmin()))
        field = Field("sum", 1, widest.exponent, math.floor(widest.largest(self.plan.records)))
        return Layout.noised(self.size, [field])

    @property
    def clients(self) -> tuple[str, ...]:
        """As `Task.clients`: those of the model cards."""
        return tuple(clients_of(spec_of(self.study)))

    def query(self, window: Arrays, model: Model) -> Query:
        return query(self, window, model)


#: Encoded values are whole multiples of 2^-20 before they are summed.
BITS = 20


def query(task: AgedTask, window: Arrays, model: Model) -> Query:
    """As `Task.query`: the slots of a round one after the other, the same records in each."""
    task.check_window(window)
    plan, number = task.plan, task.number
    first = int(plan.slots[number]) * plan.records
    values = np.full(plan.records, task.absent)
    collected = np.clip(window.responses[first : first + plan.records], -1.0, 1.0)
    known = ~np.isnan(collected)
    values[: len(collected)][known] = to_states(collected[known], task.states)
    whole = np.trunc(np.ldexp(values, BITS)).sum()
    total = Exact(np.array([whole], dtype=np.int64), np.array([-BITS]))
    return Query(model, {"sum": VectorPart(total, task.channel, plan.records)})


def to_states(values: Vector, states: Vector) -> Vector:
    """Return the nearest state of each value, before anything is summed; without states itself.

    What the mechanism reads must be what the model card speaks of.

    states: Rising, in the unit of the values, shape (S,); none for a card without any.
    """
    if not len(states):
        return values
    cuts = (states[1:] + states[:-1]) / 2
    found: Vector = states[np.searchsorted(cuts, values)]
    return found


#: More rounds than any study has.
_FOR_EVER = 10**9


class AgedBudget(Budget):
    """As `Budget`: each round pays the classical epsilon of its slot, and rounds compose nested.

    `privacy.epsilon` is the promise about a record's value at any one time, all rounds together.

    plan: Of the study.
    number: The client's place in it; None: whichever client pays most.
    """

    def __init__(self, study: Study, plan: Plan, number: int | None) -> None:
        super().__init__(study, None, touched=1, scope="individual")
        self._plan = plan
        self._number = int(plan.epsilons.argmax()) if number is None else number

    def per_record_of(self, mechanism: Mechanism) -> float:
        """As `Budget.per_record_of`: classical, of one round."""
        del mechanism
        return float(self._plan.epsilons[self._number])

    def together(self, event: Event) -> Event:
        """As `Budget.together`: by the nested rule.

        Raises BudgetExceeded if the card does not hold for so many rounds.
        """
        card = self._plan.card(self._number)
        rounds = sum(times for _, times in parts(event))
        last = card.group.last_round
        if last is not None and rounds > last + 1:
            raise BudgetExceeded(
                f"the model card of this client holds up to round {last}, and says nothing of what "
                "later releases would cost: nothing is released; the operator must look at the "
                "card anew and start a study with a new name"
            )
        return Pure(self._nested(rounds))

    @property
    def whole(self) -> Event:
        """As `Budget.whole`: of rounds for ever, as far as the card and the promise reach."""
        card, epsilon = self._plan.card(self._number), float(self._plan.epsilons[self._number])
        room = (self._study.privacy.epsilon or 0.0) - card.group.card_epsilon
        last = card.group.last_round
        ends = bounded_rounds(max(card.backward[-1], card.ahead[-1]), epsilon) < math.inf
        if last is None and not ends:
            return Pure(room)
        return Pure(min(room, self._nested(_FOR_EVER if last is None else last + 1)))

    @property
    def beforehand(self) -> Mapping[str, Event]:
        """As `Budget.beforehand`: the model card, if it was estimated from these records."""
        group = self._plan.card(self._number).group
        if not group.card_epsilon:
            return {}
        # the same card for other clients, or for longer, is the same estimate
        card = msgspec.structs.replace(group, clients=[], last_round=None)
        digest = hashlib.sha256(msgspec.json.encode(card, order="sorted")).hexdigest()
        return {f"model card {digest[:12]}": Pure(group.card_epsilon)}

    def after(self, rounds: int) -> float:
        """Return the epsilon about a value at any one time after so many rounds, at least 1.

        With what the model card has cost.
        """
        return self._nested(rounds) + self._plan.card(self._number).group.card_epsilon

    def _nested(self, rounds: int) -> float:
        card, epsilon = self._plan.card(self._number), float(self._plan.epsilons[self._number])
        return repeated_epsilon(rounds, epsilon, card.backward, card.ahead)

    @cached_property
    def guarantee(self) -> Guarantee:
        """The statement that goes with every estimate: what is protected, and what is not."""
        privacy, plan = self._study.privacy, self._plan
        epsilon, spec = privacy.epsilon or 0.0, plan.spec
        known = (
            "anyone, whatever they know of single records, but nothing that ties records together"
            if spec.delta == "prior-free"
            else "anyone who knows the records' long-run law and no more"
        )
        rates = [rate for card in plan.cards.values() if (rate := card.group.rate) is not None]
        speed = (
            " (of constant mixing: one slot later no value is more than "
            f"{odds(max(rates)):.4g} times as likely after one value as after another)"
            if rates
            else ""
        )
        found = guarantee_of(
            mechanism=privacy.mechanism, epsilon=epsilon, delta=0.0,
            mu=total_mu([Pure(epsilon)]), unit=privacy.unit, records=None,
            neighbours=privacy.neighbours, counted="",
        )  # fmt: skip
        return msgspec.structs.replace(
            found,
            guarantee=(
                f"each published value is {spec.epsilon_now:g}-indistinguishable with respect to "
                "any single record as it is at the time of publication, and all rounds together "
                f"{epsilon:g}-indistinguishable with respect to its value at any one time, "
                f"provided records change at least as fast as the model cards say{speed}, against "
                f"{known}"
                ". With respect to the record as it was when collected, the guarantee is "
                f"classical {plan.epsilons.max():.4g}-DP per round. It does not protect facts that "
                "do not change, nor a record's history: for these rounds add up; timing and which "
                "client sent what are not hidden"
            ),
        )


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
