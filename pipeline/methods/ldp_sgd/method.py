"""Locally private gradient descent, as the registry knows it."""

from __future__ import annotations

import numpy as np

from pipeline.local.plan import Plan
from pipeline.methods.facts import Missed, Sizes
from pipeline.methods.ldp_sgd import facts
from pipeline.methods.ldp_sgd.plan import GradientPlan
from pipeline.methods.ldp_sgd.server import GradientServer
from pipeline.methods.ldp_sgd.simulation import GradientStream
from pipeline.study import Study


class LdpSgd:
    """As `methods.base.Method`."""

    def plan(self, study: Study, level: str | None = None) -> GradientPlan:
        """As `Method.plan`."""
        return GradientPlan(study, level)

    def server(self, plan: Plan) -> GradientServer:
        """As `Method.server`."""
        return GradientServer(own(plan))

    def facts(self, plan: Plan) -> dict[str, object]:
        """As `Method.facts`."""
        return facts.facts(own(plan))

    def warnings(self, plan: Plan) -> tuple[str, ...]:
        """As `Method.warnings`."""
        return facts.warnings(own(plan))

    def sizes(self, plan: Plan, records: int) -> Sizes:
        """As `Method.sizes`."""
        return facts.sizes(own(plan), records)

    def better(self, plan: Plan, missed: Missed) -> tuple[str, ...]:
        """As `Method.better`."""
        return facts.better(own(plan), missed)

    def whole_log(self, plan: Plan) -> str:
        """As `Method.whole_log`."""
        del plan
        return (
            'kind = "ldp-sgd" moves one path from the public start through all records in their '
            "order, and each gradient was taken where that path had led"
        )

    def simulation(self, plan: Plan, rng: np.random.Generator) -> GradientStream | None:
        """As `Method.simulation`."""
        plan = own(plan)
        # sums beside the gradients, of a window, are those of its release
        return None if plan.beside else GradientStream(plan, rng)


def own(plan: Plan) -> GradientPlan:
    """Return a plan as one of this method.

    Raises
    ------
    TypeError
        If it is another's.
    """
    if not isinstance(plan, GradientPlan):
        raise TypeError("a method serves plans that it has made")
    return plan


METHOD = LdpSgd()
