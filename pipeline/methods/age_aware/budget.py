"""What rounds of releases cost a client's records: classical at collection, nested at any time."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from functools import cached_property

import msgspec

from pipeline.errors import BudgetExceeded
from pipeline.methods.age_aware.mixing import odds
from pipeline.methods.age_aware.nested import bounded_rounds, repeated_epsilon
from pipeline.methods.age_aware.plan import Plan
from pipeline.privacy.accounting import total_mu
from pipeline.privacy.events import Event, Pure, parts
from pipeline.privacy.mechanisms import Mechanism
from pipeline.privacy.policy import Guarantee, guarantee_of
from pipeline.release.budget import Budget
from pipeline.study.model import Study

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
