"""Records to windows: consecutive slots of one client, full or empty, that make one release."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from pipeline.records.encode import Arrays, Block, joined


@dataclass(slots=True)
class Window:
    """Slots that have come so far; what is bad or missing stays an empty slot.

    size: Public number of slots.
    opened: When the first slot came, in seconds of the caller's clock; None while empty.
    position: Where the source continues after the last slot.
    taken, usable: How many slots have come, and how many of them hold a sound record.
    clipped: How many values were clipped to their public range.
    keep: Takes the slots, in place of this window, which keeps them until it is closed otherwise.
    """

    size: int
    opened: float | None = None
    position: bytes | None = None
    taken: int = 0
    usable: int = 0
    clipped: int = 0
    keep: Callable[[Arrays], None] | None = None
    _parts: list[Arrays] = field(default_factory=list)

    @property
    def slots(self) -> Arrays:
        """The slots that have come, encoded."""
        return joined(self._parts)

    @property
    def room(self) -> int:
        """How many slots are left."""
        return self.size - self.taken

    def add(self, block: Block, position: bytes, now: float) -> None:
        """Take consecutive slots, at most `room`; `position` is behind the last of them."""
        if self.opened is None:
            self.opened = now
        (self.keep or self._parts.append)(block.arrays)
        self.taken += len(block.arrays.responses)
        self.usable += block.usable
        self.clipped += block.clipped
        self.position = position
