"""Commits to a real Redis: all or nothing, once, and with the removal of what has been dropped."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest
import redis

from pipeline.errors import StaleSnapshot, StateError
from pipeline.estimators.forgetting import KEPT
from pipeline.methods import task_of
from pipeline.release.model import Model
from pipeline.release.task import Task
from pipeline.settings import Settings
from pipeline.stream.fold import Reducer
from pipeline.stream.partition import Partition, differences
from pipeline.study_file.load import parse_study
from state import RedisStore, codec
from state.connection import redis_client
from tests.builders import LogEntry, SeededStream, payload_of, simulate, study_text

FORGETTING = 'half_life = 64, of = "records"'


@dataclass(frozen=True)
class Place:
    """A study of the test's own in Redis."""

    task: Task
    client: redis.Redis
    store: RedisStore

    def stored(self) -> dict[bytes, bytes]:
        found: dict[bytes, bytes] = self.client.hgetall(codec.snapshot_key(self.task.study.name, 0))
        return found


@pytest.fixture
def place(redis_url: str, request: pytest.FixtureRequest) -> Iterator[Place]:
    name = "store-" + "".join(c for c in request.node.name.lower() if c.isalnum())[:40]
    text = study_text(p=1, records=8, forgetting=FORGETTING, name=name)
    task = task_of(parse_study(text))
    client = redis_client(Settings(redis=redis_url))
    yield Place(task, client, RedisStore(client, task))
    if found := list(client.scan_iter(f"veil:{{{name}}}:*")):
        client.delete(*found)
    client.close()


def log_of(task: Task, count: int) -> list[LogEntry]:
    """Return releases of two clients, each in a bucket of its own."""
    rng, stream = np.random.default_rng(0), SeededStream(0)
    entries = []
    for i in range(count):
        model = Model(i + 1, rng.integers(-99, 99, 2), (1024, 1024), 8 * i)
        client = f"c{i % 2}"
        value = payload_of(
            task, *simulate(rng, 8, 1), model, stream, client=client, ledger=client, seq=i // 2
        )
        entries.append(LogEntry(i, client.encode(), value))
    return entries


def without(task: Task, entries: list[LogEntry], *clients: str) -> Partition:
    state = Partition.empty(task, frozenset(clients))
    assert Reducer(task).fold(state, entries) == []
    return state


def test_what_was_dropped_is_removed_in_the_same_commit(place: Place) -> None:
    state, reducer = Partition.empty(place.task), Reducer(place.task)
    entries, at = log_of(place.task, KEPT + 30), 0
    for size in (KEPT - 5, 3, 1, 1, 10, 20):
        reducer.fold(state, entries[at : at + size])
        place.store.commit(0, state, expected=at)
        at += size
        assert differences(place.store.load(0), state) == []
    buckets = {name.split(b".")[1] for name in place.stored() if name.startswith(b"sums.")}
    assert buckets == {str(b).encode() for b in range(30, KEPT + 30)}
    assert state.head.forgotten == 30


def test_a_commit_that_is_repeated_changes_nothing(place: Place) -> None:
    """The answer to a commit may be lost: the same one again is taken for the same one."""
    entries = log_of(place.task, KEPT + 10)
    state, again = without(place.task, entries[:KEPT]), without(place.task, entries[:KEPT])
    place.store.commit(0, state, expected=0)
    place.store.commit(0, again, expected=0)
    for one in (state, again):
        Reducer(place.task).fold(one, entries[KEPT:])
    assert len(again.removed_fields()) > 10
    place.store.commit(0, state, expected=KEPT)
    before = place.stored()
    place.store.commit(0, again, expected=KEPT)
    assert place.stored() == before
    assert differences(place.store.load(0), state) == []


def test_a_commit_of_a_late_worker_is_refused_and_removes_nothing(place: Place) -> None:
    entries = log_of(place.task, KEPT + 10)
    state, late = without(place.task, entries[: KEPT - 5]), without(place.task, entries[:5])
    place.store.commit(0, state, expected=0)
    late.stored()
    Reducer(place.task).fold(late, entries[5:])
    before = place.stored()
    with pytest.raises(StaleSnapshot):
        place.store.commit(0, late, expected=5)
    assert place.stored() == before


def test_a_client_is_erased_in_one_step(place: Place) -> None:
    entries = log_of(place.task, 40)
    place.store.commit(0, without(place.task, entries), expected=0)
    erased = without(place.task, entries, "c1")
    place.store.erase({0: erased}, "c1")
    assert place.store.erased() == {"c1"}
    loaded = place.store.load(0)
    assert differences(loaded, erased) == []
    assert (sorted(loaded.clients), loaded.erased) == (["c0"], {"c1"})


def test_nothing_is_erased_where_a_worker_has_gone_on(place: Place) -> None:
    entries = log_of(place.task, 40)
    place.store.commit(0, without(place.task, entries), expected=0)
    before = place.stored()
    with pytest.raises(StaleSnapshot, match="worker of this study is running"):
        place.store.erase({0: without(place.task, entries[:39], "c1")}, "c1")
    assert place.stored() == before
    assert place.store.erased() == frozenset()


def test_a_worker_that_runs_while_a_client_is_erased_cannot_bring_it_back(place: Place) -> None:
    entries = log_of(place.task, 40)
    place.store.commit(0, without(place.task, entries[:30]), expected=0)
    worker = place.store.load(0)
    place.store.erase({0: without(place.task, entries[:30], "c1")}, "c1")
    Reducer(place.task).fold(worker, entries[30:])
    with pytest.raises(StaleSnapshot, match="taken out"):
        place.store.commit(0, worker, expected=30)
    assert sorted(place.store.load(0).clients) == ["c0"]


def test_a_store_that_lost_its_erased_clients_is_found_out(place: Place) -> None:
    entries = log_of(place.task, 40)
    place.store.commit(0, without(place.task, entries), expected=0)
    place.store.erase({0: without(place.task, entries, "c1")}, "c1")
    place.client.delete(codec.erased_key(place.task.study.name))
    with pytest.raises(StateError, match="state forget"):
        place.store.load(0)
