"""Age-aware collection, as the registry knows it."""

from __future__ import annotations

from collections.abc import Container
from typing import Any, ClassVar

import msgspec

from pipeline.methods.age_aware import beginning as start
from pipeline.methods.age_aware import card, spec, telling
from pipeline.methods.age_aware import facts as known
from pipeline.methods.age_aware import timetable as plans
from pipeline.methods.age_aware.server import RoundServer
from pipeline.methods.age_aware.task import AgedTask
from pipeline.methods.base import Method
from pipeline.methods.facts import Design, Missed
from pipeline.study import Study

#: Raised whenever the plan of the same study becomes another where slots take so many clients.
PLAN_SEMANTICS = 2


class AgeAware(Method[AgedTask]):
    """As `methods.base.Method`."""

    title = "values of planned age, noised for their present"
    losses, tables, features = ("linear",), ("method",), False
    client_side: ClassVar = {"estimator.method": "clients noised their releases by it"}
    no_open = (
        'kind = "age-aware" plans how old values are by the noise that they need, so that without '
        "noise it has no stream; leave --without-privacy out"
    )
    no_pooled = "an estimate is of the end of a round, and all records are of all its slots"

    beginning = staticmethod(start.tables)
    check = staticmethod(spec.check)

    def complete(self, study: Study, given: Container[str]) -> Study:
        """As `Method.complete`: there is nothing to penalise."""
        del given
        estimator = msgspec.structs.replace(study.estimator, ridge=0.0)
        return msgspec.structs.replace(study, estimator=estimator)

    def enter(self, meaning: dict[str, Any], study: Study) -> None:
        """As `Method.enter`: of plans that are equally good, another one noises other slots."""
        if spec.spec_of(study).capacity is not None:
            meaning["plan"] = PLAN_SEMANTICS

    def clients(self, study: Study) -> tuple[str, ...]:
        """As `Method.clients`."""
        return tuple(spec.clients_of(spec.spec_of(study)))

    task = AgedTask
    server = RoundServer
    facts = staticmethod(known.facts)
    warnings = staticmethod(known.warnings)
    timetable = staticmethod(plans.timetable)
    model_card = staticmethod(card.model_card)
    sizes = staticmethod(known.sizes)
    outlook = staticmethod(known.outlook)
    told = staticmethod(telling.told)

    def design(self, study: Study, records: int, clients: int) -> Design:
        """As `Method.design`: the cards decide, and no size."""
        del study, records, clients
        return Design({}, {})

    def better(self, task: AgedTask, missed: Missed) -> tuple[str, ...]:
        """As `Method.better`."""
        del task, missed
        return ("model cards that are nearer to how records change",)


METHOD = AgeAware()
