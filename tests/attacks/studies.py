"""Worst-case neighbours: for each kind of release the study, the model and the two records."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from pipeline.methods import task_of as make_task
from pipeline.methods.renewable.client import RenewableTask
from pipeline.privacy.sensitivity import Neighbours
from pipeline.release.model import Model, start_model
from pipeline.release.task import Task
from pipeline.study_file.load import parse_study
from pipeline.types import Matrix, Vector

Mechanism = Literal["discrete-gaussian", "discrete-laplace"]
#: Features (n, p) and responses (n,).
Window = tuple[Matrix, Vector]
#: A record, or None for an empty slot.
Record = tuple[Vector, float] | None

#: What the studies claim; a larger epsilon makes the attack on Gaussian noise stronger, a smaller
#: one that on Laplace noise.
EPSILON: dict[Mechanism, float] = {"discrete-gaussian": 4.0, "discrete-laplace": 2.0}
DELTA = 1e-5
#: Records of one user, where users are attacked.
GROUP = 3
#: Largest class weight of the weighted study.
HEAVIEST = 8.0
#: Slope at which all parts of logistic regression together use up most, by the order of the norm.
WORST_SLOPE = {1: 0.99, 2: 0.6126}
#: Features. Laplace noise shows its largest ratio only where every number that a record touches
#: falls on the far side, so few of them make the stronger attack.
FEATURES: dict[Mechanism, int] = {"discrete-gaussian": 5, "discrete-laplace": 1}


def study_text(
    mechanism: Mechanism,
    neighbours: str,
    *,
    epsilon: float | None = None,
    p: int | None = None,
    reach: float = 1.0,
    records: int = 50,
    user_records: int | None = None,
    split: str | None = None,
    norm_bound: float | None = None,
    maximum: float | None = None,
    publish: int = 8,
    loss: str = "gdwd",
    noise_memory: int = 0,
    growth: float = 0,
) -> str:
    """Return a study file; `reach` is the end of every feature's range, kept in its own unit."""
    lines = [
        '[study]\nname = "attacked"',
        '[data]\nresponse = { name = "y", positive = "1", negative = "0" }\nscaling = "none"',
        "[data.features]",
        *(f"x{i} = {{ min = {-reach}, max = {reach} }}" for i in range(p or FEATURES[mechanism])),
        f'[estimator]\nloss = "{loss}"\nridge = 0.01',
    ]
    if norm_bound is not None:
        lines.append(f"norm_bound = {norm_bound}")
    if maximum is not None:
        lines.append(f"class_weights = {{ maximum = {maximum} }}")
    lines.append(f'[privacy]\nmechanism = "{mechanism}"\nepsilon = {epsilon or EPSILON[mechanism]}')
    lines.append(f'neighbours = "{neighbours}"')
    if mechanism == "discrete-gaussian":
        lines.append(f"noise_memory = {noise_memory}")
    if mechanism == "discrete-gaussian":
        lines.append(f"delta = {DELTA}")
    if user_records is not None:
        lines.append(f'unit = "user"\nrecords = {user_records}')
    if split is not None:
        lines.append(f"split = {{ {split} }}")
    lines.append(f"[window]\nrecords = {records}\ngrowth = {growth}")
    lines.append(f"[stream]\npublish = {{ releases = {publish} }}")
    return "\n".join(lines) + "\n"


def task_of(mechanism: Mechanism, neighbours: str, **settings: object) -> RenewableTask:
    """Return the task of such a study."""
    task = make_task(parse_study(study_text(mechanism, neighbours, **settings)))  # type: ignore[arg-type]
    assert isinstance(task, RenewableTask)
    return task


def window_of(task: Task, *records: Record) -> Window:
    """Return a window of these records; None is an empty slot."""
    held = [record for record in records if record is not None]
    features = np.array([x for x, _ in held]).reshape(len(held), task.size - 1)
    return features, np.array([y for _, y in held])


def intercept(task: Task, value: float, weight: float = 1.0) -> Model:
    """Return a model of which only the intercept is not zero."""
    lattice = np.zeros(task.size, dtype=np.int64)
    lattice[0] = math.floor(value * 4096)
    return Model(1, lattice, (round(weight * 1024), round(weight * 1024)))


