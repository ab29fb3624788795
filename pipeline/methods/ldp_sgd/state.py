"""The state of a study with locally private gradients: one path for each partition of its log.

A path as bytes: whole numbers in MessagePack, all others as little-endian float64.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np
from numpy.typing import NDArray

from pipeline.errors import StateError
from pipeline.estimators.forgetting import State
from pipeline.methods.ldp_sgd.path import SgdPath, Sums
from pipeline.methods.ldp_sgd.step_rule import Rule
from pipeline.types import Integers, Matrix, Vector

PATH = "path"


@dataclass(frozen=True, slots=True)
class GradientBatch:
    """Validated releases of one study, in the order of the log.

    gradients: Real values, shape (releases, k, d).
    points: Where they were taken, shape (releases, d).
    watermarks, clock: Record slots that had been folded when each one's model was published, of
        this partition and of all, shape (releases,).
    extra: Packed matrices that came beside the gradients, shape (releases, m); m is 0 for none.
    """

    gradients: NDArray[np.float64]
    points: Matrix
    watermarks: Integers
    clock: Integers
    extra: Matrix


@dataclass(slots=True)
class SgdState(State):
    """The path of one partition, and those that have been merged with it.

    slots: Record slots that have come.
    dirty: Names of the fields that changed since they were last stored.
    """

    rule: Rule
    path: SgdPath = field(init=False)
    others: list[SgdPath] = field(default_factory=list)
    dirty: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        """Start at the public point."""
        self.path = SgdPath(self.rule)

    @property
    def paths(self) -> list[SgdPath]:
        """All paths that have begun."""
        return [p for p in (self.path, *self.others) if p.releases or p.diverged is not None]

    @property
    def releases(self) -> int:
        """How many releases have been added."""
        return sum(path.releases for path in self.paths)

    @property
    def begun(self) -> bool:
        """Whether anything has been added."""
        return bool(self.paths)

    @property
    def slots(self) -> int:
        """How many record slots they had."""
        return sum(path.records for path in self.paths)

    @property
    def names(self) -> list[str]:
        """Names of its stored fields."""
        return [PATH]

    def fold(self, batch: GradientBatch) -> None:
        """Move along the gradients of some releases."""
        self.path.fold(batch.gradients, batch.points, batch.watermarks, batch.extra, batch.clock)
        self.dirty.add(PATH)

    def add(self, other: SgdState) -> None:
        """Put the paths of another partition beside this one's."""
        self.others = [*self.others, *(path.copy() for path in other.paths)]

    def encode_field(self, name: str) -> bytes:
        """Return the path as bytes; what has been merged with it is not stored."""
        del name
        return encode(self.path)

    @classmethod
    def decode(cls, rule: Rule, fields: dict[str, bytes]) -> SgdState:
        """Rebuild a state from what `encode` gave.

        Raises StateError if a field is missing, unknown, or cannot be read.
        """
        if fields.keys() != {PATH}:
            raise StateError(
                f"the stored state must have the field {PATH!r} and no other; the operator "
                "must run `veilstream state rebuild`"
            )
        state = cls(rule)
        state.path = decode(rule, fields[PATH])
        return state


class _Stored(msgspec.Struct, frozen=True, array_like=True):
    """Whole numbers as they are; `data` holds the floats of all parts.

    `rule` is the rule that the path was walked with: a cap follows from keys that a running study
    may change, and the rest of a path by another rule would be one that no log gives.
    """

    rule: tuple[float, ...]
    records: int
    releases: int
    diverged: int | None
    counts: list[tuple[int, int]]
    data: bytes


def encode(path: SgdPath) -> bytes:
    """Write a path."""
    parts = [path.sums, *path.marks]
    floats = [path.theta, path.origin]
    for part in parts:
        floats += [np.array([part.moved]), *(array.ravel() for array in part.arrays)]
    held = _Stored(
        rule=_numbers(path.rule),
        records=path.records,
        releases=path.releases,
        diverged=path.diverged,
        counts=[(part.records, part.behind) for part in parts],
        data=np.concatenate(floats).astype("<f8").tobytes(),
    )
    return msgspec.msgpack.encode(held)


def decode(rule: Rule, data: bytes) -> SgdPath:
    """Read what `encode` wrote; StateError if it is anything else, or of another rule."""
    try:
        held = msgspec.msgpack.decode(data, type=_Stored)
        floats = np.frombuffer(held.data, dtype="<f8").astype(np.float64)
        return _rebuilt(rule, held, floats)
    except (msgspec.DecodeError, ValueError, IndexError) as error:
        raise StateError(
            "the stored path cannot be read, or its steps were others (estimator.path.behind, "
            "stream.publish); run `veilstream state rebuild`"
        ) from error


def _numbers(rule: Rule) -> tuple[float, ...]:
    steps = (rule.steps.eta0, rule.steps.alpha, rule.steps.cap, float(rule.burn_in))
    if rule.scaling is None:
        return steps
    scaling = rule.scaling
    return (*steps, scaling.cloud, scaling.noise, *scaling.reference.ravel().tolist())


def _rebuilt(rule: Rule, held: _Stored, floats: Vector) -> SgdPath:
    if held.rule != _numbers(rule):
        raise ValueError("another rule")
    path = SgdPath(rule)
    empty, size, at = path.sums, len(rule.start), 0

    def take(shape: Sequence[int]) -> Vector:
        nonlocal at
        count = math.prod(shape)
        if at + count > len(floats):
            raise ValueError("too few numbers")
        at += count
        return floats[at - count : at].reshape(shape)

    path.theta, path.origin = take((size,)), take((size,))
    parts = []
    for records, behind in held.counts:
        moved = float(take((1,))[0])
        arrays = [take(array.shape) for array in empty.arrays]
        parts.append(Sums(records, behind, moved, *arrays))
    if at != len(floats):
        raise ValueError("too many numbers")
    path.records, path.releases, path.diverged = held.records, held.releases, held.diverged
    path.sums, path.marks = parts[0], parts[1:]
    path.scale()
    return path
