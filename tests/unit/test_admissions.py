"""What is said of clients outside the log of releases, and where the log has lost its beginning."""

from __future__ import annotations

import pytest

from infra.admissions import Roll
from pipeline.messages.admission import KEYS, Entry, Link, Standing, StudyKeys, write_signed
from tests.trusted import World


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def standings(world: World) -> dict[str, bytes]:
    """What the study has signed of a client that it admitted and then revoked."""
    pair, name = world.pairs[0], world.task.study.name
    keys = StudyKeys(name, [Link(1, pair.public.hex())])
    first = Entry(1, world.client("evil").public.hex(), 0, 0)
    old, new = Standing(name, "evil", [first]), Standing(name, "evil", [first, Entry(2, "", 0, 9)])
    return {n: write_signed(m, pair) for n, m in (("keys", keys), ("old", old), ("new", new))}


def test_what_is_said_of_a_client_counts_under_its_own_key_alone(
    world: World, standings: dict[str, bytes]
) -> None:
    roll = Roll(world.task.study, world.pairs[0].public)
    roll.take(KEYS, standings["keys"])
    roll.take(b"other", standings["old"])
    assert (roll.clients, roll.refused) == ({}, 1)
    for name in ("old", "new", "old"):
        roll.take(b"evil", standings[name])
    assert (roll.standing("evil").key, roll.standing("evil").serial) == ("", 2)
    assert roll.says({b"evil": standings["new"]}, roll.standing("evil"))
    for last in (standings["old"], standings["new"][:-9], None):
        assert not roll.says({b"evil": last}, roll.standing("evil"))


def test_a_single_newer_word_counts_for_more_than_many_old_ones(
    world: World, standings: dict[str, bytes]
) -> None:
    """Whoever lost the history of a client says the newest word of its partition alone."""
    roll = Roll(world.task.study, world.pairs[0].public)
    again = Standing(world.task.study.name, "evil", [Entry(3, "ab" * 64, 0, 0)])
    for key, value in (
        (KEYS, standings["keys"]),
        (b"evil", standings["new"]),
        (b"evil", write_signed(again, world.pairs[0])),
    ):
        roll.take(key, value)
    assert roll.standing("evil") == again
