"""Renewable estimation, as the registry knows it."""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Any

import msgspec
import numpy as np

from pipeline.errors import PrivacyError
from pipeline.methods.facts import Design, Missed, Outlook, Sizes
from pipeline.methods.renewable import design, facts, spec
from pipeline.methods.renewable.open_server import OpenServer
from pipeline.methods.renewable.precision import noise_of
from pipeline.methods.renewable.private_server import PrivateServer
from pipeline.methods.renewable.replacing import ReplacingServer
from pipeline.methods.renewable.task import RenewableTask
from pipeline.release.task import Task
from pipeline.study import Study

#: Raised where the meaning of noised releases at the public start changes, by loss; else 1.
START_SEMANTICS = {"logistic": 2}

#: Why a log with sums that were sent again has no later beginning.
WHOLE = "sums that a client sends again (estimator.method.reexpand) stand for all of its records"

#: What the operator of such a study should know.
KEPT = (
    "estimator.method.reexpand: each client keeps all records that it has released, encoded and "
    "readable, in its database (VEILSTREAM_FOLDER), and Redis the sums of each client"
)


class Renewable:
    """As `methods.base.Method`."""

    title = "renewable estimation from releases"
    tables = ("method",)
    losses = ("gdwd", "logistic", "linear", "poisson")
    levels = False
    server_side: Mapping[str, str] = {}
    client_side: Mapping[str, str] = {
        "estimator.method.secant_width": "clients summed curvatures over the live width",
        "estimator.method.reexpand": "clients did or did not send their sums again",
    }

    def check(self, study: Study) -> None:
        """As `Method.check`."""
        spec.check(study)

    def complete(self, study: Study, given: Container[str]) -> Study:
        """As `Method.complete`: of classes with noise a ridge for which intervals come."""
        if "ridge" in given or not study.noised or study.data.response.kind != "class":
            return study
        try:
            ridge = max(study.estimator.ridge, noise_of(self.task(study)).ample_ridge())
        except PrivacyError:
            # a budget that cannot be kept is refused where a task is made
            return study
        estimator = msgspec.structs.replace(study.estimator, ridge=min(ridge, 1.0))
        return msgspec.structs.replace(study, estimator=estimator)

    def enter(self, meaning: dict[str, Any], study: Study) -> None:
        """As `Method.enter`."""
        if study.noised and study.estimator.loss in START_SEMANTICS:
            meaning["start"] = START_SEMANTICS[study.estimator.loss]
        if study.noised:
            meaning["secant"] = spec.WIDTH_SEMANTICS

    def intervals(self, study: Study) -> tuple[str, ...]:
        """As `Method.intervals`."""
        del study
        return ()

    def task(self, study: Study, level: str | None = None) -> RenewableTask:
        """As `Method.task`."""
        return RenewableTask(study, level)

    def server(self, task: Task) -> PrivateServer | OpenServer | ReplacingServer:
        """As `Method.server`, for a study with noise or without."""
        task = own(task)
        if task.reexpands:
            return ReplacingServer(task)
        return PrivateServer(task) if task.study.noised else OpenServer(task)

    def facts(self, task: Task) -> dict[str, object]:
        """As `Method.facts`."""
        return facts.facts(own(task))

    def warnings(self, task: Task) -> tuple[str, ...]:
        """As `Method.warnings`."""
        return (KEPT,) if own(task).reexpands else ()

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
        return WHOLE if own(task).reexpands else ""

    def simulation(self, task: Task, rng: np.random.Generator) -> None:
        """As `Method.simulation`."""
        del task, rng


def own(task: Task) -> RenewableTask:
    """Return a task as one of this method; TypeError if it is another's."""
    if not isinstance(task, RenewableTask):
        raise TypeError("a method serves tasks that it has made")
    return task


METHOD = Renewable()
