"""Kafka and Redis in this process: what clients and workers use of them, and no more.

For the simulation alone. `tests.simulation.real` has the same seams on real servers, and a test
runs the same scenarios on both.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kafka import TopicPartition
from redis import ResponseError

from pipeline.messages.topics import Topics, partition_of
from pipeline.settings import Settings

#: Writes that a Redis which dies can have kept in memory alone.
UNSAVED = 6


@dataclass(frozen=True, slots=True)
class Record:
    """A record of a log."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]]
    timestamp: int


@dataclass(slots=True)
class Future:
    """What a producer answers."""

    value: Record | None = None
    exception: Exception | None = None

    @property
    def is_done(self) -> bool:
        """Whether Kafka has acknowledged."""
        return self.value is not None

    def get(self, timeout: float = 0.0) -> Record | None:
        """Return what Kafka has acknowledged: here it answers at once, or never."""
        del timeout
        return self.value

    def failed(self) -> bool:
        """Say no: who fails here is dead."""
        return False


class Kafka:
    """Topics as lists."""

    def __init__(self, topics: Topics) -> None:
        self.partitions = {topic.name: topic.partitions for topic in topics.all()}
        self.logs: dict[tuple[str, int], list[Record]] = {
            (name, number): [] for name, count in self.partitions.items() for number in range(count)
        }

    def append(self, topic: str, key: bytes, value: bytes | None, headers: Any = ()) -> Record:
        """Add a record to the partition of its key."""
        number = partition_of(key, self.partitions[topic])
        log = self.logs[topic, number]
        log.append(Record(topic, number, len(log), key, value, headers or (), 0))
        return log[-1]


class StandIns:
    """A Kafka and a Redis of a study's own, in this process."""

    settings = Settings(kafka="simulated:1", redis="redis://simulated:1/0", folder="simulated")

    def __init__(
        self, topics: Topics, kafka: Kafka | None = None, settings: Settings = settings
    ) -> None:
        self._kafka, self.settings = kafka or Kafka(topics), settings
        self.append = self._kafka.append
        self.redis: Any = Redis()

    def records(self, topic: str, partition: int) -> list[Record]:
        """Return the log of a partition."""
        return self._kafka.logs[topic, partition]

    def producer(self) -> Producer:
        """Return a new producer."""
        return Producer(self._kafka)

    def reader(self) -> Reader:
        """Return a new consumer."""
        return Reader(self._kafka)

    def lose(self, chance: random.Random) -> None:
        """Let Redis lose its last writes."""
        self.redis.lose(chance)


class Producer:
    """Records on their way: they land in order, and a crash lets some of them land unanswered."""

    def __init__(self, kafka: Kafka) -> None:
        self._kafka = kafka
        self._flight: list[tuple[Future, tuple[Any, ...]]] = []

    def send(self, topic: str, *, key: bytes, value: bytes, headers: Any, **_: Any) -> Future:
        """Let a record begin its way."""
        self._flight.append((Future(), (topic, key, value, headers)))
        return self._flight[-1][0]

    def land(self, count: int) -> None:
        """Let so many records arrive, and be acknowledged."""
        for future, record in self._flight[:count]:
            future.value = self._kafka.append(*record)
        del self._flight[:count]

    def settle(self, chance: random.Random) -> None:
        """Let what is on its way arrive or not, when its sender is dead."""
        self.land(chance.randint(0, len(self._flight)))

    def flush(self, timeout: float | None = None) -> None:
        """Let everything arrive."""
        self.land(len(self._flight))

    def close(self, timeout: float | None = None) -> None:
        """Do nothing."""


