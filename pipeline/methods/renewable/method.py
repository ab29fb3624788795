"""Renewable estimation, as the registry knows it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from pipeline.local.plan import Plan
from pipeline.methods.facts import Missed, Sizes
from pipeline.methods.renewable import facts
from pipeline.methods.renewable.open_server import OpenServer
from pipeline.methods.renewable.plan import RenewablePlan
from pipeline.methods.renewable.private_server import PrivateServer
from pipeline.study import Study

#: Raised where the meaning of noised releases at the public start changes, by loss; else 1.
START_SEMANTICS = {"logistic": 2}


class Renewable:
    """As `methods.base.Method`."""

    title = "renewable estimation from releases"
    tables = ()
    losses = ("gdwd", "logistic", "linear", "poisson")
    levels = False
    server_side: Mapping[str, str] = {}
    client_side: Mapping[str, str] = {}

    def check(self, study: Study) -> None:
        """As `Method.check`."""
        del study

    def enter(self, meaning: dict[str, Any], study: Study) -> None:
        """As `Method.enter`."""
        if study.noised and study.estimator.loss in START_SEMANTICS:
            meaning["start"] = START_SEMANTICS[study.estimator.loss]

    def intervals(self, study: Study) -> tuple[str, ...]:
        """As `Method.intervals`."""
        del study
        return ()

    def plan(self, study: Study, level: str | None = None) -> RenewablePlan:
        """As `Method.plan`."""
        return RenewablePlan(study, level)

    def server(self, plan: Plan) -> PrivateServer | OpenServer:
        """As `Method.server`, for a study with noise or without."""
        plan = own(plan)
        return PrivateServer(plan) if plan.study.noised else OpenServer(plan)

    def facts(self, plan: Plan) -> dict[str, object]:
        """As `Method.facts`."""
        return facts.facts(own(plan))

    def warnings(self, plan: Plan) -> tuple[str, ...]:
        """As `Method.warnings`."""
        del plan
        return ()

    def sizes(self, plan: Plan, records: int) -> Sizes:
        """As `Method.sizes`."""
        return facts.sizes(own(plan), records)

    def better(self, plan: Plan, missed: Missed) -> tuple[str, ...]:
        """As `Method.better`."""
        return facts.better(own(plan), missed)

    def whole_log(self, plan: Plan) -> str:
        """As `Method.whole_log`."""
        del plan
        return ""

    def simulation(self, plan: Plan, rng: np.random.Generator) -> None:
        """As `Method.simulation`."""
        del plan, rng


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
