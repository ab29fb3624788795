"""Age-aware collection, as the registry knows it."""

from __future__ import annotations

from collections.abc import Container
from typing import Any

import msgspec

from pipeline.methods.age_aware import beginning, card, facts, timetable
from pipeline.methods.age_aware import spec as keys
from pipeline.methods.age_aware.server import RoundServer
from pipeline.methods.age_aware.task import AgedTask
from pipeline.methods.age_aware.telling import RoundReport
from pipeline.methods.base import Method, Rounds, Spec
from pipeline.study.model import Study


class PlannedRounds(Rounds):
    """Which slot each client releases in a round, and the cards behind it."""

    timetable = staticmethod(timetable.timetable)
    model_card = staticmethod(card.model_card)


#: Raised whenever the plan of the same study becomes another where slots take so many clients.
PLAN_SEMANTICS = 2


class AgeAware(Method[AgedTask]):
    """One planned value of each client a round, with less noise the older it is."""

    spec = Spec(
        kind="age-aware",
        title="values of planned age, noised for their present",
        losses=("linear",),
        table="method",
        features=False,
        template=beginning.TABLES,
        needs_noise=(
            'kind = "age-aware" plans how old values are by the noise that they need, so that '
            "without noise it has no stream; leave --without-privacy out"
        ),
        no_reference_fit=(
            "an estimate is of the end of a round, and all records are of all its slots"
        ),
    )
    report = RoundReport()
    rounds = PlannedRounds()

    def resolve(self, study: Study, given: Container[str]) -> Study:
        """As `Method.resolve`: there is nothing to penalise."""
        del given
        keys.check(study)
        estimator = msgspec.structs.replace(study.estimator, ridge=0.0)
        return msgspec.structs.replace(study, estimator=estimator)

    def enter(self, meaning: dict[str, Any], study: Study) -> None:
        """As `Method.enter`: of plans that are equally good, another one noises other slots."""
        if keys.spec_of(study).capacity is not None:
            meaning["plan"] = PLAN_SEMANTICS

    task = AgedTask
    server = RoundServer
    plan = staticmethod(facts.plan)


METHOD = AgeAware()
