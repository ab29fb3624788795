"""Age-aware collection, as the registry knows it."""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import ClassVar

import msgspec

from pipeline.methods.age_aware import beginning, facts, spec, timetable
from pipeline.methods.age_aware.server import RoundServer
from pipeline.methods.age_aware.task import AgedTask
from pipeline.methods.base import Method
from pipeline.methods.facts import Design, Missed, Outlook, Sizes, Timetable
from pipeline.study import Study


class AgeAware(Method[AgedTask]):
    """As `methods.base.Method`."""

    title = "values of planned age, noised for their present"
    losses, tables, features = ("linear",), ("method",), False
    client_side: ClassVar = {"estimator.method": "clients noised their releases by it"}

    def beginning(self, clients: int) -> Mapping[str, str]:
        """As `Method.beginning`."""
        return beginning.tables(clients)

    def check(self, study: Study) -> None:
        """As `Method.check`."""
        spec.check(study)

    def complete(self, study: Study, given: Container[str]) -> Study:
        """As `Method.complete`: there is nothing to penalise."""
        del given
        estimator = msgspec.structs.replace(study.estimator, ridge=0.0)
        return msgspec.structs.replace(study, estimator=estimator)

    def clients(self, study: Study) -> tuple[str, ...]:
        """As `Method.clients`."""
        return tuple(spec.clients_of(spec.spec_of(study)))

    def task(self, study: Study, level: str | None = None) -> AgedTask:
        """As `Method.task`."""
        return AgedTask(study, level)

    def server(self, task: AgedTask) -> RoundServer:
        """As `Method.server`."""
        return RoundServer(task)

    def facts(self, task: AgedTask) -> dict[str, object]:
        """As `Method.facts`."""
        return facts.facts(task)

    def warnings(self, task: AgedTask) -> tuple[str, ...]:
        """As `Method.warnings`."""
        return facts.warnings(task)

    def timetable(self, task: AgedTask, number: int) -> Timetable:
        """As `Method.timetable`."""
        return timetable.timetable(task, number)

    def compared(self, task: AgedTask) -> Timetable:
        """As `Method.compared`."""
        return timetable.compared(task)

    def sizes(self, task: AgedTask, records: int) -> Sizes:
        """As `Method.sizes`."""
        return facts.sizes(task, records)

    def outlook(self, task: AgedTask, records: int) -> Outlook:
        """As `Method.outlook`."""
        return facts.outlook(task, records)

    def design(self, study: Study, records: int, clients: int) -> Design:
        """As `Method.design`: the cards decide, and no size."""
        del study, records, clients
        return Design({}, {})

    def better(self, task: AgedTask, missed: Missed) -> tuple[str, ...]:
        """As `Method.better`."""
        del task, missed
        return ("model cards that are nearer to how records change",)


METHOD = AgeAware()
