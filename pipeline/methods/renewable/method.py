"""Renewable estimation, as the registry knows it."""

from __future__ import annotations

from pipeline.local.plan import Plan
from pipeline.methods.renewable.open_server import OpenServer
from pipeline.methods.renewable.plan import RenewablePlan
from pipeline.methods.renewable.private_server import PrivateServer
from pipeline.study import Study


class Renewable:
    """As `methods.base.Method`."""

    def plan(self, study: Study, level: str | None = None) -> RenewablePlan:
        """As `Method.plan`."""
        return RenewablePlan(study, level)

    def server(self, plan: Plan) -> PrivateServer | OpenServer:
        """As `Method.server`, for a study with noise or without."""
        plan = own(plan)
        return PrivateServer(plan) if plan.study.noised else OpenServer(plan)


def own(plan: Plan) -> RenewablePlan:
    """Return a plan as one of this method.

    Raises
    ------
    TypeError
        If it is another's.
    """
    if not isinstance(plan, RenewablePlan):
        raise TypeError("a method serves plans that it has made")
    return plan


METHOD = Renewable()
