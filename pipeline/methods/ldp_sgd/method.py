"""Locally private gradient descent, as the registry knows it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from pipeline.methods.base import Method
from pipeline.methods.facts import Design, Missed, Outlook, Sizes
from pipeline.methods.ldp_sgd import beginning, facts
from pipeline.methods.ldp_sgd.refusals import check
from pipeline.methods.ldp_sgd.server import GradientServer
from pipeline.methods.ldp_sgd.simulation import GradientStream
from pipeline.methods.ldp_sgd.spec import LOSSES, enter, spec_of
from pipeline.methods.ldp_sgd.task import GradientTask
from pipeline.study import Study


class LdpSgd(Method[GradientTask]):
    """As `methods.base.Method`."""

    title = "gradient descent on locally private gradients of records"
    tables = ("path",)
    losses = LOSSES
    levels = True
    server_side: ClassVar = {
        "estimator.path.interval": "which intervals are shown",
        "estimator.path.burn_in": "where the average of the path begins",
    }
    client_side: ClassVar = {
        "estimator.path": "the live steps decided where clients took their gradients: other steps "
        "would lead elsewhere, and gradients of those places do not exist",
        "estimator.path.full": "it changes no number that is published",
    }

    def beginning(self, clients: int) -> Mapping[str, str]:
        """As `Method.beginning`."""
        del clients
        return beginning.TABLES

    def check(self, study: Study) -> None:
        """As `Method.check`."""
        check(study)

    def enter(self, meaning: dict[str, Any], study: Study) -> None:
        """As `Method.enter`."""
        enter(meaning, study)

    def intervals(self, study: Study) -> tuple[str, ...]:
        """As `Method.intervals`."""
        return spec_of(study).intervals

    def task(self, study: Study, level: str | None = None) -> GradientTask:
        """As `Method.task`."""
        return GradientTask(study, level)

    def server(self, task: GradientTask) -> GradientServer:
        """As `Method.server`."""
        return GradientServer(task)

    def facts(self, task: GradientTask) -> dict[str, object]:
        """As `Method.facts`."""
        return facts.facts(task)

    def warnings(self, task: GradientTask) -> tuple[str, ...]:
        """As `Method.warnings`."""
        return facts.warnings(task)

    def sizes(self, task: GradientTask, records: int) -> Sizes:
        """As `Method.sizes`."""
        return facts.sizes(task, records)

    def outlook(self, task: GradientTask, records: int) -> Outlook:
        """As `Method.outlook`."""
        return facts.outlook(task, records)

    def design(self, study: Study, records: int, clients: int) -> Design:
        """As `Method.design`."""
        return facts.design(study, records, clients)

    def better(self, task: GradientTask, missed: Missed) -> tuple[str, ...]:
        """As `Method.better`."""
        return facts.better(task, missed)

    def whole_log(self, task: GradientTask) -> str:
        """As `Method.whole_log`."""
        del task
        return (
            'kind = "ldp-sgd" moves one path from the public start through all records in their '
            "order, and each gradient was taken where that path had led"
        )

    def simulation(self, task: GradientTask, rng: np.random.Generator) -> GradientStream | None:
        """As `Method.simulation`."""
        return GradientStream(task, rng)


METHOD = LdpSgd()
