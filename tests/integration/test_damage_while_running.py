"""Redis is damaged while a worker runs: its owner mends it from memory, or nothing goes on."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from agents import folding as module
from agents.folding import Folding
from pipeline.errors import StaleSnapshot, StateError
from pipeline.messages.topics import Topics
from pipeline.settings import Settings
from pipeline.stream.fold import Reducer
from pipeline.stream.partition import differences
from state import codec
from state.connection import redis_client
from tests.integration.test_checksums import Place, flipped, log_of, place_of
from tests.stage import PATIENCE


@pytest.fixture
def place(
    redis_url: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Place]:
    monkeypatch.setattr(module, "LOOK_SECONDS", 0.001)
    # a page of its own for nearly each
    monkeypatch.setattr(module, "SOME_CLIENTS", 2)
    name = "beside-" + "".join(c for c in request.node.name.lower() if c.isalnum())[:40]
    client = redis_client(Settings(redis=redis_url))
    yield place_of(client, name)
    if found := list(client.scan_iter(f"veil:{{{name}*")):
        client.delete(*found)
    client.close()


def owner_of(place: Place) -> Folding:
    """Return who has both partitions in memory, and sends nothing."""

    async def nothing(*_: object) -> Any:
        raise AssertionError

    owner = Folding(place.task, Topics.of(place.task.study), place.store, nothing, nothing, nothing)
    owner.assign({0: (0, 99), 1: (0, 99)})
    return owner


def watched(owner: Folding, until: Callable[[], bool]) -> None:
    """Let it look at Redis until something is so; what it raises is raised."""

    async def run() -> None:
        task = asyncio.create_task(owner.watch_store())
        async with asyncio.timeout(PATIENCE):
            while not task.done() and not until():
                await asyncio.sleep(0.001)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task

    asyncio.run(run())


def test_whatever_is_damaged_is_stored_again_from_memory(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    owner, chance, redis = owner_of(place), random.Random(1), place.client
    name, tried = place.task.study.name, 0
    for key in (
        codec.snapshot_key(name, 0),
        codec.clients_key(name, 0),
        codec.clients_key(name, 1),
    ):
        sound = redis.hgetall(key)
        for field, data in sound.items():
            if field == b"next_offset":
                continue
            for wrong in (flipped(data, chance), b"x", None):
                redis.hdel(key, field) if wrong is None else redis.hset(key, field, wrong)
                watched(owner, lambda key=key, sound=sound: redis.hgetall(key) == sound)
                tried += 1
    assert "has stored all of this partition again" in caplog.text
    assert tried > 3 * 2 * 3
    key, sound = codec.snapshot_key(name, 1), redis.hgetall(codec.snapshot_key(name, 1))
    redis.hset(key, b"\xff", "no field of ours")
    watched(owner, lambda: redis.hgetall(key) == sound)
    redis.delete(codec.clients_key(name, 1))
    watched(owner, lambda: bool(redis.exists(codec.clients_key(name, 1))))
    place.read_all()
    for number, state in owner.partitions.items():
        assert differences(place.store.load(number), state) == []


def test_what_is_mended_can_be_committed_to(place: Place) -> None:
    owner, name = owner_of(place), place.task.study.name
    place.client.hset(codec.snapshot_key(name, 0), "sums.0.counts", b"damaged")
    field = codec.snapshot_key(name, 0), "sums.0.counts"
    watched(owner, lambda: place.client.hget(*field) != b"damaged")
    state = owner.partitions[0]
    log = log_of(place.task, 0)
    again = [replace(entry, offset=15 + n) for n, entry in enumerate(log[:3])]
    Reducer(place.task).fold(state, again)
    # a batch that is on its way is no damage
    watched(owner, iter([False] * 9 + [True]).__next__)
    place.store.commit(0, state, expected=15)
    assert differences(place.store.load(0), state) == []


def test_what_somebody_else_has_written_is_not_mended_and_nobody_goes_on(place: Place) -> None:
    """It may be the better one: the log says so."""
    owner = owner_of(place)
    other = place.store.load(0)
    other.sums.states[min(other.sums.states)].add(place.store.load(0).sums.states[0])
    place.store.replace(0, other)
    with pytest.raises(StateError, match="not what its worker has stored: sums"):
        watched(owner, lambda: False)
    with pytest.raises(StateError, match="state rebuild"):
        place.store.load(0)


@pytest.mark.parametrize(
    ("kind", "error", "words"),
    [
        ("lost", StaleSnapshot, "has lost its newest part"),
        ("no number", StateError, "cannot be read"),
        ("larger", StateError, "disagree"),
        ("forgotten", StaleSnapshot, "a client was taken out"),
        ("taken back", StaleSnapshot, "a client was taken out"),
        ("list of state", StateError, "holds a list and no hash"),
        ("list of clients", StateError, "holds a list and no hash"),
        ("list of erased", StateError, "holds a list and no set"),
    ],
)
def test_what_memory_cannot_mend_ends_the_worker_at_once(
    place: Place, kind: str, error: type[StateError], words: str
) -> None:
    owner, redis, name = owner_of(place), place.client, place.task.study.name
    key = {
        "list of clients": codec.clients_key(name, 0),
        "list of erased": codec.erased_key(name),
    }.get(kind, codec.snapshot_key(name, 0))
    if kind == "lost":
        redis.delete(*place.keys)
    elif kind.startswith("list"):
        redis.delete(key)
        redis.rpush(key, "x")
    elif kind == "forgotten":
        states = {number: place.store.load(number) for number in (0, 1)}
        for state in states.values():
            state.erased |= {"c0"}
        place.store.erase(states, "c0")
    elif kind == "taken back":
        redis.delete(codec.erased_key(name))
    else:
        redis.hset(key, "next_offset", "x" if kind == "no number" else "16")
    with pytest.raises(error, match=words):
        watched(owner, lambda: False)
