"""Forgetting: old releases fade, and nothing in the state is multiplied.

The state keeps its sums apart by bucket, an eighth of a half-life each; an estimate weighs bucket b
by 2^-((newest - b) / 8). Which bucket a release falls into is said by its own record of the log, so
order, batches and partitions change nothing.

What is kept depends on the set of buckets that have come, not on their order: a bucket is among the
`KEPT` highest of all or it is not, and one that has been dropped can never be among them again.
So partitions may be merged before or after dropping.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias, TypeVar

from pipeline.errors import StateError
from pipeline.study.model import Forgetting, Study

#: Buckets in one half-life.
PER_HALF_LIFE = 8
#: Buckets that are kept: the one beyond them would weigh 2^-10.
KEPT = 80
#: (sum w)^2 / sum w^2 of a steady stream, in what comes in one half-life: 2 / log 2.
EFFECTIVE_HALF_LIVES = 2 / math.log(2)
#: No weight is smaller: where the newest bucket says nothing, older ones must not all be zero.
LEAST_WEIGHT = 2.0**-500


def counted_slots(study: Study, records: float) -> float:
    """Return on how many record slots an estimate rests after so many."""
    forgetting = study.estimator.forgetting
    if forgetting is None or forgetting.of == "seconds":
        return max(float(records), 1.0)
    return min(float(records), EFFECTIVE_HALF_LIVES * forgetting.half_life)


def bucket_of(forgetting: Forgetting | None, *, watermark: int, milliseconds: int) -> int:
    """Return the bucket of a release, >= 0; without forgetting there is one.

    watermark: Record slots that had been folded when the model of the release was published, >= 0.
    milliseconds: Time of its record in the log, since 1970; what lies before that counts as 0.
    """
    if forgetting is None:
        return 0
    passed = watermark if forgetting.of == "records" else max(milliseconds, 0) / 1000
    return math.floor(PER_HALF_LIFE * passed / forgetting.half_life)


def bucket_weights(
    forgetting: Forgetting | None, buckets: Iterable[int], *, slots: int
) -> dict[int, float]:
    """Return the weight of each bucket, in [`LEAST_WEIGHT`, 1].

    slots: Record slots that have come in all partitions. A model cannot have seen more: a release
        that says so counts as new, and does not age the others.
    """
    present = sorted(buckets)
    if forgetting is None or not present:
        return dict.fromkeys(present, 1.0)
    newest = present[-1]
    if forgetting.of == "records":
        newest = min(newest, bucket_of(forgetting, watermark=slots, milliseconds=0))
    ages = {b: max(newest - b, 0) / PER_HALF_LIFE for b in present}
    return {b: max(2.0**-age, LEAST_WEIGHT) for b, age in ages.items()}


def effective(total: float, squares: float) -> float:
    """Return (sum w n)^2 / sum w^2 n: how many records, or releases, of weight 1 tell as much.

    total, squares: sum w n and sum w^2 n, both >= 0.
    """
    # in this order, equal weights of 1 give the number itself, without rounding
    return total * (total / squares) if squares > 0 else 0.0


class State(Protocol):
    """Sums over the releases of one bucket of one partition.

    dirty: Names of the fields that changed since they were last stored.
    """

    dirty: set[str]

    @property
    def names(self) -> list[str]:
        """Names of its stored fields."""

    @property
    def releases(self) -> int:
        """How many releases have been added."""

    @property
    def begun(self) -> bool:
        """Whether anything has been added: by default any release."""
        return self.releases > 0

    def add(self, other: Any) -> None:
        """Add the sums of another partition, of the same kind."""

    def encode(self, names: Sequence[str] | None = None) -> dict[str, bytes]:
        """Return fields as bytes: those of `names`, or all."""
        return {name: self.encode_field(name) for name in (self.names if names is None else names)}

    @abstractmethod
    def encode_field(self, name: str) -> bytes:
        """Return one field as bytes."""


S = TypeVar("S")
#: States of some buckets with their weights.
Weighed: TypeAlias = Sequence[tuple[float, S]]


@dataclass(slots=True)
class Buckets:
    """The states of the buckets of one or more partitions.

    make: Makes an empty state.
    states: By bucket, at most `KEPT`; one that is not there is empty.
    removed: Names of stored fields that are to be removed.
    """

    make: Callable[[], State]
    states: dict[int, State] = field(default_factory=dict)
    removed: set[str] = field(default_factory=set)

    def at(self, bucket: int) -> State:
        """Return the state of a bucket, to be added to; call `prune` afterwards."""
        held = self.states.get(bucket)
        if held is None:
            held = self.states[bucket] = self.make()
            # what stays at zero must be stored once as well
            held.dirty.update(held.names)
        return held

    def prune(self) -> int:
        """Drop all but the `KEPT` highest buckets, and return how many releases are gone."""
        gone = 0
        for bucket in sorted(self.states)[:-KEPT]:
            dropped = self.states.pop(bucket)
            gone += dropped.releases
            self.removed.update(_named(bucket, dropped.names))
        return gone

    def add(self, other: Buckets) -> None:
        """Add the sums of another partition, which stays as it is."""
        for bucket in sorted(other.states):
            self.at(bucket).add(other.states[bucket])
        self.prune()

    def encode(self, *, everything: bool = True) -> dict[str, bytes]:
        """Return fields as bytes: all, or those that changed since `stored`."""
        return {
            f"{bucket}.{name}": data
            for bucket, state in sorted(self.states.items())
            for name, data in state.encode(None if everything else sorted(state.dirty)).items()
        }

    def stored(self) -> None:
        """Note that everything has been written."""
        self.removed.clear()
        for state in self.states.values():
            state.dirty.clear()

    @classmethod
    def decode(
        cls,
        make: Callable[[], State],
        read: Callable[[dict[str, bytes]], State],
        fields: dict[str, bytes],
    ) -> Buckets:
        """Rebuild the buckets from all fields that `encode` gave.

        read: Rebuilds the state of one bucket from its fields.

        Raises StateError if a field is missing, unknown or of the wrong length.
        """
        grouped: dict[int, dict[str, bytes]] = {}
        for full, data in fields.items():
            bucket, _, name = full.partition(".")
            if not (bucket.isascii() and bucket.isdecimal()):
                raise StateError(
                    f"the stored state has a field {full!r}, which this version does not know; "
                    "the operator must start the version that wrote it, or run `veilstream state "
                    "rebuild`"
                )
            grouped.setdefault(int(bucket), {})[name] = data
        return cls(make, {bucket: read(grouped[bucket]) for bucket in sorted(grouped)})


def _named(bucket: int, names: Iterable[str]) -> set[str]:
    return {f"{bucket}.{name}" for name in names}
