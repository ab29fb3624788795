"""What a batch costs a worker that checks it: each release the same, whatever else is in it."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from pipeline.messages.authentic import Authenticator
from pipeline.methods import task_of
from pipeline.stream.fold import CHUNK, Reducer
from pipeline.stream.partition import Partition
from pipeline.study_file.load import parse_study
from pipeline.trust import Pair
from tests.builders import LogEntry
from tests.stage import study_text
from tests.trusted import TRUST, World


def world_of_north() -> World:
    world = World()
    world.admit("north")
    return world


def many_models(count: int) -> World:
    """A client that releases each time at a model that it has not used before."""
    world = world_of_north()
    for seq in range(count):
        world.send("north", seq, world.model(1 + seq))
    return world


def many_false_models(count: int) -> World:
    """A client that makes a ticket of its own for each release."""
    world, own = world_of_north(), Pair(b"o" * 32)
    for seq in range(count):
        world.send("north", seq, world.model(1 + seq, own))
    return world


@pytest.mark.parametrize(
    "made", [many_models, pytest.param(many_false_models, marks=pytest.mark.slow)]
)
def test_no_client_makes_a_batch_dearer_than_its_releases(made: Callable[[int], World]) -> None:
    # a cost in proportion to the models of a batch would be several times as much here
    few, many = (each_costs(made(count)) for count in (CHUNK // 10, CHUNK))
    assert many < 2.0 * few


def with_gaps(gaps: int) -> World:
    """A client that leaves gaps, and repeats its oldest release ever after."""
    world = world_of_north()
    for seq in range(gaps):
        world.send("north", 2 * seq)
    for _ in range(CHUNK - gaps):
        world.append("north", world.log[1].value or b"")
    return world


def test_gaps_of_a_client_make_its_repeats_no_dearer() -> None:
    # to look through all gaps took seven times as long here
    assert each_costs(with_gaps(900)) < 3.0 * each_costs(with_gaps(9))


def test_what_is_too_old_to_be_kept_costs_no_sums_of_its_own() -> None:
    # a client that writes a time of its own into each record: sums for each took 40 times as long
    text = study_text("fading", partitions=1) + TRUST
    text += '\n[estimator.forgetting]\nhalf_life = 8\nof = "seconds"\n'
    world = World(task_of(parse_study(text)))
    world.admit("north")
    for seq in range(CHUNK):
        world.send("north", seq)
    spread = [LogEntry(e.offset, e.key, e.value, timestamp=1000 * e.offset) for e in world.log]
    together, world.log = each_costs(world), spread
    assert each_costs(world) < 12.0 * together


def each_costs(world: World) -> float:
    """Return the processor seconds of a release, the least of some folds of the whole log."""
    found = []
    for _ in range(5):
        trust = Authenticator(world.task, world.pairs)
        state, reducer = Partition.empty(world.task, number=0), Reducer(world.task, trust=trust)
        begun = time.process_time()
        reducer.fold(state, world.log)
        found.append((time.process_time() - begun) / len(world.log))
    return min(found)
