"""Locally private gradient descent, as the registry knows it."""

from __future__ import annotations

from typing import Any

import numpy as np

from pipeline.local.plan import Plan
from pipeline.methods.facts import Missed, Sizes
from pipeline.methods.ldp_sgd import facts
from pipeline.methods.ldp_sgd.plan import GradientPlan
from pipeline.methods.ldp_sgd.server import GradientServer
from pipeline.methods.ldp_sgd.simulation import GradientStream
from pipeline.methods.ldp_sgd.spec import LOSSES, check, enter, spec_of
from pipeline.study import Study


class LdpSgd:
    """As `methods.base.Method`."""

    title = "gradient descent on locally private gradients of records"
    tables = ("path",)
    losses = LOSSES
    levels = True
    server_side = {  # noqa: RUF012
        "estimator.path.interval": "which intervals are shown",
        "estimator.path.burn_in": "where the average of the path begins",
    }
    client_side = {  # noqa: RUF012
        "estimator.path": "the live steps decided where clients took their gradients: other steps "
        "would lead elsewhere, and gradients of those places do not exist",
        "estimator.path.full": "it changes no number that is published",
    }

    def check(self, study: Study) -> None:
        """As `Method.check`."""
        check(study)

    def enter(self, meaning: dict[str, Any], study: Study) -> None:
        """As `Method.enter`."""
        enter(meaning, study)

    def intervals(self, study: Study) -> tuple[str, ...]:
        """As `Method.intervals`."""
        return spec_of(study).intervals

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
