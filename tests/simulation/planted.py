"""Faults that the simulation must find: each loses or repeats something in some schedule."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest import mock

from agents.folding import Folding
from producers.sender import Sender
from producers.store import ClientStore
from tests.simulation.standins import Redis


@contextmanager
def forgets_what_is_on_its_way() -> Iterator[None]:
    """A client that drops a release from its outbox when it hands it over: before Kafka has it."""
    pump = Sender.pump

    def careless(self: Sender) -> None:
        pump(self)
        self._store.sent(self._study, [seq for seq, _ in self._pending], None)

    with mock.patch.object(Sender, "pump", careless):
        yield


@contextmanager
def moves_on_before_it_stores() -> Iterator[None]:
    """A client that moves its source on in a transaction before that of the release."""
    release = ClientStore.release

    def careless(self: ClientStore, task: Any, source: str, group: Any, **named: Any) -> None:
        with self._db.transaction():
            self._db.write(
                "UPDATE streams SET position = ? WHERE study = ?",
                named["position"], task.study.name,
            )  # fmt: skip
        release(self, task, source, group, **named)

    with mock.patch.object(ClientStore, "release", careless):
        yield


@contextmanager
def commits_whatever_is_stored() -> Iterator[None]:
    """A worker that stores its state without asking what is stored: two of them may hold one."""
    store = Redis._store

    def careless(self: Redis, keys: Sequence[str], args: Sequence[Any]) -> int:
        held = int(self.hget(keys[0], "next_offset") or b"0")
        return store(self, keys, [held, *args[1:]])

    with mock.patch.object(Redis, "_store", careless):
        yield


@contextmanager
def acknowledges_before_the_commit() -> Iterator[None]:
    """A worker that lets a batch be acknowledged whose commit comes with the next one."""
    handle = Folding.handle

    async def careless(self: Folding, partition: int, records: Sequence[Any]) -> bool:
        for given, named in late.pop(self, []):
            self._store.commit(*given, **named)
        with mock.patch.object(self._store, "commit", lambda *a, **n: late[self].append((a, n))):
            late[self] = []
            return await handle(self, partition, records)

    late: dict[Folding, list[Any]] = {}
    with mock.patch.object(Folding, "handle", careless):
        yield


Plant = Callable[[], Any]
PLANTED: tuple[Plant, ...] = (
    forgets_what_is_on_its_way,
    moves_on_before_it_stores,
    commits_whatever_is_stored,
    acknowledges_before_the_commit,
)
