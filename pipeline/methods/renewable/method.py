"""Renewable estimation, as the registry knows it, and noised releases of it at the worker."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np

from pipeline.errors import PrivacyError
from pipeline.estimators.estimate import Estimate
from pipeline.methods.base import Method, Plan, Server, Spec
from pipeline.methods.renewable import plan as plans
from pipeline.methods.renewable import spec as keys
from pipeline.methods.renewable.client import RenewableTask
from pipeline.methods.renewable.estimate import estimate_private
from pipeline.methods.renewable.open import OpenServer
from pipeline.methods.renewable.plan import facts
from pipeline.methods.renewable.state import GROUPS, PrivateBatch, PrivateState, Shape
from pipeline.privacy import memory
from pipeline.release.budget import most_releases
from pipeline.release.layout import Rows
from pipeline.release.policy import growth_of
from pipeline.release.task import RecordBounds
from pipeline.study.model import Study
from pipeline.study.reference import Seen
from pipeline.types import Integers


class PrivateServer(Server[PrivateState]):
    """As `methods.base.Server`, for integer sums."""

    def __init__(self, task: RenewableTask) -> None:
        self._task, self._shape = task, Shape.of(task)
        self._start, self._later = (task.layout.columns(version) for version in (0, 1))

    def empty(self) -> PrivateState:
        return PrivateState(self._shape)

    def read(self, fields: dict[str, bytes]) -> PrivateState:
        return PrivateState.decode(self._shape, fields)

    def fold(self, state: PrivateState, rows: Rows) -> None:
        """As `Server.fold`; any order gives the same bits."""
        state.fold(self.batch(rows))

    def batch(self, rows: Rows) -> PrivateBatch:
        """Return releases part by part, those at the start apart."""
        at_start, slots = rows["version"] == 0, self._task.slots
        some = bool(at_start.any())
        later = rows[~at_start] if some else rows
        first, sums = rows["sums"][at_start], later["sums"]
        counted, nothing = _part(sums, self._later.get("counts")), sums[:, :0]
        # a regression has no classes: what it counts is the sum of squared slopes
        classes, squares = (counted, nothing) if self._shape.classes else (nothing, counted)
        if some:
            classes = np.concatenate([_part(first, self._start.get("counts")), classes])
        # where windows and noise are alike, releases say nothing of their place
        placed = self._task.remembers
        count = len(later)
        return PrivateBatch(
            counts=classes,
            start=first[:, self._start["gradient"]],
            slots=self.slots(rows),
            epochs=memory.epochs_of(later["model_watermark"], slots),
            expansion=later["point"],
            gradient=sums[:, self._later["gradient"]],
            curvature=sums[:, self._later["curvature"]],
            middle=_part(sums, self._later.get("middle")),
            squares=squares,
            blocks=later["records"].astype(np.int64) // slots,
            numbers=later["number"] if placed else np.zeros(count, dtype=np.int64),
            starts=later["starts"] if placed else np.zeros((count, memory.EPOCHS), dtype=np.int64),
            # any bits of a digest will do
            groups=(later["client"][:, 0] % GROUPS).astype(np.int64),
        )

    def estimate(
        self,
        parts: Sequence[tuple[float, PrivateState]],
        partitions: Sequence[int],
        *,
        missing: int = 0,
    ) -> Estimate:
        del partitions
        return estimate_private(self._task, parts, missing)

    def start_is_over(self, states: Sequence[PrivateState], furthest: int) -> bool:
        """As `Server.start_is_over`.

        The first model is one step from zero, and its noise falls with the releases behind it only.
        Later estimates leave it slowly in directions whose curvature is below its noise, so a first
        model of one or two releases can spoil a long stream. Waiting costs nothing: releases at the
        start carry less noise than later ones. Nobody is held up either: it is over as soon as one
        client has sent all that `stream.max_in_flight_windows` or `trust.largest_share` allows.
        """
        stream, share = self._task.study.stream, most_releases(self._task.study, 0)
        held_at = [most for most in (self._task.most_at_start, share) if most]
        if any(state.epochs for state in states) or any(furthest >= most for most in held_at):
            return True
        return sum(int(state.start[-1]) for state in states) >= stream.publish.releases


def _part(rows: Integers, columns: slice | None) -> Integers:
    return rows[:, :0] if columns is None else rows[:, columns]


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
