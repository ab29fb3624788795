"""Records to windows: consecutive slots of one client, full or empty, that make one release."""

from __future__ import annotations

from dataclasses import dataclass, field

from pipeline.records.encode import Row


@dataclass(slots=True)
class Window:
    """Slots that have come so far; what is bad or missing stays an empty slot.

    size: Public number of slots.
    opened: When the first slot came, in seconds of the caller's clock; None while empty.
    slots: The encoded records, None for those that were set aside.
    position: Where the source continues after the last slot.
    """

    size: int
    opened: float | None = None
    slots: list[Row | None] = field(default_factory=list)
    position: bytes | None = None

    @property
    def rows(self) -> list[Row]:
        """The records that could be encoded."""
        return [row for row in self.slots if row is not None]

    @property
    def taken(self) -> int:
        """How many slots have come."""
        return len(self.slots)

    @property
    def room(self) -> int:
        """How many slots are left."""
        return self.size - self.taken

    @property
    def clipped(self) -> int:
        """How many values were clipped to their public range."""
        return sum(row.clipped for row in self.rows)

    def add(self, row: Row | None, position: bytes, now: float) -> None:
        """Take one slot; None for a record that was set aside."""
        if self.opened is None:
            self.opened = now
        self.slots.append(row)
        self.position = position
