"""A method in one file: the private mean of a response. It shows what a method has to bring."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np

from pipeline.errors import ConfigError, StateError
from pipeline.estimators.estimate import Estimate
from pipeline.estimators.forgetting import State
from pipeline.methods.base import Method, Plan, Server
from pipeline.methods.base import Spec as SpecOfKind
from pipeline.privacy.mechanism import Channel
from pipeline.privacy.sensitivity import rounding_of_vector
from pipeline.records.encoder import Arrays
from pipeline.release.budget import Budget
from pipeline.release.form import Rows
from pipeline.release.layout import Field, Layout
from pipeline.release.model import Model
from pipeline.release.query import Exact, OpenQuery, Query, VectorPart
from pipeline.release.task import Task
from pipeline.study.model import Study
from pipeline.study.tables import strict
from pipeline.types import Vector

#: Responses are whole multiples of 2^-20 before they are summed.
BITS = 20


class Spec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[estimator.method]`: how many records an interval needs."""

    least: int = 100


class MeanTask(Task):
    """A release is the noised sum of a window's responses, in [-1, 1]."""

    def make_budget(self, level: str | None) -> Budget:
        return Budget(self.study, level, touched=1)

    @property
    def channel(self) -> Channel:
        neighbours, order = self.study.privacy.neighbours, self.budget.mechanism.order
        distance = 2.0 if neighbours == "replace-one" else 1.0
        rounding, budget = rounding_of_vector(1, order), self.budget
        return budget.mechanism.channel(distance, rounding, budget.per_record, 1.0)

    @property
    def penalty(self) -> Vector:
        return np.append(0.0, np.full(self.size - 1, 1e6))

    @property
    def layout(self) -> Layout:
        total = Field("sum", 1, self.channel.exponent, self.channel.largest(self.slots))
        return Layout.noised(self.size, [total])

    def query(self, window: Arrays, model: Model) -> Query:
        whole = np.trunc(np.ldexp(np.clip(window.responses, -1.0, 1.0), BITS)).sum()
        total = Exact(np.array([whole], dtype=np.int64), np.array([-BITS]))
        return Query(model, {"sum": VectorPart(total, self.channel, self.slots)})

    def open_query(self, window: Arrays, model: Model) -> OpenQuery:
        total = {"sum": np.array([window.responses.sum()])}
        return OpenQuery(model, len(window.responses), model.coefficients, total)


@dataclass
class MeanState(State):
    """The sum, and how many releases and slots it is of: Python's integers have no end."""

    total: int = 0
    releases: int = 0
    slots: int = 0
    dirty: set[str] = field(default_factory=set)
    names = ["mean"]  # noqa: RUF012

    def add(self, other: MeanState) -> None:
        self.total += other.total
        self.releases += other.releases
        self.slots += other.slots

    def encode_field(self, name: str) -> bytes:
        """As `State.encode_field`."""
        return msgspec.msgpack.encode((str(self.total), self.releases, self.slots))


class MeanServer(Server[MeanState]):
    """As `methods.base.Server`, for studies with noise."""

    interval = "normal, variance at most 1"
    ordered = False

    def __init__(self, task: MeanTask) -> None:
        self._task, self._part = task, task.channel
        self._least = strict(task.study.estimator.method or {}, Spec, at="estimator.method").least

    def slots(self, rows: Rows) -> int:
        return int(rows["records"].sum())

    def empty(self) -> MeanState:
        return MeanState()

    def read(self, fields: dict[str, bytes]) -> MeanState:
        try:
            [(_, data)] = fields.items()
            held = msgspec.msgpack.decode(data, type=tuple[str, int, int])
        except (ValueError, msgspec.DecodeError):
            raise StateError("the stored mean cannot be read") from None
        return MeanState(int(held[0]), held[1], held[2])

    def fold(self, state: MeanState, rows: Rows) -> None:
        state.total += sum(rows["sums"][:, 0].tolist())
        state.releases += len(rows)
        state.slots += self.slots(rows)
        state.dirty.add("mean")

    def estimate(
        self,
        parts: Sequence[tuple[float, MeanState]],
        partitions: Sequence[int],
        *,
        missing: int = 0,
    ) -> Estimate:
        size, [(_, state)] = self._task.size, parts
        slots, noise = max(state.slots, 1), self._part.standard_deviation**2
        ready = state.slots >= self._least
        coefficients, privacy = np.zeros(size), np.full((size, size), np.nan)
        coefficients[0] = state.total * self._part.unit / slots
        privacy[0, 0] = state.releases * noise / slots**2
        return Estimate(
            coefficients=coefficients,
            covariance=privacy + 1 / slots if ready else None,
            privacy_covariance=privacy if ready else None,
            status="ready" if ready else "warming" if state.slots else "empty",
            reason="" if ready else f"intervals need {self._least} records",
            records=state.slots,
            releases=state.releases,
            interval=self.interval,
        )


class PrivateMean(Method[MeanTask]):
    """The mean of the response, without features."""

    spec = SpecOfKind(
        kind="private-mean",
        title="the mean of the response",
        losses=("linear",),
        table="method",
        server_keys={"estimator.method.least": "when intervals are shown"},
        needs_noise="a private mean is nothing without noise",
    )
    task, server = MeanTask, MeanServer

    def resolve(self, study: Study, given: Container[str]) -> Study:
        strict(study.estimator.method or {}, Spec, at="estimator.method")
        if not study.noised:
            raise ConfigError('privacy.mechanism: "private-mean" needs noise')
        return study

    def enter(self, meaning: dict[str, Any], study: Study) -> None:
        meaning["estimator"].pop("method", None)

    def plan(self, task: MeanTask, records: int, clients: int) -> Plan:
        noise = {"sum_sd": task.channel.standard_deviation} if task.study.noised else {}
        return Plan(latest=100, usual=100, facts={"noise": noise})


METHOD = PrivateMean()
