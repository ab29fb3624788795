"""Snapshots in Redis: state and watermark in one step, or not at all.

The calls block. A worker has nothing else to do for a partition until its commit is answered,
and its heartbeats run in another thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from importlib.resources import files
from typing import TypeVar, cast

import redis

from pipeline.errors import StaleSnapshot, StateError
from pipeline.reducer import HEAD, Partition, Snapshot, Summed
from pipeline.release.task import Task
from state import keys
from state.decoding import number_of, text_keys, texts
from state.faults import WrongType, ask

Answer = TypeVar("Answer")
#: Bytes of a head and the state that it belongs to.
Held = tuple[bytes, Summed]
#: Field of the snapshot that the commit script compares.
WATERMARK = "next_offset"
#: What a rebuild alone would not bring back.
FORGET_AGAIN = ", and `veilstream state forget` for each client that had been taken out"


class RedisStore:
    """Snapshots of one study.

    client: A connection with `decode_responses=False`.
    task: The study.
    """

    def __init__(self, client: redis.Redis, task: Task) -> None:
        self._client = client
        self._task = task
        self._study = task.study.name
        scripts = files("state")
        self._commit = client.register_script((scripts / "commit.lua").read_text())
        self._model = client.register_script((scripts / "model.lua").read_text())

    def ping(self) -> None:
        """Refuse a Redis that does not answer; StoreError if it is out of reach or refuses."""
        self._ask(self._client.ping)

    def watermark(self, partition: int) -> int:
        """Return the next offset of a partition; 0 before the first commit."""
        key = keys.snapshot(self._study, partition)
        return number_of(cast("bytes | None", self._ask(lambda: self._client.hget(key, WATERMARK))))

    def load(self, partition: int) -> Partition:
        """Return the snapshot of a partition, or an empty one.

        Raises StateError if it belongs to another study revision or cannot be read; StoreError if
        Redis is out of reach.
        """
        # one transaction, or a commit between the two reads would tear the snapshot
        pipeline = self._client.pipeline(transaction=True)
        pipeline.hgetall(keys.snapshot(self._study, partition))
        pipeline.hgetall(keys.clients(self._study, partition))
        pipeline.smembers(keys.erased(self._study))
        state, clients, erased = cast(
            "tuple[dict[bytes, bytes], dict[bytes, bytes], set[bytes]]", self._ask(pipeline.execute)
        )
        if not state:
            return Partition.empty(self._task, texts(erased))
        fields = text_keys(state)
        watermark = number_of(fields.pop(WATERMARK, None))
        loaded = Partition.decode(self._task, fields, text_keys(clients), texts(erased))
        if loaded.head.next_offset != watermark:
            raise StateError("the stored watermark and state disagree; run `state rebuild`")
        return loaded

    def summed(self, partitions: Iterable[int], held: Mapping[int, Held]) -> dict[int, Held]:
        """Return the sums of some partitions, without their clients.

        held: What an earlier call gave: a partition whose head has not changed is not read again.

        Raises StateError, StoreError as `load`.
        """
        numbers = list(partitions)
        heads = self._client.pipeline(transaction=False)
        for number in numbers:
            heads.hget(keys.snapshot(self._study, number), HEAD)
        found: dict[int, Held] = {}
        for number, head in zip(numbers, self._ask(heads.execute), strict=True):
            known = held.get(number)
            if known is None or known[0] != (head or b""):
                found[number] = self._summed(number)
            else:
                found[number] = known
        return found

    def _summed(self, partition: int) -> Held:
        key = keys.snapshot(self._study, partition)
        state = cast("dict[bytes, bytes]", self._ask(lambda: self._client.hgetall(key)))
        if not state:
            return b"", Partition.empty(self._task)
        fields = text_keys(state)
        return fields[HEAD], Snapshot.decode(self._task, fields)

    def commit(self, partition: int, state: Partition, *, expected: int) -> None:
        """Write what changed, if the stored watermark is the expected one.

        Raises StaleSnapshot if another worker has moved the partition on; StoreError if Redis is
        out of reach; the commit may or may not have happened, and repeating it is harmless.
        """
        fields = state.fields(everything=expected == 0)
        clients = state.client_fields(everything=expected == 0)
        removed = state.removed_fields()
        arguments: list[bytes | int | str] = [
            expected,
            state.head.next_offset,
            2 * len(fields),
            len(removed),
            len(state.erased),
            *_flat(fields),
            *removed,
            *_flat(clients),
        ]
        names = [
            keys.snapshot(self._study, partition),
            keys.clients(self._study, partition),
            keys.erased(self._study),
        ]
        self._ask(lambda: self._commit(keys=names, args=arguments))
        state.stored()

    def erased(self) -> frozenset[str]:
        """Return the ids of erased clients, whatever the state of the snapshots."""
        key = keys.erased(self._study)
        return texts(cast("set[bytes]", self._ask(lambda: self._client.smembers(key))))

    def replace(self, partition: int, state: Partition) -> None:
        """Overwrite a snapshot, whatever is stored: for rebuilding with all workers stopped."""
        pipeline = self._client.pipeline(transaction=True)
        self._overwrite(pipeline, partition, state)
        self._ask(pipeline.execute)
        state.stored()

    def erase(self, states: Mapping[int, Partition], client: str) -> None:
        """Overwrite the snapshots of all partitions, and note a client as erased, in one step.

        states: Folded without the client up to the watermarks that are stored.

        Raises StaleSnapshot if a worker has moved a partition on; nothing is changed.
        """
        watched = [keys.snapshot(self._study, partition) for partition in states]
        pipeline = self._client.pipeline(transaction=True)
        try:
            self._ask(lambda: pipeline.watch(*watched))  # type: ignore[no-untyped-call]
            for partition, state in states.items():
                if self.watermark(partition) != state.head.next_offset:
                    raise StaleSnapshot("a worker of this study is running; stop it first")
            pipeline.multi()
            pipeline.sadd(keys.erased(self._study), client)
            for partition, state in states.items():
                self._overwrite(pipeline, partition, state)
            self._ask(pipeline.execute)
        finally:
            pipeline.reset()
        for state in states.values():
            state.stored()

    def newest_model(self) -> tuple[int, bytes] | None:
        """Return version and payload of the newest model, or None."""
        key = keys.model(self._study)
        held = cast(
            "list[bytes | None]", self._ask(lambda: self._client.hmget(key, "version", "payload"))
        )
        version, payload = held
        return None if version is None or payload is None else (number_of(version), payload)

    def store_model(self, version: int, payload: bytes) -> None:
        """Store a model that is newer than the held one.

        StaleSnapshot if another worker has published in between.
        """
        self._ask(lambda: self._model(keys=[keys.model(self._study)], args=[version, payload]))

    def _ask(self, call: Callable[[], Answer]) -> Answer:
        try:
            return ask(call)
        except WrongType as error:
            raise StateError(self._wrong_key()) from error

    def _wrong_key(self) -> str:
        """Say which key is not ours, and the way out."""
        kinds = keys.kinds(self._study, self._task.study.stream.partitions)
        for key, kind in kinds.items():
            found = cast("bytes", ask(partial(self._client.type, key)))
            if found not in (kind, b"none"):
                return (
                    f"the key {key} in Redis holds a {found.decode()} and no {kind.decode()}: "
                    "something else has written it. See to what does, remove the key (DEL), stop "
                    "the workers, and run `veilstream state rebuild`"
                    + FORGET_AGAIN
                    * (key == keys.erased(self._study))
                )
        return "a key of this study in Redis held another type of value; start again"

    def _overwrite(self, pipeline: redis.client.Pipeline, partition: int, state: Partition) -> None:
        names = keys.snapshot(self._study, partition), keys.clients(self._study, partition)
        pipeline.delete(*names)
        head: dict[str, bytes] = {WATERMARK: str(state.head.next_offset).encode()}
        _put(pipeline, names[0], {**state.fields(everything=True), **head})
        _put(pipeline, names[1], state.client_fields(everything=True))


def _put(pipeline: redis.client.Pipeline, key: str, fields: Mapping[str, bytes]) -> None:
    for name, data in fields.items():
        pipeline.hset(key, name, data)


def _flat(fields: Mapping[str, bytes]) -> list[bytes | str]:
    return [part for pair in fields.items() for part in pair]
