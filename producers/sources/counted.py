"""Rows that are counted: a position is how many of them were handed out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from itertools import islice

import msgspec

from pipeline.errors import DataError
from producers.sources.base import Elsewhere, Position, Slot, decode_position


class CountedRows(Elsewhere, ABC):
    """Rows of which there is a known number, and which nobody rewrites; a subclass has them.

    identity: As `Source.identity`.
    position: Behind which slot to resume; None is the start.

    Raises DataError if the position is of another source, or lies behind the last row.
    """

    def __init__(self, identity: str, position: bytes | None) -> None:
        self._identity = identity
        self._done = 0
        if position is not None:
            self._done = decode_position(position, identity, identity).at
        if self._done > self.total:
            raise DataError(
                f"{identity}: the data is shorter than what was already released from; the data "
                "owner must name the source this client has read from before"
            )
        self._rest = self.rows(self._done)

    @property
    @abstractmethod
    def total(self) -> int:
        """How many rows there are."""

    @property
    @abstractmethod
    def columns(self) -> list[str]:
        """The columns of a row."""

    @abstractmethod
    def rows(self, start: int) -> Iterator[Mapping[str, object]]:
        """Return the rows from number `start` on, which is at most `total`."""

    repeats = True

    @property
    def identity(self) -> str:
        """As `Source.identity`."""
        return self._identity

    @property
    def ended(self) -> bool:
        """Whether everything was handed out."""
        return self._done == self.total

    @property
    def progress(self) -> float:
        """The share of the rows handed out."""
        return self._done / self.total if self.total else 1.0

    def read(self, limit: int, timeout: float) -> list[Slot]:
        """Return up to `limit` slots; nobody ever waits."""
        del timeout
        return [self._slot(row) for row in islice(self._rest, limit)]

    def close(self) -> None:
        """Let go of the rows."""
        self._rest = iter(())

    def _slot(self, row: Mapping[str, object]) -> Slot:
        self._done += 1
        found = Position(self._identity, self._done, self._done)
        return Slot(row, None, msgspec.json.encode(found), self._done)
