"""Renewable estimation, as the registry knows it."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import replace
from typing import Any

import msgspec

from pipeline.errors import PrivacyError
from pipeline.methods.base import Method, Plan, Spec
from pipeline.methods.renewable import plan as plans
from pipeline.methods.renewable import spec as keys
from pipeline.methods.renewable.client import RenewableTask
from pipeline.methods.renewable.open import OpenServer
from pipeline.methods.renewable.plan import facts
from pipeline.methods.renewable.server import PrivateServer
from pipeline.privacy import memory
from pipeline.release.task import RecordBounds
from pipeline.study.growth import growth_of
from pipeline.study.model import Study
from pipeline.study.reference import Seen

#: Raised where the meaning of noised releases at the public start changes, by loss; else 1.
START_SEMANTICS = {"logistic": 2}
#: The same where the curvature of a loss does.
CURVATURE_SEMANTICS = {"gdwd": 3}

#: What the operator of an open study of a loss whose curvature jumps should know.
EARLY = (
    "estimator.loss: the sums keep curvatures that were taken at early models. Intervals of gdwd "
    "can then be too short if features have few levels: 95 % intervals have covered 86 %. Fit the "
    "records again at the end (`veilstream fit --without-privacy`)"
)


class Renewable(Method[RenewableTask]):
    """Releases of sums at the newest model, with or without noise."""

    spec = Spec(
        kind="renewable",
        title="renewable estimation from releases",
        losses=("gdwd", "logistic", "linear", "poisson"),
    )

    def grows(self, study: Study) -> bool:
        """As `Method.grows`: where releases have noise."""
        return study.noised

    remembers = staticmethod(keys.remembers)

    def resolve(self, study: Study, given: Container[str]) -> Study:
        """As `Method.resolve`: of gdwd with noise a ridge for which intervals come, else none.

        A ridge would pull coefficients towards 0, and the estimate needs none where records say
        enough.
        """
        if "ridge" in given or not study.noised:
            return study
        ridge = 0.0
        if study.estimator.loss == "gdwd":
            try:
                ridge = plans.default_ridge(self.task(study))
            except PrivacyError:
                # a budget that cannot be kept is refused where a task is made
                return study
        estimator = msgspec.structs.replace(study.estimator, ridge=ridge)
        return msgspec.structs.replace(study, estimator=estimator)

    def enter(self, meaning: dict[str, Any], study: Study) -> None:
        if study.noised and study.estimator.loss in START_SEMANTICS:
            meaning["start"] = START_SEMANTICS[study.estimator.loss]
        if study.noised:
            meaning["secant"] = _of_curvature(study)
            meaning["privacy"]["split"] = keys.split_of(study, RecordBounds(study).loss).shares
        grown = growth_of(study, grows=study.noised)
        if grown.divisor:
            meaning["growth"] = [grown.divisor, grown.most]
        if keys.remembers(study) and study.privacy.noise_memory != 0:
            meaning["memory"] = memory.WINDOWS

    task = RenewableTask

    def server(self, task: RenewableTask) -> PrivateServer | OpenServer:
        """As `Method.server`, for a study with noise or without."""
        return PrivateServer(task) if task.study.noised else OpenServer(task)

    def plan(
        self, task: RenewableTask, records: int, clients: int, seen: Seen | None = None
    ) -> Plan:
        estimator = task.study.estimator
        kept = not task.study.noised and estimator.forgetting is None
        jumps = estimator.loss in keys.JUMPS and estimator.smoothing is None
        found = plans.plan(task, records, clients, seen)
        return replace(
            found,
            facts=facts(task, clients, found.usual),
            warnings=(EARLY,) if kept and jumps else (),
        )

    propose = staticmethod(plans.propose)


def _of_curvature(study: Study) -> int:
    """Return the number of what a study's curvature means: a ramp of its own is as it was."""
    newest = CURVATURE_SEMANTICS.get(study.estimator.loss, 1)
    return newest if study.estimator.smoothing is None else newest - 1


METHOD = Renewable()