class Reader:
    """A consumer of no group."""

    def __init__(self, kafka: Kafka) -> None:
        self._logs = kafka.logs
        self._at: dict[TopicPartition, int] = {}

    def assign(self, places: Sequence[TopicPartition]) -> None:
        """Begin at the beginning."""
        self._at = dict.fromkeys(places, 0)

    def seek_to_beginning(self, *places: TopicPartition) -> None:
        """Go back."""
        self._at |= dict.fromkeys(places, 0)

    def seek(self, place: TopicPartition, offset: int) -> None:
        """Go to an offset."""
        self._at[place] = offset

    def position(self, place: TopicPartition) -> int:
        """Return the next offset."""
        return self._at[place]

    def beginning_offsets(self, places: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """Return where logs begin."""
        return dict.fromkeys(places, 0)

    def end_offsets(self, places: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """Return where logs end."""
        return {place: len(self._logs[place.topic, place.partition]) for place in places}

    def poll(self, **_: Any) -> dict[TopicPartition, list[Record]]:
        """Return everything that is new."""
        found = {}
        for place, at in self._at.items():
            if new := self._logs[place.topic, place.partition][at:]:
                found[place] = new
                self._at[place] = at + len(new)
        return found

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Do nothing."""


def _bytes(value: object) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()


@dataclass
class Redis:
    """Hashes and sets, and the two scripts; it remembers what it held before its last writes."""

    held: dict[str, Any] = field(default_factory=dict)
    before: list[dict[str, Any]] = field(default_factory=list)

    def lose(self, chance: random.Random) -> None:
        """Forget the last writes, as a Redis that dies may."""
        if self.before:
            self.held = self.before[chance.randrange(len(self.before))]
            self.before = []

    def register_script(self, text: str) -> Any:
        """Return the stand-in of a script."""
        return self._store if "snapshot" in text else self._model

    def hget(self, key: str, name: str) -> bytes | None:
        """Return a field of a hash."""
        found: bytes | None = self.held.get(key, {}).get(name.encode())
        return found

    def hmget(self, key: str, *names: str) -> list[bytes | None]:
        """Return fields of a hash."""
        return [self.hget(key, name) for name in names]

    def hgetall(self, key: str) -> dict[bytes, bytes]:
        """Return a hash."""
        return dict(self.held.get(key, {}))

    def smembers(self, key: str) -> set[bytes]:
        """Return a set."""
        return set(self.held.get(key, ()))

    def pipeline(self, transaction: bool = True) -> Pipeline:
        """Return commands that are answered together."""
        return Pipeline(self)

    def _writes(self) -> None:
        self.before = [*self.before[1 - UNSAVED :], copy.deepcopy(self.held)]

    def _store(self, keys: Sequence[str], args: Sequence[Any]) -> int:
        """Do as `state/commit.lua`."""
        expected, after, values, removed, erased, *rest = args
        held = int(self.hget(keys[0], "next_offset") or b"0")
        if held == after != expected:
            return 0
        if held != expected:
            raise ResponseError(f"STALE expected {expected} found {held}")
        if len(self.smembers(keys[2])) != erased:
            raise ResponseError("STALE a client was taken out")
        self._writes()
        state = self.held.setdefault(keys[0], {})
        state |= _pairs(rest[:values])
        for name in rest[values : values + removed]:
            state.pop(_bytes(name), None)
        if clients := _pairs(rest[values + removed :]):
            self.held.setdefault(keys[1], {}).update(clients)
        state[b"next_offset"] = _bytes(after)
        return 1

    def _model(self, keys: Sequence[str], args: Sequence[Any]) -> int:
        """Do as `state/model.lua`."""
        version, payload = args
        held = int(self.hget(keys[0], "version") or b"0")
        if held == version and self.hget(keys[0], "payload") == payload:
            return 0
        if held >= version:
            raise ResponseError(f"STALE model {version} is not newer than {held}")
        self._writes()
        self.held[keys[0]] = {b"version": _bytes(version), b"payload": payload}
        return 1


class Pipeline:
    """Questions that are answered together."""

    def __init__(self, redis: Redis) -> None:
        self._redis, self._asked = redis, list[tuple[str, tuple[Any, ...]]]()

    def __getattr__(self, name: str) -> Any:
        return lambda *given: self._asked.append((name, given))

    def execute(self) -> list[Any]:
        """Return the answers."""
        return [getattr(self._redis, name)(*given) for name, given in self._asked]


def _pairs(flat: Sequence[Any]) -> Mapping[bytes, bytes]:
    return {_bytes(name): _bytes(value) for name, value in zip(flat[::2], flat[1::2], strict=True)}