def knee(task: Task) -> Model:
    """Return a model at which a record with y = 1 has its full slope and half its curvature."""
    return intercept(task, task.loss.knee, task.largest_weight)  # type: ignore[attr-defined]


def steep(task: Task) -> Model:
    """Return a model at which a record with y = 1 has its full curvature and a small slope."""
    return intercept(task, task.loss.top)  # type: ignore[attr-defined]


def worst(task: Task) -> Model:
    """Return a model at which a record of logistic regression with y = 1 uses up its budget."""
    slope = WORST_SLOPE[task.budget.mechanism.order]
    return intercept(task, math.log(1 / slope - 1), task.largest_weight)


@dataclass(frozen=True, slots=True)
class Release:
    """A kind of release under attack.

    Attributes
    ----------
    model
        The point at which it is taken; a hostile server's choice.
    settings
        What the study file says beyond the usual.
    """

    name: str
    model: Callable[[Task], Model]
    settings: dict[str, object] = field(default_factory=dict)


def _start(task: Task) -> Model:
    return start_model(task.size)


POINTWISE = "gradient = 0.7, curvature = 0.25, counts = 0.05"
GRADIENT = "gradient = 0.98, curvature = 0.01, counts = 0.01"
CURVATURE = "gradient = 0.01, curvature = 0.98, counts = 0.01"
COUNTS = "gradient = 0.01, curvature = 0.01, counts = 0.98"
CLIPPED: dict[str, object] = {"reach": 3.0, "norm_bound": 1.2}
RELEASES = {
    release.name: release
    for release in (
        Release("start", _start),
        Release("step", knee),
        Release("step, at a point", knee, {"split": POINTWISE}),
        Release("step, mostly gradient", knee, {"split": GRADIENT}),
        Release("step, mostly curvature", steep, {"split": CURVATURE}),
        Release("step of logistic regression", worst, {"loss": "logistic"}),
        Release("step, mostly counts", knee, {"split": COUNTS}),
        Release("start, clipped", _start, CLIPPED),
        Release("step, clipped", knee, CLIPPED),
        Release("step, weighted", knee, {"maximum": HEAVIEST}),
    )
}


def pair_of(
    release: Release, mechanism: Mechanism, neighbours: Neighbours
) -> tuple[Record, Record]:
    """Return the two values of one record that are furthest apart, or nearly so."""
    p, reach = FEATURES[mechanism], float(release.settings.get("reach", 1.0))  # type: ignore[arg-type]
    corner = np.full(p, reach)
    one = (corner, 1.0)
    if neighbours == "zero-out":
        return one, None
    if mechanism == "discrete-gaussian":
        if release.model is _start and "norm_bound" not in release.settings:
            # the gradients of the two classes stand apart, so a change of class moves sqrt 2 of
            # what it moves later; mirrored features move nearly 2, but for the intercept
            return one, (-corner, 1.0)
        if release.model is steep:
            # as nearly orthogonal to the first as there is: (1, x)'(1, z) = 0
            turned = corner.copy()
            turned[: (p + 1) // 2] *= -1
            return one, (turned, 1.0)
    return one, (corner, -1.0)


@dataclass(frozen=True, slots=True)
class Attack:
    """Two neighbours: the windows of each side, one release for each window.

    Attributes
    ----------
    twins
        Whether the generator starts again for every window, as a copied process would have it.
    """

    task: Task
    model: Model
    left: tuple[Window, ...]
    right: tuple[Window, ...]
    twins: bool = False


def attack_of(
    name: str,
    mechanism: Mechanism,
    neighbours: Neighbours,
    *,
    users: Literal["together", "spread"] | None = None,
    epsilon: float | None = None,
) -> Attack:
    """Return the attack on one kind of release.

    Parameters
    ----------
    users
        With GROUP records of one user, all in one window or each in a window of its own; without,
        one record.
    """
    release = RELEASES[name]
    group = None if users is None else GROUP
    task = task_of(mechanism, neighbours, user_records=group, epsilon=epsilon, **release.settings)
    pair = pair_of(release, mechanism, neighbours)
    copies, windows = (GROUP, 1) if users == "together" else (1, GROUP if users else 1)
    left, right = ((window_of(task, *[record] * copies),) * windows for record in pair)
    return Attack(task, release.model(task), left, right)
