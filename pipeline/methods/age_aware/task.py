"""The public numbers of a study of rounds: its plan, its budget, and the lattice of uploads."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np

from pipeline.errors import PrivacyError
from pipeline.methods.age_aware import client
from pipeline.methods.age_aware.budget import AgedBudget
from pipeline.methods.age_aware.plan import Plan, plan_of
from pipeline.methods.age_aware.spec import clients_of, spec_of
from pipeline.privacy.channel import Channel
from pipeline.privacy.sensitivity import rounding_of_vector
from pipeline.records.encode import Arrays
from pipeline.release.layout import Field, Layout
from pipeline.release.model import Model
from pipeline.release.query import Query
from pipeline.release.task import Task
from pipeline.scheduling.policy import Decision, Directive, OpenWindow, ReleasePolicy, Send, Wait
from pipeline.study.model import Study
from pipeline.types import Vector


@dataclass(frozen=True, slots=True)
class WhenOver:
    """A round leaves when its last slot is over, and never before: what is sent early is fresher.

    So long the value of an earlier slot stays with the client, which alone knows it.
    """

    discards: ClassVar[bool] = False

    def decide(self, window: OpenWindow, directive: Directive, now: float) -> Decision:
        """As `ReleasePolicy.decide`."""
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
        """As `Task.make_budget`."""
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
        """As `Task.policy`."""
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
        """As `Task.query`."""
        return client.query(self, window, model)
