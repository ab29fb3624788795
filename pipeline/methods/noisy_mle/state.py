"""The state at the worker: integer sums of each site, the same bits in any order of arrival.

A release at the point t has the score g, the curvature J and the squares s. A site's sums of
(1, g, J, s, t, J t) are kept apart by epoch: 0 at the public start, else 1 + floor(log2 version).
Of each site the newest `KEPT` epochs are kept; which those are depends on the epochs that have
come, not on their order. J t has up to 80 bits, and is kept in parts of 22, 32 and the other bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from pipeline.errors import StateError
from pipeline.linalg import packed_indices
from pipeline.types import Integers, Vector

#: Epochs that are kept of a site: older releases were taken too far from the newest models.
KEPT = 3
HEAD = "head"
_LOW, _MIDDLE = 22, 32


@dataclass(frozen=True, slots=True)
class Shape:
    """How many numbers a release holds: d coefficients, and squares (1) or none (0).

    moving: Whether it matters at which point it was taken; else t and J t are left out.
    """

    size: int
    squares: int
    moving: bool = True

    @property
    def packed(self) -> int:
        """Entries of a packed curvature."""
        return self.size * (self.size + 1) // 2

    @property
    def points(self) -> int:
        """Where the sum of the points begins in a row."""
        return 1 + self.size + self.packed + self.squares

    @property
    def width(self) -> int:
        """Length of the sums of one epoch."""
        return self.points + 4 * self.size * self.moving

    def rows_of(self, points: Integers, numbers: Integers) -> Integers:
        """Return releases as rows (1, g, J, s, t, J t), of points (n, d) and numbers behind them.

        Numbers are below 2^42 and points up to 2^24, so that no product of parts passes 2^57.
        """
        rows = np.zeros((len(points), self.width), dtype=np.int64)
        rows[:, 0] = 1
        rows[:, 1 : self.points] = numbers[:, : self.points - 1]
        if not self.moving:
            return rows
        low, middle, _ = self._products(rows)
        rows[:, self.points : self.points + self.size] = points
        whole = rows[:, 1 + self.size :][:, packed_indices(self.size)]
        low += np.matmul(whole & ((1 << _LOW) - 1), points[:, :, None])[:, :, 0]
        middle += np.matmul(whole >> _LOW, points[:, :, None])[:, :, 0]
        self.carry(rows)
        return rows

    def carry(self, rows: Integers) -> None:
        """Give the parts of J t their own bits again, in place, shape (n, width)."""
        low, middle, high = self._products(rows)
        middle += low >> _LOW
        low &= (1 << _LOW) - 1
        high += middle >> _MIDDLE
        middle &= (1 << _MIDDLE) - 1

    def products(self, rows: Integers) -> Vector:
        """Return the sums of J t as floats, shape (n, d)."""
        low, middle, high = (part.astype(np.float64) for part in self._products(rows))
        return (np.ldexp(high, _LOW + _MIDDLE) + np.ldexp(middle, _LOW)) + low

    def _products(self, rows: Integers) -> tuple[Integers, Integers, Integers]:
        first = self.points + self.size
        low, middle, high = (
            rows[:, first + k * self.size : first + (k + 1) * self.size] for k in range(3)
        )
        return low, middle, high


@dataclass(slots=True)
class Site:
    """What is known of one site: how many releases it has sent, and its sums by epoch."""

    releases: int = 0
    epochs: dict[int, Integers] = field(default_factory=dict)

    def put(self, epoch: int, row: Integers) -> None:
        """Replace the sums of an epoch, and drop those that are too old."""
        self.epochs[epoch] = row
        if len(self.epochs) > KEPT:
            del self.epochs[min(self.epochs)]


def epochs_of(versions: Integers) -> Integers:
    """Return 0 for the public start, else 1 + floor(log2 version), shape (n,)."""
    return np.frexp(versions.astype(np.float64))[1].astype(np.int64)


@dataclass(slots=True)
class SiteState:
    """Sums over the releases of one bucket, site by site.

    sites: By the digest of the client's id, 32 hexadecimal digits.
    releases: How many have been added.
    dirty: Names of the fields that changed since they were last stored.
    """

    shape: Shape
    slots_each: int
    sites: dict[str, Site] = field(default_factory=dict)
    releases: int = 0
    dirty: set[str] = field(default_factory=set)

    @property
    def begun(self) -> bool:
        """Whether anything has been added."""
        return self.releases > 0

    @property
    def slots(self) -> int:
        """How many record slots the releases had."""
        return self.releases * self.slots_each

    @property
    def names(self) -> list[str]:
        """Names of its stored fields."""
        return [HEAD, *sorted(self.sites)]

    def fold(self, ids: Integers, epochs: Integers, rows: Integers) -> None:
        """Add releases: digests (n, 2), epochs (n,) and rows of `Shape.rows_of`."""
        order = np.lexsort((epochs, ids[:, 1], ids[:, 0]))
        ids, epochs = ids[order], epochs[order]
        fresh = np.r_[True, np.any(ids[1:] != ids[:-1], axis=1) | (epochs[1:] != epochs[:-1])]
        starts = np.flatnonzero(fresh)
        sums = np.add.reduceat(rows[order], starts, axis=0)
        counts = sums[:, 0].tolist()
        names = [one.tobytes().hex() for one in ids[starts]]
        found = [self.sites.setdefault(name, Site()) for name in names]
        firsts = epochs[starts].tolist()
        for place, (site, epoch) in enumerate(zip(found, firsts, strict=True)):
            held = site.epochs.get(epoch)
            if held is not None:
                sums[place] += held
        self.shape.carry(sums)
        for place, (site, epoch) in enumerate(zip(found, firsts, strict=True)):
            site.releases += counts[place]
            site.put(epoch, sums[place].copy())
        self.releases += len(rows)
        self.dirty.update(names, (HEAD,))

    def add(self, other: SiteState) -> None:
        """Add the sums of another partition, which stays as it is."""
        for name, theirs in other.sites.items():
            site = self.sites.setdefault(name, Site())
            site.releases += theirs.releases
            for epoch, row in theirs.epochs.items():
                held = site.epochs.get(epoch)
                both = (row if held is None else row + held)[None]
                self.shape.carry(both := both.copy())
                site.put(epoch, both[0])
        self.releases += other.releases

    def encode(self, names: Sequence[str] | None = None) -> dict[str, bytes]:
        """Return fields as bytes, little-endian int64: those of `names`, or all."""
        return {name: self._encoded(name) for name in (self.names if names is None else names)}

    def _encoded(self, name: str) -> bytes:
        if name == HEAD:
            return np.array([self.releases, len(self.sites)], dtype="<i8").tobytes()
        site = self.sites[name]
        rows = [np.append(epoch, site.epochs[epoch]) for epoch in sorted(site.epochs)]
        return np.concatenate([[site.releases], *rows]).astype("<i8").tobytes()

    @classmethod
    def decode(cls, shape: Shape, slots_each: int, fields: dict[str, bytes]) -> SiteState:
        """Rebuild a state from all fields that `encode` gave.

        Raises StateError if a field is missing, unknown or of the wrong length.
        """
        state = cls(shape, slots_each)
        for name, data in fields.items():
            if name != HEAD:
                state.sites[name] = _site(shape, name, data)
        if len(fields.get(HEAD, b"")) != 16:
            raise StateError(
                "the stored sums of sites lack their head; run `veilstream state rebuild`"
            )
        state.releases, sites = np.frombuffer(fields[HEAD], dtype="<i8").tolist()
        if (sites, state.releases) != (
            len(state.sites),
            sum(site.releases for site in state.sites.values()),
        ):
            raise StateError(
                f"the stored state counts {sites} sites and holds {len(state.sites)}, or not all "
                "of their releases; run `veilstream state rebuild`"
            )
        return state


def _site(shape: Shape, name: str, data: bytes) -> Site:
    each = 1 + shape.width
    if len(name) != 32 or not set(name) <= set("0123456789abcdef"):
        raise StateError(f"stored state has an unknown field {name!r}")
    if len(data) % 8 or (len(data) // 8 - 1) % each or len(data) <= 8:
        raise StateError(
            f"the stored sums of a site have {len(data)} bytes, which is no length of theirs; "
            "run `veilstream state rebuild`"
        )
    numbers = np.frombuffer(data, dtype="<i8").astype(np.int64)
    epochs = {int(row[0]): row[1:].copy() for row in numbers[1:].reshape(-1, each)}
    return Site(int(numbers[0]), epochs)
