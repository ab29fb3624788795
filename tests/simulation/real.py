"""The seams of the simulation on a real Kafka and Redis: the stand-ins must end where they do."""

from __future__ import annotations

import random
from contextlib import suppress
from typing import Any

from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.errors import KafkaError

from infra.kafka import log_reader
from infra.topics import ensure_topics
from pipeline.messages.topics import Topics
from pipeline.settings import Settings
from state.connection import redis_client
from tests.simulation.standins import UNSAVED


class RealServers:
    """What `StandIns` has, on real servers.

    Parameters
    ----------
    settings, topics
        Where they are, and topics that nobody else uses; they are made.
    """

    def __init__(self, settings: Settings, topics: Topics) -> None:
        self.settings = settings
        ensure_topics(settings, topics.all())
        self.redis = redis_client(settings)
        self._pattern = f"veil:{{{topics.releases.name.split('.')[1]}}}:*"
        self._producer = KafkaProducer(bootstrap_servers=settings.kafka, acks="all", linger_ms=0)
        self._consumer = KafkaConsumer(bootstrap_servers=settings.kafka, group_id=None)
        self._places = [
            TopicPartition(topic.name, n) for topic in topics.all() for n in range(topic.partitions)
        ]
        self._consumer.assign(self._places)
        self._consumer.seek_to_beginning(*self._places)
        self._logs: dict[TopicPartition, list[Any]] = {place: [] for place in self._places}
        self._before: list[dict[bytes, bytes]] = []

    def append(self, topic: str, key: bytes, value: bytes | None, headers: Any = ()) -> None:
        """Send a record and wait for its acknowledgement."""
        self._producer.send(topic, key=key, value=value, headers=list(headers or ())).get(60)
        self._note()

    def records(self, topic: str, partition: int) -> list[Any]:
        """Return the log of a partition, as far as it reaches now."""
        place = TopicPartition(topic, partition)
        end = self._consumer.end_offsets([place])[place]
        while self._consumer.position(place) < end:
            for found, records in self._consumer.poll(timeout_ms=100).items():
                self._logs[found] += records
        return self._logs[place]

    def producer(self) -> RealProducer:
        """Return a new producer."""
        return RealProducer(self.settings)

    def reader(self) -> KafkaConsumer:
        """Return a new consumer."""
        return log_reader(self.settings, wait_ms=20)

    def lose(self, chance: random.Random) -> None:
        """Put the study's keys back to what they were some writes ago."""
        if not self._before:
            return
        old = self._before[chance.randrange(len(self._before))]
        self._before = []
        if keys := list(self.redis.scan_iter(self._pattern)):
            self.redis.delete(*keys)
        for key, value in old.items():
            self.redis.restore(key, 0, value)

    def close(self) -> None:
        """Close the connections, and remove the study's keys."""
        if keys := list(self.redis.scan_iter(self._pattern)):
            self.redis.delete(*keys)
        self.redis.close()
        self._consumer.close()
        self._producer.close()

    def _note(self) -> None:
        keys = list(self.redis.scan_iter(self._pattern))
        held = {key: self.redis.dump(key) for key in keys}
        self._before = [*self._before[1 - UNSAVED :], held]  # type: ignore[list-item]


class RealProducer:
    """A producer that can die."""

    def __init__(self, settings: Settings) -> None:
        self._producer = KafkaProducer(
            bootstrap_servers=settings.kafka, acks="all", enable_idempotence=True, linger_ms=0
        )
        self.send, self.flush, self.close = (
            self._producer.send, self._producer.flush, self._producer.close,
        )  # fmt: skip

    def land(self, count: int) -> None:
        """Do nothing: the network has its own ways."""

    def settle(self, chance: random.Random) -> None:
        """End at once, or when everything has arrived."""
        if chance.random() < 0.5:
            self._producer.flush(timeout=60)
        self._producer._sender.force_close()
        with suppress(KafkaError):
            self._producer.close(timeout=2)
