"""Locally private gradient descent, as the registry knows it, with what it refuses."""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from typing import Final

import numpy as np

from pipeline.errors import ConfigError
from pipeline.estimators.estimate import Estimate
from pipeline.estimators.forgetting import Weighed
from pipeline.methods.base import Method, Server, Spec
from pipeline.methods.ldp_sgd import plan as plans
from pipeline.methods.ldp_sgd import spec as keys
from pipeline.methods.ldp_sgd.client import GradientTask
from pipeline.methods.ldp_sgd.estimate import estimate_sgd, newest_point
from pipeline.methods.ldp_sgd.spec import INTERVALS, Path, spec_of
from pipeline.methods.ldp_sgd.state import GradientBatch, SgdState
from pipeline.methods.ldp_sgd.step_rule import rule_of
from pipeline.release.layout import NO_PARTITION, Rows
from pipeline.release.model import Part, on_lattice
from pipeline.study.model import Study
from pipeline.types import Vector


class GradientServer(Server[SgdState]):
    """As `methods.base.Server`, for paths, with or without noise."""

    ordered = True
    from_start = (
        'kind = "ldp-sgd" moves one path from the public start through all records in their '
        "order, and each gradient was taken where that path had led"
    )

    def __init__(self, task: GradientTask) -> None:
        self._task, self._rule, layout = task, rule_of(task), task.layout
        gradient, *matrices = layout.later
        self._gradients, self._unit = gradient.length, 2.0**gradient.exponent
        self._point_unit = 2.0**layout.point.exponent
        # one unit for each number of each matrix, in the order of a release
        self._units = np.repeat([2.0**m.exponent for m in matrices], [m.length for m in matrices])

    def slots(self, rows: Rows) -> int:
        """As `Server.slots`: an empty slot moves the path by its noise."""
        return len(rows) * self._task.slots

    def empty(self) -> SgdState:
        return SgdState(self._rule)

    def read(self, fields: dict[str, bytes]) -> SgdState:
        return SgdState.decode(self._rule, fields)

    def fold(self, state: SgdState, rows: Rows) -> None:
        """As `Server.fold`, in the order of the log."""
        state.fold(self.batch(rows))

    def batch(self, rows: Rows) -> GradientBatch:
        """Return releases in real units."""
        count, own, clock = self._gradients, rows["partition_watermark"], rows["model_watermark"]
        numbers = rows["sums"]
        gradients = numbers[:, :count] * self._unit
        return GradientBatch(
            gradients=gradients.reshape(-1, self._task.slots, self._task.size),
            points=rows["point"] * self._point_unit,
            # without a place there is one partition, and all that was seen was seen there
            watermarks=np.where(own == NO_PARTITION, clock, own),
            clock=np.ascontiguousarray(clock),
            extra=numbers[:, count:] * self._units,
        )

    def estimate(
        self, parts: Weighed[SgdState], partitions: Sequence[int], *, missing: int = 0
    ) -> Estimate:
        """As `Server.estimate`; a path has no age, so there is one bucket."""
        [(_, state)] = parts
        return estimate_sgd(self._task, state, partitions)

    def next_point(self, parts: Weighed[SgdState]) -> tuple[Vector, tuple[float, float]]:
        """As `Server.next_point`: the newest iterate, without the intervals of the average."""
        [(_, state)] = parts
        return newest_point(self._task, state.paths), (1.0, 1.0)

    def part(self, slots: int, state: SgdState | None) -> Part | None:
        """As `Server.part`: how far its partition has come, and its own point where paths pool."""
        if self._task.partition_strategy is None:
            return None
        if self._task.partition_strategy == "shared":
            return Part(slots)
        point = self._task.first_model.coefficients if state is None else state.path.theta
        return Part(slots, on_lattice(point))


TABLES: Final = {
    "estimator": """\
kind = "ldp-sgd"              # each record leaves as a noised gradient of its own
loss = "logistic"             # or "linear" (with residual_bound) and "expectile", of a number
ridge = 0                     # a penalty of the slopes; intervals need none here
level = 0.95

[estimator.path]
clipping_norm = 2.0           # longer records weigh less, so that none needs more noise
releases = "gradients+curvature"    # with each window's curvature, which intervals are made of
""",
    "privacy": """\
mechanism = "discrete-gaussian"     # or "discrete-laplace", without delta
# Each record has noise of its own, so this kind needs a larger epsilon, or more records, than sums.
epsilon = 4.0
delta = 1e-6                  # well below 1 / number of records
unit = "record"               # or "user", with records = the most that one user has
neighbours = "replace-one"
""",
    "stream": """\
partitions = 1                # one path, in the order of the log
retention = "30d"
max_in_flight_windows = 1     # a client waits for a newer model after every release
publish = { releases = 1, seconds = 0.1, pause = 0.0 }
""",
}


