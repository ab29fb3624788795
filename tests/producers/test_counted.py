"""What a client can tell from the log of what is counted of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pipeline.messages.admission import Entry
from pipeline.methods import task_of
from pipeline.release.layout import identity
from pipeline.study_file.load import parse_study
from producers import membership as counted
from producers.membership import TOO_MUCH, Counted
from tests.builders import LogEntry
from tests.stage import study_text
from tests.trusted import TRUST, World


class Member:
    """Its keys, as `Membership` has them."""

    has_all_keys = True

    def __init__(self, world: World, client: str) -> None:
        self._world, self._client = world, client
        self.key = self.said = world.client(client).public
        self.serial, self.before = 1, list[Entry]()
        self.word = world.authority.word

    def maker(self, record: LogEntry) -> bytes | None:
        fits = self._world.stamp(self._client).fits(record.value or b"", record.timestamp)
        return self.key if fits else None

    def said_before(self, _partition: int, offset: int) -> list[Entry]:
        return [entry for entry in self.before if entry.offset < offset]


@pytest.fixture
def world() -> World:
    made = World()
    made.admit("north")
    return made


def told(
    world: World, monkeypatch: pytest.MonkeyPatch, made: int, unsent: int = 0,
    member: Member | None = None, first: int = 0,
) -> Any:  # fmt: skip
    monkeypatch.setattr(counted, "read_partition", lambda *_: iter(world.log))
    monkeypatch.setattr(counted, "first_offset", lambda *_: first)
    monkeypatch.setattr(counted, "_own", lambda *_: ("l-north", made, unsent))
    member = member or Member(world, "north")
    return counted.counted(world.task, None, "north", Path(), member)  # type: ignore[arg-type]


def test_a_client_sees_what_was_withheld(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    for seq in (0, 1, 3):
        world.send("north", seq)
    world.append("north", world.log[1].value or b"")
    found = told(world, monkeypatch, 6, 1)
    assert found["releases"] == {
        "made": 6, "acknowledged": 5, "counted": 3, "not_in_the_log": 2
    }  # fmt: skip
    assert found["not_counted"] == {"sent again": 1}


def test_a_client_counts_as_the_worker_does(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.admit("south")
    world.send("north", 0)
    world.append("north", world.stamp("south")(world.bare("north", 1)))
    world.say("north", None)
    world.send("north", 1)
    world.admit("north")
    world.send("north", 2)
    world.append("north", b"no release")
    state, letters = world.folded()
    found = told(world, monkeypatch, 3)
    assert found["releases"]["counted"] == state.clients["north"].counted // state.task.slots == 2
    assert found["releases"]["not_in_the_log"] == 0
    assert sum(found["not_counted"].values()) == len(letters) == 3
    assert found["admitted"] is True


def test_a_client_sees_how_it_stands(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    assert told(world, monkeypatch, 0)["standing"] == "admitted"
    world.say("north", None)
    assert told(world, monkeypatch, 0)["standing"] == "revoked"
    world.say("north", world.client("south"))
    assert told(world, monkeypatch, 0)["standing"] == "other key"
    # the operator has said it, and the log was made anew
    world.log.clear()
    found = told(world, monkeypatch, 0)
    assert (found["standing"], found["admitted"]) == ("lost", False)


def test_a_client_of_whom_retention_has_left_nothing_is_admitted_all_the_same(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    member = Member(world, "north")
    member.before = [Entry(1, member.key.hex(), 0, 0)]
    world.log.clear()
    found = told(world, monkeypatch, 3, member=member, first=500)
    assert (found["standing"], found["log_begins_at"]) == ("admitted", 500)
    # one that was made anew begins at 0
    assert told(world, monkeypatch, 3, member=member)["standing"] == "lost"


@pytest.mark.parametrize("other", [None, "south"])
def test_a_newer_admission_that_the_log_lacks_is_lost_whatever_was_before(
    world: World, monkeypatch: pytest.MonkeyPatch, other: str | None
) -> None:
    world.say("north", None if other is None else world.client(other))
    member = Member(world, "north")
    member.serial = world.serial + 1
    assert told(world, monkeypatch, 0, member=member)["standing"] == "lost"


def test_a_client_sees_what_was_above_its_share(monkeypatch: pytest.MonkeyPatch) -> None:
    limit = "largest_share = { share = 0.4, after = 10 }\n"
    made = World(task_of(parse_study(study_text("shared", partitions=1) + TRUST + limit)))
    made.admit("north")
    for seq in (0, 1, 2, 3, 4, 5, 5):
        made.send("north", seq)
    state, letters = made.folded()
    found = told(made, monkeypatch, 6)
    assert found["releases"] == {
        "made": 6, "acknowledged": 6, "counted": 4, "not_in_the_log": 0
    }  # fmt: skip
    assert state.clients["north"].counted // state.task.slots == 4
    assert {reason for _, reason in letters} == {"share"}
    assert found["not_counted"] == {TOO_MUCH: len(letters)}


def test_a_client_without_a_study_key_looks_at_its_ledger(world: World) -> None:
    found = Counted("north", identity(b"l-north").hex(), world.task.study, None)
    for ledger in ("l-north", "other"):
        entry = world.append("north", world.bare("north", 0))
        found.take(entry)
        found.ledger = identity(ledger.encode()).hex()
    assert (found.numbers, dict(found.others)) == ({0}, {"sent again": 1})
