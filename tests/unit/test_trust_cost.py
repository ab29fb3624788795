"""What a batch costs a worker that checks it: each release the same, whatever else is in it."""

from __future__ import annotations

import time

from pipeline.messages.authentic import Authenticator
from pipeline.reducer import Partition, Reducer
from pipeline.reducer.fold import CHUNK
from tests.trusted import World


def many_models(count: int) -> World:
    """A client that releases each time at a model that it has not used before."""
    world = World()
    world.admit("north")
    for seq in range(count):
        world.send("north", seq, world.model(1 + seq))
    return world


def test_no_client_makes_a_batch_dearer_than_its_releases() -> None:
    # a cost in proportion to the models of a batch would be several times as much here
    few, many = (each_costs(many_models(count)) for count in (CHUNK // 10, CHUNK))
    assert many < 2.0 * few


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
