"""A method in one file: the private mean of a response. It shows what a method has to bring."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np

from pipeline.errors import StateError
from pipeline.estimators.estimate import Estimate
from pipeline.estimators.forgetting import State
from pipeline.methods.base import Method, Plan, Server, Spec
from pipeline.privacy.mechanism import Channel
from pipeline.privacy.sensitivity import rounding_of_vector
from pipeline.records.encoder import Arrays
from pipeline.release.budget import Budget
from pipeline.release.layout import Field, Layout, Rows
from pipeline.release.model import Model
from pipeline.release.query import Exact, Query, VectorPart
from pipeline.release.task import Task
from pipeline.types import Vector

#: Responses are whole multiples of 2^-20 before they are summed.
BITS = 20
#: Records that an interval needs.
LEAST = 100


class MeanTask(Task):
    """A release is the noised sum of a window's responses, in [-1, 1]."""

    def make_budget(self, level: str | None) -> Budget:
        return Budget(self.study, level, touched=1)

    @property
    def channel(self) -> Channel:
        distance = 2.0 if self.study.privacy.neighbours == "replace-one" else 1.0
        mechanism = self.budget.mechanism
        rounding = rounding_of_vector(1, mechanism.order)
        return mechanism.channel(distance, rounding, self.budget.per_record, 1.0)

    @property
    def penalty(self) -> Vector:
        return np.append(0.0, np.full(self.size - 1, 1e6))

    @property
    def layout(self) -> Layout:
        return Layout.noised(self.size, [Field.of("sum", 1, self.channel, self.slots)])

    def query(self, window: Arrays, model: Model) -> Query:
        whole = np.trunc(np.ldexp(np.clip(window.responses, -1.0, 1.0), BITS)).sum()
        total = Exact(np.array([whole], dtype=np.int64), np.array([-BITS]))
        return Query(model, {"sum": VectorPart(total, self.channel, self.slots)})


@dataclass
class MeanState(State):
    """The sum, and how many releases and slots it is of: Python's integers have no end."""

    total: int = 0
    releases: int = 0
    slots: int = 0
    dirty: set[str] = field(default_factory=set)
    names = ["mean"]  # noqa: RUF012

    def add(self, other: MeanState) -> None:
        self.total, self.slots = self.total + other.total, self.slots + other.slots
        self.releases += other.releases

    def encode_field(self, name: str) -> bytes:
        return msgspec.msgpack.encode((str(self.total), self.releases, self.slots))


class MeanServer(Server[MeanState]):
    def __init__(self, task: MeanTask) -> None:
        self._task, self._channel = task, task.channel

    def empty(self) -> MeanState:
        return MeanState()

    def read(self, fields: dict[str, bytes]) -> MeanState:
        try:
            [data] = fields.values()
            total, *counts = msgspec.msgpack.decode(data, type=tuple[str, int, int])
        except (ValueError, msgspec.DecodeError):
            raise StateError("the stored mean cannot be read") from None
        return MeanState(int(total), *counts)

    def fold(self, state: MeanState, rows: Rows) -> None:
        state.total += sum(rows["sums"][:, 0].tolist())
        state.releases, state.slots = state.releases + len(rows), state.slots + self.slots(rows)
        state.dirty.add("mean")

    def estimate(
        self, parts: Sequence[tuple[float, MeanState]], partitions: Sequence[int], *,
        missing: int = 0,
    ) -> Estimate:  # fmt: skip
        size, [(_, state)] = self._task.size, parts
        slots, noise = max(state.slots, 1), self._channel.standard_deviation**2
        ready = state.slots >= LEAST
        mean, privacy = np.zeros(size), np.full((size, size), np.nan)
        mean[0] = state.total * self._channel.unit / slots
        privacy[0, 0] = state.releases * noise / slots**2
        return Estimate(
            coefficients=mean, covariance=privacy + 1 / slots if ready else None,
            privacy_covariance=privacy if ready else None,
            status="ready" if ready else "warming" if state.slots else "empty",
            reason="" if ready else f"intervals need {LEAST} records",
            records=state.slots, releases=state.releases, interval="normal, variance at most 1",
        )  # fmt: skip


class PrivateMean(Method[MeanTask]):
    spec = Spec(
        kind="private-mean", title="the mean of the response", losses=("linear",),
        needs_noise="a private mean is nothing without noise",
    )  # fmt: skip
    task, server = MeanTask, MeanServer

    def plan(self, task: MeanTask, records: int, clients: int, seen: object = None) -> Plan:
        noise = {"sum_sd": task.channel.standard_deviation}
        return Plan(latest=LEAST, usual=LEAST, facts={"noise": noise})


METHOD = PrivateMean()
