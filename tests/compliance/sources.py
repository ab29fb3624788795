"""What every source must keep: the suite runs over all kinds, and over a toy in its test.

A record that is handed out again after a crash would be released twice, and one that is passed over
is lost; so a position resumes exactly behind the slot that gave it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from producers.sources.base import Slot, Source
from tests.stage import PATIENCE

#: Text that is in records, and in no message about them.
CANARY = "c4n4ry"


def drain(source: Source, limit: int = 3) -> list[Slot]:
    """Read a source to its end, so many slots at a time, and close it."""
    found: list[Slot] = []
    while not source.ended:
        new = source.read(limit, PATIENCE)
        assert new or source.ended, "nothing comes, and it has not ended"
        found += new
    source.close()
    return found


def some(source: Source, count: int) -> list[Slot]:
    """Read so many slots, however few come at a time."""
    found: list[Slot] = []
    while len(found) < count:
        new = source.read(count - len(found), PATIENCE)
        assert new, "nothing comes"
        found += new
    return found


def waits(source: Source) -> bool:
    """Whether a source to which nothing comes waits as long as it is told, and no longer."""
    began = time.monotonic()
    return not source.read(9, 0.15) and 0.1 < time.monotonic() - began < 5


@dataclass(frozen=True, slots=True)
class Case:
    """A source, and how often it can be opened.

    Attributes
    ----------
    open
        Opens it behind a position.
    bad
        How many of its records cannot be read.
    """

    open: Callable[[bytes | None], Source]
    bad: int = 0

    def slots(self, position: bytes | None = None, limit: int = 1000) -> list[Slot]:
        """Return what comes behind a position."""
        return drain(self.open(position), limit)


def it_resumes_behind_every_slot(case: Case) -> None:
    """Nothing comes twice and nothing is passed over, wherever a client died."""
    slots = case.slots()
    assert len(slots) > 2
    for done, slot in enumerate(slots, start=1):
        assert case.slots(slot.position, limit=3) == slots[done:]


def a_position_survives_its_way_through_a_database(case: Case) -> None:
    """What a client stores is anchored; it resumes at the same place."""
    slots, source = case.slots(), case.open(None)
    while not source.ended:
        source.read(2, 5.0)
    anchored = source.anchored(slots[1].position)
    source.close()
    assert case.slots(anchored) == slots[2:]


def reading_again_gives_the_same(case: Case) -> None:
    """However many slots are asked for at a time."""
    slots = case.slots()
    assert all(case.slots(limit=limit) == slots for limit in (1, 2, len(slots)))


def a_bad_record_keeps_its_slot(case: Case) -> None:
    """It is set aside with a reason, and counted."""
    slots = case.slots()
    assert all((slot.record is None) != (slot.fault is None) for slot in slots)
    assert sum(slot.fault is not None for slot in slots) == case.bad


def no_reason_shows_a_value(case: Case) -> None:
    """Reasons name the line and what is wrong: they go to logs."""
    assert not any(CANARY in (slot.fault or "") for slot in case.slots())


def it_says_how_far_it_is(case: Case) -> None:
    """Progress grows to 1, and at the end nothing more comes."""
    source, shown = case.open(None), list[float]()
    while not source.ended:
        source.read(1, 5.0)
        shown.append(source.progress or 0.0)
    assert shown == sorted(shown)
    assert 0 <= shown[0] <= shown[-1] <= 1
    assert source.read(9, 0.0) == []
    source.close()


def what_is_forgotten_is_behind(case: Case) -> None:
    """A committed position may be forgotten while the rest is read."""
    slots, source = case.slots(), case.open(None)
    found = list(source.read(2, 5.0))
    while len(found) < 2:
        found += source.read(2 - len(found), 5.0)
    source.forget(found[-1].position)
    while not source.ended:
        found += source.read(3, 5.0)
    source.close()
    assert found == slots


#: Every check.
CHECKS: tuple[Callable[[Case], None], ...] = (
    it_resumes_behind_every_slot,
    a_position_survives_its_way_through_a_database,
    reading_again_gives_the_same,
    a_bad_record_keeps_its_slot,
    no_reason_shows_a_value,
    it_says_how_far_it_is,
    what_is_forgotten_is_behind,
)
