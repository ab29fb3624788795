"""A source of which somebody has read the first slots: none is lost, and none comes twice."""

from __future__ import annotations

from dataclasses import dataclass, field

from producers.sources import Slot, Source


@dataclass
class Held:
    """A source whose first slots have been read: they are handed out again, first.

    opened: When the first of them came, in monotonic seconds; None if none has.
    """

    source: Source
    slots: list[Slot] = field(default_factory=list)
    opened: float | None = None

    @property
    def identity(self) -> str:
        """That of the source."""
        return self.source.identity

    @property
    def columns(self) -> list[str] | None:
        """Those of the source."""
        return self.source.columns

    @property
    def ended(self) -> bool:
        """Whether everything was handed out."""
        return not self.slots and self.source.ended

    @property
    def total(self) -> int | None:
        """As the source knows."""
        return self.source.total

    @property
    def progress(self) -> float | None:
        """The share that was read, 0 to 1."""
        return self.source.progress

    def read(self, limit: int, timeout: float) -> list[Slot]:
        """Return up to `limit` slots, those that are held first."""
        if not self.slots:
            return self.source.read(limit, timeout)
        found, self.slots = self.slots[:limit], self.slots[limit:]
        return found

    def anchored(self, position: bytes) -> bytes:
        """As the source does."""
        return self.source.anchored(position)

    def forget(self, position: bytes) -> None:
        """As the source does."""
        self.source.forget(position)

    def close(self) -> None:
        """Close the source."""
        self.source.close()
