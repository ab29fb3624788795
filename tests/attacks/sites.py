"""Worst-case neighbours for the noised sums of a site: scores at a model, and sums at zero."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Literal
from unittest import mock

import numpy as np

from pipeline.methods.noisy_mle.client import SiteTask
from pipeline.methods.sites.client import WeighedTask
from pipeline.privacy import sensitivity
from pipeline.privacy.sensitivity import Neighbours
from pipeline.types import Matrix, Vector
from tests import sites
from tests.attacks.studies import (
    DELTA,
    EPSILON,
    FEATURES,
    Attack,
    Mechanism,
    Record,
    intercept,
    window_of,
)

Kind = Literal["score", "sufficient"]
KINDS: tuple[Kind, ...] = ("score", "sufficient")
#: At this predictor a record of the positive class has nearly its full slope.
WRONG = -6.0


def attack_of(
    kind: Kind, mechanism: Mechanism, neighbours: Neighbours, *, bound: float | None = None
) -> Attack:
    """Return the attack on a release of one window, at a model for scores.

    bound: Of norms, in place of the longest that there is, that of the record.
    """
    p, loss = FEATURES[mechanism], "logistic" if kind == "score" else "linear"
    task = sites.task_of(
        sites.study_text(
            f'release = "{kind}"', p=p, loss=loss, mechanism=mechanism, neighbours=neighbours,
            epsilon=EPSILON[mechanism], records=50, scaling="unit",
            delta=DELTA,
            norm_bound=bound or float(np.sqrt(1 + p)),
        )
    )  # fmt: skip
    ones: Vector = np.ones(p)
    other: Record = None if neighbours == "zero-out" else (-ones, 1.0)
    if mechanism == "discrete-laplace" and other is not None:
        other = (ones, -1.0)
    left, right = ((window_of(task, record),) for record in ((ones, 1.0), other))
    model = intercept(task, WRONG) if kind == "score" else task.first_model
    return Attack(task, model, left, right)


@dataclass(frozen=True, slots=True)
class Fault:
    """A mistake that somebody could make, and the attack that finds it."""

    name: str
    kind: Kind
    plant: Callable[[], AbstractContextManager[object]]
    bound: float | None = None

    def attack(self) -> Attack:
        """Return the attack, for as long as the fault is planted."""
        return attack_of(self.kind, "discrete-gaussian", "zero-out", bound=self.bound)


def _unweighed() -> AbstractContextManager[object]:
    def one(task: WeighedTask, design: Matrix) -> Vector:
        del task
        weights: Vector = np.ones(len(design))
        return weights

    return mock.patch.object(WeighedTask, "record_weights", one)


def _squares_for_nothing() -> AbstractContextManager[object]:
    usual = sensitivity.of_squares
    return mock.patch.object(sensitivity, "of_squares", lambda slope: usual(slope) / 16)


def _slopes_of_the_start() -> AbstractContextManager[object]:
    return mock.patch.object(SiteTask, "update_channels", SiteTask.initial_channels)


FAULTS = (
    Fault("long records of a site in full", "sufficient", _unweighed, bound=1.2),
    Fault("squares of a site with a sixteenth of their noise", "sufficient", _squares_for_nothing),
    Fault("scores of a site with the noise of the start", "score", _slopes_of_the_start),
)
