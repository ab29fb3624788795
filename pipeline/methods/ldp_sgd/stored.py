"""A path as bytes: whole numbers in MessagePack, all others as little-endian float64."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
import numpy as np

from pipeline.errors import StateError
from pipeline.methods.ldp_sgd.path import SgdPath
from pipeline.methods.ldp_sgd.settings import Rule
from pipeline.methods.ldp_sgd.sums import Sums
from pipeline.types import Vector


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