def check(study: Study) -> None:
    """Refuse what does not go with the method.

    Raises ConfigError, naming the key, what is allowed and the way out.
    """
    path = spec_of(study)
    # a study of another kind may have all of these, so they are said together
    if found := [*_foreign(study), *_partitions(study, path)]:
        raise ConfigError("; also ".join(map(str, found)))
    _check_personal(study, path)
    if path.shown not in path.intervals:
        raise ConfigError(
            f'estimator.path.interval: "{path.shown}" needs estimator.path.releases = '
            f'"{INTERVALS[path.shown]}", and this study has "{path.releases}"; set '
            "estimator.path.releases to that, whose parts share the budget of a record, "
            f"or choose one of {', '.join(path.intervals)}"
        )
    if study.privacy.split is not None and study.privacy.split.middle is not None:
        raise ConfigError(
            'privacy.split.middle: kind = "ldp-sgd" releases no middle of the sandwich; remove it. '
            "Outer products are released with estimator.path.releases = "
            '"gradients+curvature+products"'
        )
    if path.matrices == 2 and study.privacy.split is not None:
        raise ConfigError(
            "privacy.split: with estimator.path.releases = "
            '"gradients+curvature+products" each of the three has a third of the budget, '
            "as in the paper; remove privacy.split, or set estimator.path.releases = "
            '"gradients+curvature"'
        )


def _foreign(study: Study) -> Iterator[ConfigError]:
    """Say what belongs to other kinds, and what this one needs in their place."""
    estimator = study.estimator
    if estimator.ridge > 0:
        yield ConfigError(
            'estimator.ridge: kind = "ldp-sgd" has no penalty; remove it, or write ridge = 0'
        )
    if estimator.loss != "logistic" and estimator.residual_bound is None:
        yield ConfigError(
            "estimator.residual_bound: must be given, as the noise is in proportion to it: about "
            "1.345 times a public guess of the residuals' scale, in the response's unit"
        )
    for key in ("class_weights", "norm_bound", "noise_scale", "forgetting"):
        if getattr(estimator, key) is not None:
            instead = "; use estimator.path.clipping_norm" if key == "norm_bound" else ""
            yield ConfigError(
                f'estimator.{key}: kind = "ldp-sgd" does not use this key; remove it{instead}'
            )
    if study.noised and study.privacy.neighbours != "replace-one":
        yield ConfigError(
            'privacy.neighbours: kind = "ldp-sgd" protects a record against its '
            "replacement by any other record, and only that; set neighbours = "
            '"replace-one"'
        )


def _partitions(study: Study, path: Path) -> Iterator[ConfigError]:
    """Refuse several partitions without a way to bring them together, and the other way round."""
    several = path.partitions
    if study.stream.partitions > 1 and several is None:
        yield ConfigError(
            'stream.partitions: kind = "ldp-sgd" moves one path through all records in their '
            "order; set partitions = 1 (the default is 2), or say how several of them go together: "
            'estimator.path.partitions = "shared" or "pooled"'
        )
    if study.stream.partitions == 1 and several is not None:
        yield ConfigError(
            "estimator.path.partitions: a stream of one partition has nothing to bring together; "
            "remove it, or raise stream.partitions"
        )


def _check_personal(study: Study, path: Path) -> None:
    """Refuse levels of privacy where they would not mean what they say."""
    personal = study.privacy.personal
    if personal is None:
        return
    if not study.noised:
        raise ConfigError(
            "privacy.personal: levels say how much noise a record gets, and mechanism = "
            '"none" adds none; choose another privacy.mechanism, or remove '
            "privacy.personal"
        )
    if study.privacy.unit != "record":
        raise ConfigError(
            "privacy.personal: a level belongs to a single record, so it goes with unit "
            '= "record" alone; set privacy.unit = "record", or remove privacy.personal'
        )
    if path.matrices:
        raise ConfigError(
            f'privacy.personal: with estimator.path.releases = "{path.releases}" all '
            "records of a window share one noise, so they cannot have levels of their "
            'own; set estimator.path.releases = "gradients", or remove privacy.personal'
        )
    if study.privacy.epsilon != max(personal.levels.values()):
        raise ConfigError(
            "privacy.personal.levels: the largest must be privacy.epsilon, which is what the study "
            f"may cost any record; here it is {max(personal.levels.values()):g}"
        )
    if personal.column in (*study.data.features, study.data.response.name):
        raise ConfigError(
            "privacy.personal.column: must be a column of its own, not a feature or the response: "
            "the noise of a record shows its level to everybody"
        )


class LdpSgd(Method[GradientTask]):
    """A path of gradients that are noised one by one."""

    spec = Spec(
        kind="ldp-sgd",
        title="gradient descent on locally private gradients of records",
        gives="noise of its own for each record",
        losses=keys.LOSSES,
        table="path",
        penalised=False,
        personal_levels=True,
        server_keys={
            "estimator.path.interval": "which intervals are shown",
            "estimator.path.burn_in": "where the average of the path begins",
        },
        interval_key="estimator.path.interval",
        template=TABLES,
    )

    def intervals(self, study: Study) -> tuple[str, ...]:
        return keys.spec_of(study).intervals

    def resolve(self, study: Study, given: Container[str]) -> Study:
        del given
        check(study)
        return study

    enter = staticmethod(keys.enter)
    task = GradientTask
    server = GradientServer
    plan = staticmethod(plans.plan)
    propose = staticmethod(plans.propose)


METHOD = LdpSgd()
