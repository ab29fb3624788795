"""Locally private gradient descent, as the registry knows it."""

from __future__ import annotations

from pipeline.local.plan import Plan
from pipeline.methods.ldp_sgd.plan import GradientPlan
from pipeline.methods.ldp_sgd.server import GradientServer
from pipeline.study import Study


class LdpSgd:
    """As `methods.base.Method`."""

    def plan(self, study: Study, level: str | None = None) -> GradientPlan:
        """As `Method.plan`."""
        return GradientPlan(study, level)

    def server(self, plan: Plan) -> GradientServer:
        """As `Method.server`."""
        return GradientServer(own(plan))


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
