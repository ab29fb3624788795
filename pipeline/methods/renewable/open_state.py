"""The state of a study without privacy: float sums of the additive form.

A = sum H, b = sum (H t - g): theta = (A + n ridge)^-1 b is the exact zero of the summed
linearised scores, whatever the expansion points were and whatever order they came in. Releases are
added one by one in the order of the log, so that the bits do not depend on fetch batches.
Where no client is late, this is eq. (37) of paper dwd, written as sums.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from pipeline.errors import StateError
from pipeline.estimators.buckets import State
from pipeline.linalg import pack_upper, unpack_upper
from pipeline.types import Vector

SUMS, START = "sums", "start"


@dataclass(frozen=True, slots=True)
class OpenRow:
    """One validated release: records, expansion (d,), gradient (d,), packed curvature and scores.

    counts: Records of the negative and the positive class.
    start: Whether the client knew no model yet, and took the sums at a fit to these very records.
    """

    records: int
    expansion: Vector
    gradient: Vector
    curvature: Vector
    scores: Vector
    counts: Vector
    start: bool = False


@dataclass(slots=True)
class OpenState(State):
    """Running float sums over the releases of one bucket.

    size: d, the number of coefficients.
    sums: One vector: packed A, packed scores, packed sum of n t t', all of sum g t', then b = sum
        (H t - g), then sum of n t, then records, releases, negatives, positives.
    start: The same over releases at the start, which are not in `sums`.
    dirty: Names of the fields that changed since they were last stored.
    """

    size: int
    sums: Vector = field(init=False)
    start: Vector = field(init=False)
    dirty: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        """Start from zero."""
        packed = self.size * (self.size + 1) // 2
        self.sums, self.start = np.zeros((2, 3 * packed + self.size**2 + 2 * self.size + 4))

    def fold(self, batch: Sequence[OpenRow]) -> None:
        """Add releases in order."""
        for release in batch:
            held = self.start if release.start else self.sums
            held += self._row(release)
            self.dirty.add(START if release.start else SUMS)

    def add(self, other: OpenState) -> None:
        """Add the sums of another partition; equal to folding both up to rounding."""
        self.sums += other.sums
        self.start += other.start

    @property
    def releases(self) -> int:
        """How many releases have been added."""
        return int(self.part("releases")[0] + self.part("releases", START)[0])

    @property
    def slots(self) -> int:
        """How many records they had."""
        return int(self.part("records")[0] + self.part("records", START)[0])

    @property
    def names(self) -> list[str]:
        """Names of its stored fields."""
        return [SUMS, START]

    def part(self, name: str, of: str = SUMS) -> Vector:
        """Return one part of `sums`, or of `start`, by name; packed parts stay packed."""
        held = self._vector(of)
        packed = self.size * (self.size + 1) // 2
        lengths = {
            "curvature": packed, "scores": packed, "expansions": packed, "cross": self.size**2,
            "right": self.size, "points": self.size, "records": 1, "releases": 1, "counts": 2,
        }  # fmt: skip
        start = 0
        for key, length in lengths.items():
            if key == name:
                return held[start : start + length]
            start += length
        raise KeyError(name)

    def _encoded(self, name: str) -> bytes:
        return self._vector(name).astype("<f8").tobytes()

    @classmethod
    def decode(cls, size: int, fields: dict[str, bytes]) -> OpenState:
        """Rebuild a state from what `encode` gave.

        Raises StateError if a field is unknown or has the wrong length.
        """
        state = cls(size)
        if missing := {SUMS, START} - fields.keys():
            raise StateError(
                f"the stored state lacks its field {sorted(missing)[0]!r}; the operator must "
                "run `veilstream state rebuild`"
            )
        for name, data in fields.items():
            if name not in (SUMS, START) or len(data) != 8 * len(state.sums):
                raise StateError(
                    f"the field {name!r} of the stored state cannot be used; the operator must "
                    "run `veilstream state rebuild`"
                )
            setattr(state, name, np.frombuffer(data, dtype="<f8").copy())
        return state

    def _vector(self, name: str) -> Vector:
        return self.start if name == START else self.sums

    def _row(self, release: OpenRow) -> Vector:
        point, records = release.expansion, float(release.records)
        right = unpack_upper(release.curvature, self.size) @ point - release.gradient
        return np.concatenate(
            [
                release.curvature,
                release.scores,
                pack_upper(records * np.outer(point, point)),
                np.outer(release.gradient, point).ravel(),
                right,
                records * point,
                [records, 1.0, release.counts[0], release.counts[1]],
            ]
        )
