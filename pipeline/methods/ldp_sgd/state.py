"""The state of a study with locally private gradients: one path for each partition of its log."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import StateError
from pipeline.estimators.buckets import State
from pipeline.methods.ldp_sgd import stored
from pipeline.methods.ldp_sgd.path import SgdPath
from pipeline.methods.ldp_sgd.settings import Rule
from pipeline.types import Integers, Matrix

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

    def _encoded(self, name: str) -> bytes:
        """Return the path as bytes; what has been merged with it is not stored."""
        del name
        return stored.encode(self.path)

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
        state.path = stored.decode(rule, fields[PATH])
        return state
