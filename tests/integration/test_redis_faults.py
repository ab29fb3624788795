"""What a real Redis refuses: 60 if it passes, 10 if a setting is wrong, 40 if the state is."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import pytest
import redis

from pipeline.errors import ConfigError, StateError, StoreError
from pipeline.methods import task_of
from pipeline.settings import Settings
from pipeline.stream.partition import Partition
from pipeline.study_file.load import parse_study
from state import RedisStore, codec
from state.connection import redis_client
from tests.builders import folded, sample_log, study_text
from tests.redis_server import redis_server

RIGHT, WRONG = "right", "wrong"
TASK = task_of(parse_study(study_text(p=1, records=8, name="faults")))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Settings]:
    """Yield the address of a Redis that these tests may harm."""
    with redis_server(tmp_path_factory.mktemp("redis")) as found:
        yield found


@pytest.fixture
def client(server: Settings) -> Iterator[redis.Redis]:
    connected = redis_client(server)
    connected.flushall()
    yield connected
    connected.config_set("maxmemory", 0)
    connected.replicaof("NO", "ONE")  # type: ignore[no-untyped-call]
    connected.close()


@pytest.mark.parametrize("key", codec.key_types("faults", 2))
def test_a_key_of_another_type_is_a_state_that_cannot_be_used(
    server: Settings, client: redis.Redis, key: str
) -> None:
    client.rpush(key, "x")
    store = RedisStore(client, TASK)

    def read_all() -> None:
        store.load(0)
        store.load(1)
        store.newest_model()

    with pytest.raises(StateError, match="holds a list and no") as told:
        read_all()
    assert key in str(told.value)
    assert "DEL" in str(told.value)
    assert told.value.exit_code == 40


def test_a_write_to_a_key_of_another_type_says_the_same(client: redis.Redis) -> None:
    client.rpush(codec.clients_key("faults", 0), "x")
    with pytest.raises(StateError, match=r"faults}:0:clients in Redis holds a list"):
        RedisStore(client, TASK).commit(0, state_of(), expected=0)
    client.rpush(codec.model_key("faults"), "x")
    client.delete(codec.clients_key("faults", 0))
    with pytest.raises(StateError, match=r"faults}:model in Redis holds a list"):
        RedisStore(client, TASK).store_model(1, b"m")


def test_after_the_key_is_removed_the_state_can_be_stored_again(client: redis.Redis) -> None:
    client.rpush(codec.snapshot_key("faults", 0), "x")
    store = RedisStore(client, TASK)
    with pytest.raises(StateError):
        store.load(0)
    client.delete(codec.snapshot_key("faults", 0))
    store.replace(0, state_of())
    assert store.load(0).head.next_offset == 4


@pytest.mark.parametrize(
    ("field", "value"), [("next_offset", b"x"), ("next_offset", b"7"), (b"\xff", b"x")]
)
def test_fields_that_are_none_of_ours_are_a_state_that_cannot_be_used(
    client: redis.Redis, field: str | bytes, value: bytes
) -> None:
    store = RedisStore(client, TASK)
    store.commit(0, state_of(), expected=0)
    client.hset(codec.snapshot_key("faults", 0), field, value)
    with pytest.raises(StateError, match="state rebuild"):
        store.load(0)


def test_a_redis_without_memory_passes(client: redis.Redis) -> None:
    client.config_set("maxmemory", 1)
    with pytest.raises(StoreError, match="maxmemory"):
        RedisStore(client, TASK).commit(0, state_of(), expected=0)


def test_a_redis_that_follows_another_passes(client: redis.Redis) -> None:
    client.config_set("replica-serve-stale-data", "yes")
    client.replicaof("127.0.0.1", "1")  # type: ignore[no-untyped-call]
    with pytest.raises(StoreError, match="VEILSTREAM_REDIS must name the one that takes writes"):
        RedisStore(client, TASK).commit(0, state_of(), expected=0)


def test_a_wrong_password_and_missing_rights_name_their_settings(
    server: Settings, client: redis.Redis
) -> None:
    client.execute_command("ACL", "SETUSER", "some", "on", f">{RIGHT}", "~other:*", "+@all")
    wrong = dataclasses.replace(server, redis_username="some", redis_password=WRONG)
    with pytest.raises(ConfigError, match="VEILSTREAM_REDIS_PASSWORD"):
        RedisStore(redis_client(wrong), TASK).watermark(0)
    right = dataclasses.replace(wrong, redis_password=RIGHT)
    with pytest.raises(ConfigError, match=r"must allow VEILSTREAM_REDIS_USERNAME the keys veil"):
        RedisStore(redis_client(right), TASK).load(0)
    with pytest.raises(ConfigError, match=r"must allow VEILSTREAM_REDIS_USERNAME the keys veil"):
        RedisStore(redis_client(right), TASK).commit(0, state_of(), expected=0)


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("redis://127.0.0.1:{port}/99", "number at the end of VEILSTREAM_REDIS"),
        ("redis://127.0.0.1:port/0", "VEILSTREAM_REDIS cannot be read"),
        ("redis://127.0.0.1:{port}/0?no_such=1", "VEILSTREAM_REDIS cannot be read"),
    ],
)
def test_a_wrong_address_is_a_setting(server: Settings, address: str, words: str) -> None:
    port = server.redis.rsplit(":", 1)[1].split("/")[0]
    with pytest.raises(ConfigError, match=words):
        RedisStore(redis_client(Settings(redis=address.format(port=port))), TASK).load(0)


def test_only_partitions_that_have_moved_are_read_again_and_no_clients(
    client: redis.Redis,
) -> None:
    store, state = RedisStore(client, TASK), state_of()
    store.commit(0, state, expected=0)
    client.delete(codec.clients_key("faults", 0))
    first = store.summed([0, 1], {})
    again = store.summed([0, 1], first)
    assert [again[n][1] is first[n][1] for n in (0, 1)] == [True, True]
    store.commit(1, state_of(), expected=0)
    moved = store.summed([0, 1], again)
    assert [moved[n][1] is first[n][1] for n in (0, 1)] == [True, False]
    assert moved[1][1].head.next_offset == 4
    assert moved[1][1].sums.encode() == state_of().sums.encode()


def state_of() -> Partition:
    return folded(TASK, sample_log(TASK, releases=4, clients=2))
