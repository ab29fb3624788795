"""What is said of clients outside the log of releases, and where the log has lost its beginning."""

from __future__ import annotations

import pytest

from infra.admissions import Roll
from infra.keyring import StudyPairs
from pipeline.messages import authentic
from pipeline.messages.admission import KEYS, Entry, Link, Standing, StudyKeys, write_signed
from pipeline.stream.fold import Reducer
from pipeline.stream.partition import Partition, differences
from pipeline.trust import Pair
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


def test_a_log_that_lost_its_beginning_believes_no_key_that_was_retired_there() -> None:
    """Wherever the log is cut, the rest is judged as in the whole log."""
    old, new = Pair(b"s" * 32, 1), Pair(b"t" * 32, 2)
    world = World(pairs=[old])
    world.admit("north")
    world.send("north", 0)
    world.pairs.append(new)
    world.append("north", world.stamp("north", pair=old)(world.bare("north", 1)))
    world.send("north", 2)
    retired = len(world.log)
    world.retire(2, new)
    world.append("north", world.stamp("north", pair=old)(world.bare("north", 3)))
    world.say("thief", world.client("thief"), by=old)
    world.append("thief", world.stamp("thief", pair=old)(world.bare("thief", 0)))
    world.send("north", 4)
    whole = world.folded()[1]
    assert [reason for _, reason in whole] == ["old-key", "undecodable", "not-admitted"]
    held = StudyPairs(world.pairs, 2, {2: {0: retired}})
    for cut in range(1, len(world.log)):
        state = Partition.empty(world.task, number=0).starting_at(cut)
        state.admissions.retire(held.least_at(0, cut))
        state.admissions.enter("north", Entry(1, world.client("north").public.hex(), 0, 0))
        letters = Reducer(world.task, trust=world.authority).fold(state, world.log[cut:])
        found = [(letter.offset, letter.fault.reason) for letter in letters]
        assert found == [letter for letter in whole if letter[0] >= cut], cut


def test_a_retirement_that_nobody_finds_any_more_has_always_been() -> None:
    pairs = [Pair(bytes([n]) * 32, n) for n in (1, 2, 3)]
    assert StudyPairs(pairs).least_at(0, 9) == 1
    # cut off between the key file and the log, and a file of before
    for held in (StudyPairs(pairs, 3, {2: {0: 5}, 3: {}}), StudyPairs(pairs, 3)):
        assert (held.least_at(0, 0), held.least_at(0, 1)) == (1, 3)
    twice = StudyPairs(pairs, 3, {2: {0: 5}, 3: {0: 8}})
    assert [twice.least_at(0, cut) for cut in (5, 6, 8, 9)] == [1, 2, 2, 3]


def test_a_word_that_is_repeated_is_verified_and_splits_a_batch_once(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, reads, folds = world.admit("north"), list[bytes](), list[int]()
    for seq in range(20):
        world.send("north", seq)
        world.append("x", old)
    read, fold = authentic.read_word, Reducer._fold_releases
    monkeypatch.setattr(authentic, "read_word", lambda p, *a: reads.append(p) or read(p, *a))
    monkeypatch.setattr(
        Reducer, "_fold_releases", lambda s, st, r: folds.append(len(r)) or fold(s, st, r)
    )
    state, letters = world.folded()
    assert (letters, state.head.words, state.head.folded) == ([], 21, 20)
    assert (reads, folds) == ([old], [20])
    for sizes in ([1] * 41, [7, 9]):
        assert differences(world.folded(*sizes)[0], state) == []
