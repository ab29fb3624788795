"""Sums kept apart by age: the newest buckets that are there, and no more.

What is kept depends on the set of buckets that have come, not on their order: a bucket is among the
`KEPT` highest of all or it is not, and one that has been dropped can never be among them again.
So partitions may be merged before or after dropping.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from pipeline.errors import StateError
from pipeline.estimators.forgetting import KEPT


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
        return {name: self._encoded(name) for name in (self.names if names is None else names)}

    def _encoded(self, name: str) -> bytes:
        """Return one field as bytes, for a state that has no `encode` of its own."""
        raise NotImplementedError


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
