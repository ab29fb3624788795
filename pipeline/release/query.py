"""What a window is asked, exactly: sums of raw records, and the noise that each of them needs.

A query is raw data, so nothing can encode it. `privatise` turns the parts of one into an answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol, Self, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from pipeline.linalg import upper_is_diagonal
from pipeline.privacy.mechanism import Channel
from pipeline.privacy.randomness import SecureStream
from pipeline.release.model import Model
from pipeline.types import Integers, Vector


@dataclass(frozen=True, slots=True)
class Exact:
    """Sums as integers: entry i stands for integers[i] * 2^exponents[i]; one may stand for all."""

    integers: Integers
    exponents: Integers

    def __add__(self, other: Exact) -> Exact:
        """Return the sums of two blocks of records, whose units are the study's."""
        if not np.array_equal(self.exponents, other.exponents):
            raise ValueError("sums in other units cannot be added")
        return Exact(self.integers + other.integers, self.exponents)


#: No numbers at all.
NOTHING = Exact(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64))


class Piece(NamedTuple):
    """Numbers that one channel noises: where they stand in their part, and on which lattice point.

    entries: Which entries of the part they are: a mask or a slice.
    """

    entries: slice | NDArray[np.bool_]
    values: Integers
    channel: Channel


class Part(Protocol):
    """Some numbers of a window, and how they are noised."""

    def noised(self, stream: SecureStream) -> Integers:
        """Return the numbers on their public lattice with independent noise from `stream`.

        Raises PrivacyError if a number does not fit the lattice.
        """


class Sum(Part, Protocol):
    """Some numbers that are sums over records, so that those of several blocks can be added."""

    def __add__(self, other: Self) -> Self:
        """Return the sums of two blocks of records at one model."""

    def noised_behind(
        self, rows: Integers | None, stream: SecureStream
    ) -> tuple[Integers, Integers | None]:
        """As `noised`, and what the noise of the next release has to remember.

        rows: The last rows of noise of these numbers, shape (7, m); None where noise forgets.
        """


@runtime_checkable
class LatticePart(Part, Protocol):
    """Some numbers with noise of a lattice, which can be told from it."""

    def pieces(self) -> Sequence[Piece]:
        """Return all numbers, rounded to their lattice and without noise.

        Raises PrivacyError if a number does not fit the lattice.
        """


@dataclass(frozen=True, slots=True)
class VectorPart:
    """A vector whose entries all have the same noise.

    slots: Most records that contribute to one entry.
    """

    sums: Exact
    channel: Channel
    slots: int

    def __add__(self, other: VectorPart) -> VectorPart:
        return replace(self, sums=self.sums + other.sums, slots=self.slots + other.slots)

    def pieces(self) -> tuple[Piece, ...]:
        """As `LatticePart.pieces`."""
        rounded = self.channel.round(self.sums.integers, self.sums.exponents)
        return (Piece(slice(None), rounded, self.channel),)

    def noised(self, stream: SecureStream) -> Integers:
        """As `Part.noised`."""
        return with_noise(self.pieces(), self.slots, stream)[0]

    def noised_behind(
        self, rows: Integers | None, stream: SecureStream
    ) -> tuple[Integers, Integers | None]:
        """As `Sum.noised_behind`."""
        return with_noise(self.pieces(), self.slots, stream, rows)


@dataclass(frozen=True, slots=True)
class MatrixPart:
    """A symmetric matrix as its packed upper triangle, with noise that is isotropic in svec form.

    diagonal, off_diagonal: What noises its entries.
    size, slots: Rows of the matrix; most records that contribute to one entry.
    """

    sums: Exact
    diagonal: Channel
    off_diagonal: Channel
    size: int
    slots: int

    def __add__(self, other: MatrixPart) -> MatrixPart:
        return replace(self, sums=self.sums + other.sums, slots=self.slots + other.slots)

    def pieces(self) -> tuple[Piece, ...]:
        """As `LatticePart.pieces`: the diagonal, and the entries off it."""
        values = self.diagonal.round(self.sums.integers, self.sums.exponents)
        on = upper_is_diagonal(self.size)
        off = ~on
        return Piece(on, values[on], self.diagonal), Piece(off, values[off], self.off_diagonal)

    def noised(self, stream: SecureStream) -> Integers:
        """As `Part.noised`."""
        return with_noise(self.pieces(), self.slots, stream)[0]

    def noised_behind(
        self, rows: Integers | None, stream: SecureStream
    ) -> tuple[Integers, Integers | None]:
        """As `Sum.noised_behind`."""
        return with_noise(self.pieces(), self.slots, stream, rows)


def with_noise(
    pieces: Sequence[Piece], slots: int, stream: SecureStream, rows: Integers | None = None
) -> tuple[Integers, Integers | None]:
    """Return the numbers of some pieces at their indices, each with the noise of its channel.

    slots: Most records that contribute to one number.
    rows: As `Channel.noised` takes them, of all pieces together.

    Returns: The numbers, and the rows behind them where there are any.
    """
    if len(pieces) == 1:
        # one channel noises all: nothing has to be put together
        return pieces[0].channel.noised(pieces[0].values, slots, stream, rows)
    whole = np.empty(sum(len(piece.values) for piece in pieces), dtype=np.int64)
    behind = None if rows is None else np.empty_like(rows)
    for piece in pieces:
        before = None if rows is None else rows[:, piece.entries]
        whole[piece.entries], after = piece.channel.noised(piece.values, slots, stream, before)
        if behind is not None and after is not None:
            behind[:, piece.entries] = after
    return whole, behind


@dataclass(frozen=True, slots=True)
class Query:
    """The sums of one window of clipped records, exact.

    model: The model at which they were taken.
    parts: What leaves with noise, by name, in the order of the release.
    blocks: Of how many blocks of `window.records` slots.
    """

    model: Model
    parts: Mapping[str, Part]
    blocks: int = 1

    def __add__(self, other: Query) -> Query:
        """Return the sums of two blocks of records at one model; TypeError if they are no sums."""
        parts = {name: part + other.parts[name] for name, part in self.parts.items()}  # type: ignore[operator]
        return Query(self.model, parts, self.blocks + other.blocks)


@dataclass(frozen=True, slots=True)
class OpenQuery:
    """The sums of one window of a study without privacy.

    model: The model that the client knew.
    records: How many records entered.
    expansion: Where the sums were taken, shape (d,): the model's point, or a fit of the window's
        own.
    parts: What leaves as it is, by name, in the order of the release.
    """

    model: Model
    records: int
    expansion: Vector
    parts: Mapping[str, Vector]
