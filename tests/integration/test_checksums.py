"""Whatever changes in what Redis holds is found and named, with what to do, before it is used."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
import pytest

from pipeline.errors import StaleSnapshot, StateError
from pipeline.methods import task_of
from pipeline.release.model import Model
from pipeline.release.task import Task
from pipeline.settings import Settings
from pipeline.stream.fold import Reducer
from pipeline.stream.partition import Partition
from pipeline.study_file.load import parse_study
from state import RedisStore, codec
from state.connection import redis_client
from tests.builders import LogEntry, SeededStream, payload_of, relogged, simulate, study_text

BUCKETS = 5


@dataclass(frozen=True)
class Place:
    """A study with two partitions, an erased client and a model in Redis."""

    task: Task
    client: Any
    store: RedisStore

    def read_all(self) -> None:
        """Read as a worker does that takes over."""
        self.store.load(0)
        self.store.load(1)
        self.store.newest_model()

    @property
    def keys(self) -> dict[str, bytes]:
        return codec.key_types(self.task.study.name, 2)


def place_of(client: Any, name: str) -> Place:
    text = study_text(p=1, records=8, name=name, forgetting='half_life = 64, of = "records"')
    task = task_of(parse_study(text))
    place = Place(task, client, RedisStore(client, task))
    states = [Partition.empty(task), Partition.empty(task)]
    for number, state in enumerate(states):
        log = log_of(task, number)
        Reducer(task).fold(state, log[:8])
        place.store.commit(number, state, expected=0)
        Reducer(task).fold(state, log[8:])
        place.store.commit(number, state, expected=8)
    for state in states:
        state.erased = frozenset({"gone"})
    place.store.erase(dict(enumerate(states)), "gone")
    place.store.store_model(7, b"a model")
    place.read_all()
    return place


def log_of(task: Task, seed: int) -> list[LogEntry]:
    """Return releases of three clients, in a few buckets."""
    rng, stream = np.random.default_rng(seed), SeededStream(seed)
    entries = []
    for i in range(3 * BUCKETS):
        model = Model(i // 3 + 1, rng.integers(-99, 99, 2), (1024, 1024), 8 * (i // 3))
        client = f"c{i % 3}"
        value = payload_of(
            task, *simulate(rng, 8, 1), model, stream, client=client, ledger=client, seq=i // 3
        )
        entries.append(LogEntry(i, client.encode(), value))
    return relogged(entries)


@pytest.fixture
def place(redis_url: str, request: pytest.FixtureRequest) -> Iterator[Place]:
    name = "sums-" + "".join(c for c in request.node.name.lower() if c.isalnum())[:40]
    client = redis_client(Settings(redis=redis_url))
    yield place_of(client, name)
    if found := list(client.scan_iter(f"veil:{{{name}*")):
        client.delete(*found)
    client.close()


def assert_found(place: Place, key: str, what: str) -> None:
    """Assert that a fault is found, with the key and the way out."""
    with pytest.raises(StateError) as told:
        place.read_all()
    assert type(told.value) is StateError, what
    said = str(told.value)
    assert key in said or "stored state" in said, (what, said)
    assert "rebuild" in said or "DEL" in said, (what, said)


def flipped(data: bytes, chance: random.Random) -> bytes:
    """Return bytes with one bit changed."""
    bit = chance.randrange(8 * len(data))
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def test_a_changed_bit_is_found_in_every_field(place: Place) -> None:
    chance, tried = random.Random(3), 0
    for key, kind in place.keys.items():
        if kind == b"set":
            continue
        held = place.client.hgetall(key)
        for name, data in sorted(held.items()):
            for _ in range(4):
                place.client.hset(key, name, flipped(data, chance))
                assert_found(place, key, f"{name!r} of {key}")
                tried += 1
            place.client.hset(key, name, data)
            # the bit may be one of the name as well
            if (other := flipped(name, chance)) not in held:
                place.client.hdel(key, name)
                place.client.hset(key, other, data)
                assert_found(place, key, f"{name!r} of {key} as {other!r}")
                place.client.hdel(key, other)
                place.client.hset(key, name, data)
    assert tried > 4 * 2 * 3 * BUCKETS
    place.read_all()


def test_a_changed_bit_is_found_in_the_list_of_erased_clients(place: Place) -> None:
    chance, key = random.Random(4), codec.erased_key(place.task.study.name)
    (member,) = place.client.smembers(key)
    for _ in range(50):
        changed = flipped(member, chance)
        place.client.srem(key, member)
        place.client.sadd(key, changed)
        with pytest.raises(StateError, match="state forget"):
            place.store.erased()
        assert_found(place, key, repr(changed))
        place.client.srem(key, changed)
        place.client.sadd(key, member)
    place.read_all()


def test_a_field_that_is_gone_or_of_an_earlier_commit_is_found(place: Place) -> None:
    """An old value has a checksum that fits: only the totals of the head tell."""
    name = place.task.study.name
    for key in (codec.snapshot_key(name, 0), codec.clients_key(name, 0)):
        now = place.client.hgetall(key)
        for field, data in now.items():
            place.client.hdel(key, field)
            assert_found(place, key, f"{field!r} of {key} is gone")
            place.client.hset(key, field, data)
    behind = Partition.empty(place.task, frozenset({"gone"}))
    Reducer(place.task).fold(behind, log_of(place.task, 0)[:9])
    both = [at(name, 0) for at in (codec.snapshot_key, codec.clients_key)]
    new = {key: place.client.hgetall(key) for key in both}
    place.store.replace(0, behind)
    old = {key: place.client.hgetall(key) for key in both}
    for key in both:
        place.client.delete(key)
        place.client.hset(key, mapping=new[key])
    place.read_all()
    for key in both:
        older = [f for f in old[key].keys() & new[key].keys() if old[key][f] != new[key][f]]
        assert older
        for field in older:
            place.client.hset(key, field, old[key][field])
            assert_found(place, key, f"an old {field!r} of {key}")
            place.client.hset(key, field, new[key][field])
        place.client.hset(key, mapping=old[key])
        assert_found(place, key, f"all of {key} is old")
        place.client.hset(key, mapping=new[key])
    place.read_all()


@pytest.mark.parametrize("kind", ["state", "clients", "model"])
def test_values_of_another_field_partition_or_study_are_found(place: Place, kind: str) -> None:
    name = place.task.study.name
    other = place_of(place.client, f"{name}-other")
    at = {"state": codec.snapshot_key, "clients": codec.clients_key}
    own = codec.model_key(name) if kind == "model" else at[kind](name, 0)
    of_other = (
        codec.model_key(other.task.study.name) if kind == "model" else at[kind](f"{name}-other", 0)
    )
    held = place.client.hgetall(own)
    for field, data in place.client.hgetall(of_other).items():
        if field in held and held[field] != data:
            place.client.hset(own, field, data)
            assert_found(place, own, f"{field!r} of another study")
            place.client.hset(own, field, held[field])
    if kind != "model":
        for field, data in place.client.hgetall(at[kind](name, 1)).items():
            if field != b"next_offset" and field in held:
                place.client.hset(own, field, data)
                assert_found(place, own, f"{field!r} of another partition")
                place.client.hset(own, field, held[field])
        names = [field for field in held if field != b"next_offset"]
        for one, two in pairwise(names):
            place.client.hset(own, mapping={one: held[two], two: held[one]})
            assert_found(place, own, f"{one!r} and {two!r} have changed places")
            place.client.hset(own, mapping={one: held[one], two: held[two]})
    place.read_all()


def test_the_worker_that_publishes_finds_it_in_partitions_of_others(place: Place) -> None:
    key = codec.snapshot_key(place.task.study.name, 1)
    held = place.store.summed([1], {})
    for field, data in place.client.hgetall(key).items():
        if field != b"next_offset":
            place.client.hset(key, field, flipped(data, random.Random(5)))
            with pytest.raises(StateError, match="rebuild"):
                place.store.summed([1], {})
            place.client.hset(key, field, data)
    assert place.store.summed([1], held)[1] is held[1]


def test_sums_that_are_gone_while_clients_are_there_are_found(place: Place) -> None:
    place.client.delete(codec.snapshot_key(place.task.study.name, 0))
    assert_found(place, codec.clients_key(place.task.study.name, 0), "no sums")


def test_a_state_of_an_earlier_version_is_refused_in_words_of_its_own(place: Place) -> None:
    key = codec.snapshot_key(place.task.study.name, 0)
    place.client.hset(key, "head", msgspec.msgpack.encode({"schema": 6, "revision": "r"}))
    with pytest.raises(StateError, match="has schema 6, this version reads"):
        place.store.load(0)


BIG = 2**53


def test_versions_and_offsets_beyond_2_to_53_are_compared_as_integers(place: Place) -> None:
    """Numbers of Lua are doubles: to them 2^53 and 2^53 + 1 are the same."""
    store = place.store
    for version in (8, 10, BIG, BIG + 1, BIG + 2, 2**62 + 1):
        store.store_model(version, b"m")
        assert store.newest_model() == (version, b"m")
        store.store_model(version, b"m")
        for older in (version, version - 1, 9 if version > 9 else 7):
            with pytest.raises(StaleSnapshot):
                store.store_model(older, b"other")
    place.client.delete(
        *[key for key in place.keys if key.endswith(("state", "clients", "erased"))]
    )
    state = Partition.empty(place.task).starting_at(BIG)
    store.commit(0, state, expected=0)
    late = store.load(0)
    log = [LogEntry(BIG, b"x", b"bad"), LogEntry(BIG + 1, b"x", b"bad")]
    Reducer(place.task).fold(state, log)
    Reducer(place.task).fold(late, log[:1])
    store.commit(0, state, expected=BIG)
    with pytest.raises(StaleSnapshot):
        store.commit(0, late, expected=BIG)
    assert store.load(0).head.next_offset == BIG + 2
