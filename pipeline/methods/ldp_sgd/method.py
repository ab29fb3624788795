"""Locally private gradient descent, as the registry knows it."""

from __future__ import annotations

from collections.abc import Container
from typing import Any

import numpy as np

from pipeline.methods.facts import Design, Missed, Outlook, Sizes
from pipeline.methods.ldp_sgd import design, facts
from pipeline.methods.ldp_sgd.refusals import check
from pipeline.methods.ldp_sgd.server import GradientServer
from pipeline.methods.ldp_sgd.simulation import GradientStream
from pipeline.methods.ldp_sgd.spec import LOSSES, enter, spec_of
from pipeline.methods.ldp_sgd.task import GradientTask
from pipeline.release.task import Task
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

    def complete(self, study: Study, given: Container[str]) -> Study:
        """As `Method.complete`: a path has no such keys."""
        del given
        return study

    def enter(self, meaning: dict[str, Any], study: Study) -> None:
        """As `Method.enter`."""
        enter(meaning, study)

    def intervals(self, study: Study) -> tuple[str, ...]:
        """As `Method.intervals`."""
        return spec_of(study).intervals

    def task(self, study: Study, level: str | None = None) -> GradientTask:
        """As `Method.task`."""
        return GradientTask(study, level)

    def server(self, task: Task) -> GradientServer:
        """As `Method.server`."""
        return GradientServer(own(task))

    def facts(self, task: Task) -> dict[str, object]:
        """As `Method.facts`."""
        return facts.facts(own(task))

    def warnings(self, task: Task) -> tuple[str, ...]:
        """As `Method.warnings`."""
        return facts.warnings(own(task))

    def sizes(self, task: Task, records: int) -> Sizes:
        """As `Method.sizes`."""
        return facts.sizes(own(task), records)

    def outlook(self, task: Task, records: int) -> Outlook:
        """As `Method.outlook`."""
        return design.outlook(own(task), records)

    def design(self, study: Study, records: int, clients: int) -> Design:
        """As `Method.design`."""
        return design.design(study, records, clients)

    def better(self, task: Task, missed: Missed) -> tuple[str, ...]:
        """As `Method.better`."""
        return facts.better(own(task), missed)

    def whole_log(self, task: Task) -> str:
        """As `Method.whole_log`."""
        del task
        return (
            'kind = "ldp-sgd" moves one path from the public start through all records in their '
            "order, and each gradient was taken where that path had led"
        )

    def simulation(self, task: Task, rng: np.random.Generator) -> GradientStream | None:
        """As `Method.simulation`."""
        return GradientStream(own(task), rng)


def own(task: Task) -> GradientTask:
    """Return a task as one of this method; TypeError if it is another's."""
    if not isinstance(task, GradientTask):
        raise TypeError("a method serves tasks that it has made")
    return task


METHOD = LdpSgd()
