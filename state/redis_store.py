"""Snapshots in Redis: state and watermark in one step, or not at all.

The calls block. A worker has nothing else to do for a partition until its commit is answered,
and its heartbeats run in another thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from importlib.resources import files
from typing import TypeVar, cast

import redis

from pipeline.errors import StaleSnapshot, StateError
from pipeline.release.task import Task
from pipeline.stream.partition import HEAD, Damaged, Partition, Place, Summed, opened, stamped
from state import codec
from state.codec import WATERMARK, number_of
from state.connection import WrongType, ask

Answer = TypeVar("Answer")
#: Bytes of a head and the state that it belongs to.
Held = tuple[bytes, Summed]
#: What a rebuild alone would not bring back.
FORGET_AGAIN = ", and `veilstream state forget` for each client that had been taken out"


class RedisStore:
    """Snapshots of one study.

    client: A connection with `decode_responses=False`.
    secret: Key of the MACs over what is stored; empty in a study without keys.
    """

    def __init__(self, client: redis.Redis, task: Task, secret: bytes = b"") -> None:
        self._secret = secret
        self._client = client
        self._task = task
        self._study = task.study.name
        scripts = files("state")
        self._commit = client.register_script((scripts / "commit.lua").read_text())
        self._model = client.register_script((scripts / "model.lua").read_text())

    def watermark(self, partition: int) -> int:
        """Return the next offset of a partition; 0 before the first commit."""
        key = codec.snapshot_key(self._study, partition)
        return number_of(cast("bytes | None", self._ask(lambda: self._client.hget(key, WATERMARK))))

    def load(self, partition: int, *, doubted: bool = False) -> Partition:
        """Return the snapshot of a partition, or an empty one.

        doubted: As `state.codec.unpacked`.

        Raises StateError if it belongs to another study revision, is damaged or in doubt, or cannot
        be read; StoreError if Redis is out of reach.
        """
        # one transaction, or a commit between the two reads would tear the snapshot
        names, erased = self._names(partition), self._erased
        pipeline = self._client.pipeline(transaction=True)
        pipeline.hgetall(names[0].key)
        pipeline.hgetall(names[1].key)
        pipeline.smembers(erased.key)
        fields, clients, members = cast(
            "tuple[dict[bytes, bytes], dict[bytes, bytes], set[bytes]]", self._ask(pipeline.execute)
        )
        without = codec.erased_names(erased, members)
        loaded = codec.unpacked(self._task, names, fields, clients, without, doubted=doubted)
        loaded.number = partition
        return loaded

    def standing(self, partition: int) -> tuple[int, str]:
        """Return the next offset of a partition, and why nobody may go on with it; mostly empty."""
        key = codec.snapshot_key(self._study, partition)
        found = self._ask(lambda: self._client.hmget(key, WATERMARK, codec.DOUBT))
        held, doubt = cast("list[bytes | None]", found)
        return number_of(held), codec.doubt_of(doubt)

    def doubt(self, partition: int, why: str | None) -> None:
        """Note why nobody may go on with a snapshot, or take that back."""
        key = codec.snapshot_key(self._study, partition)
        if why is None:
            self._ask(lambda: self._client.hdel(key, codec.DOUBT))
        else:
            self._ask(lambda: self._client.hset(key, codec.DOUBT, why))

    def summed(self, partitions: Iterable[int], held: Mapping[int, Held]) -> dict[int, Held]:
        """Return the sums of some partitions, without their clients.

        held: What an earlier call gave: a partition whose head has not changed is not read again.

        Raises StateError, StoreError as `load`.
        """
        numbers = list(partitions)
        heads = self._client.pipeline(transaction=False)
        for number in numbers:
            heads.hget(codec.snapshot_key(self._study, number), HEAD)
        found: dict[int, Held] = {}
        for number, head in zip(numbers, self._ask(heads.execute), strict=True):
            known = held.get(number)
            if known is None or known[0] != (head or b""):
                found[number] = self._summed(number)
            else:
                found[number] = known
        return found

    def _summed(self, partition: int) -> Held:
        place = self._names(partition)[0]
        found = cast("dict[bytes, bytes]", self._ask(lambda: self._client.hgetall(place.key)))
        if not found:
            return b"", Partition.empty(self._task)
        return found.get(HEAD.encode(), b""), codec.summed(self._task, place, found)

    def commit(self, partition: int, state: Partition, *, expected: int) -> None:
        """Write what changed, if the stored watermark is the expected one.

        Raises StaleSnapshot if another worker has moved the partition on; StoreError if Redis is
        out of reach; the commit may or may not have happened, and repeating it is harmless.
        """
        self._write(partition, state, expected, (), everything=expected == 0)

    def beside(self, partition: int, state: Partition, clients: Sequence[str]) -> codec.Beside:
        """Compare a snapshot with the state that it was stored from, and some of its clients.

        Raises StaleSnapshot if a client was taken out; StateError, StoreError as `load`.
        """
        names, erased = self._names(partition), self._erased
        pipeline = self._client.pipeline(transaction=True)
        pipeline.hgetall(names[0].key)
        pipeline.smembers(erased.key)
        if clients:
            pipeline.hmget(names[1].key, *clients)
        fields, members, *found = self._ask(pipeline.execute)
        if codec.erased_names(erased, members) != state.erased:
            raise StaleSnapshot(
                "a client was taken out, or taken back, beside this worker, which stops: the next "
                "one reads the state anew"
            )
        if number_of(fields.get(WATERMARK.encode())) != state.head.next_offset:
            # another worker has it by now, if it is sound
            codec.summed(self._task, names[0], fields)
            return codec.Beside([], [], [])
        progress = dict(zip(clients, found[0] if found else (), strict=True))
        return codec.beside(names, state, fields, progress)

    def mend(self, partition: int, state: Partition, strange: Iterable[bytes]) -> None:
        """Write all of a snapshot anew, where it is damaged, and remove what is none of ours.

        Raises as `commit`.
        """
        self._write(partition, state, state.head.next_offset, strange, everything=True)

    def _write(
        self, partition: int, state: Partition, expected: int, strange: Iterable[bytes],
        *, everything: bool,
    ) -> None:  # fmt: skip
        names = self._names(partition)
        written = codec.packed(names, state, everything=everything)
        removed: list[bytes | str] = [*written.removed, *strange]
        arguments: list[bytes | int | str] = [
            expected,
            state.head.next_offset,
            2 * len(written.fields),
            len(removed),
            len(state.erased),
            *_flat(written.fields),
            *removed,
            *_flat(written.clients),
        ]
        every = [names[0].key, names[1].key, self._erased.key]
        self._ask(lambda: self._commit(keys=every, args=arguments))
        state.stored()

    def erased(self) -> frozenset[str]:
        """Return the ids of erased clients, whatever the state of the snapshots.

        StateError if one is damaged.
        """
        place = self._erased
        members = cast("set[bytes]", self._ask(lambda: self._client.smembers(place.key)))
        return codec.erased_names(place, members)

    def replace(self, partition: int, state: Partition) -> None:
        """Overwrite a snapshot, whatever is stored: for rebuilding with all workers stopped."""
        pipeline = self._client.pipeline(transaction=True)
        self._overwrite(pipeline, partition, state)
        self._ask(pipeline.execute)
        state.stored()

    def erase(self, states: Mapping[int, Partition], client: str) -> None:
        """Overwrite the snapshots of all partitions, and note a client as erased, in one step.

        states: Folded without the client up to the watermarks that are codec.

        Raises StaleSnapshot if a worker has moved a partition on; nothing is changed.
        """
        watched = [codec.snapshot_key(self._study, partition) for partition in states]
        pipeline = self._client.pipeline(transaction=True)
        try:
            self._ask(lambda: pipeline.watch(*watched))  # type: ignore[no-untyped-call]
            for partition, state in states.items():
                if self.watermark(partition) != state.head.next_offset:
                    raise StaleSnapshot("a worker of this study is running; stop it first")
            pipeline.multi()
            erased = self._erased
            pipeline.sadd(erased.key, stamped(erased, "", client.encode()))
            for partition, state in states.items():
                self._overwrite(pipeline, partition, state)
            self._ask(pipeline.execute)
        finally:
            self._ask(pipeline.reset)
        for state in states.values():
            state.stored()

    def newest_model(self) -> tuple[int, bytes] | None:
        """Return version and payload of the newest model, or None; StateError if it is damaged."""
        key = codec.model_key(self._study)
        held = cast(
            "list[bytes | None]", self._ask(lambda: self._client.hmget(key, "version", "payload"))
        )
        if held == [None, None]:
            return None
        try:
            version = (held[0] or b"").decode()
            return int(version), opened(Place(key, self._secret), version, held[1] or b"")
        except (Damaged, ValueError):
            raise StateError(
                f"the model under {key} in Redis is damaged: its checksum does not fit. Remove the "
                "key (DEL) and start the worker again: it takes the newest model of the models "
                "topic; and see to the memory and the disk of Redis"
            ) from None

    def store_model(self, version: int, payload: bytes) -> None:
        """Store a model that is newer than the held one.

        StaleSnapshot if another worker has published in between.
        """
        key = codec.model_key(self._study)
        place = Place(key, self._secret)
        arguments: list[int | bytes] = [version, stamped(place, str(version), payload)]
        self._ask(lambda: self._model(keys=[key], args=arguments))

    def remove_model(self) -> None:
        """Forget the newest model, whatever it is: with all workers stopped."""
        self._ask(lambda: self._client.delete(codec.model_key(self._study)))

    @property
    def _erased(self) -> Place:
        return Place(codec.erased_key(self._study), self._secret)

    def _names(self, partition: int) -> codec.Places:
        return (
            Place(codec.snapshot_key(self._study, partition), self._secret),
            Place(codec.clients_key(self._study, partition), self._secret),
        )

    def _ask(self, call: Callable[[], Answer]) -> Answer:
        try:
            return ask(call)
        except WrongType as error:
            raise StateError(self._wrong_key()) from error

    def _wrong_key(self) -> str:
        """Say which key is not ours, and the way out."""
        kinds = codec.key_types(self._study, self._task.study.stream.partitions)
        for key, kind in kinds.items():
            found = cast("bytes", ask(partial(self._client.type, key)))
            if found not in (kind, b"none"):
                return (
                    f"the key {key} in Redis holds a {found.decode()} and no {kind.decode()}: "
                    "something else has written it. See to what does, remove the key (DEL), stop "
                    "the workers, and run `veilstream state rebuild`"
                    + FORGET_AGAIN
                    * (key == codec.erased_key(self._study))
                )
        return "a key of this study in Redis held another type of value; start again"

    def _overwrite(self, pipeline: redis.client.Pipeline, partition: int, state: Partition) -> None:
        names = self._names(partition)
        pipeline.delete(names[0].key, names[1].key)
        written = codec.packed(names, state, everything=True)
        written.fields[WATERMARK] = str(state.head.next_offset).encode()
        _put(pipeline, names[0].key, written.fields)
        _put(pipeline, names[1].key, written.clients)


def _put(pipeline: redis.client.Pipeline, key: str, fields: Mapping[str, bytes]) -> None:
    for name, data in fields.items():
        pipeline.hset(key, name, data)


def _flat(fields: Mapping[str, bytes]) -> list[bytes | str]:
    return [part for pair in fields.items() for part in pair]
