"""The two Kafka libraries put a key on the same partition, so a client never moves."""

from __future__ import annotations

import asyncio
import uuid

import aiokafka
from kafka.admin import KafkaAdminClient

from tests.stage import read_topic, send

KEYS = [b"site-0", b"site-1", "Zürich".encode(), b"x", b"\x00\xff", b"a" * 200, b"1", b"north"]


def test_both_libraries_put_a_key_on_the_same_partition(kafka: str) -> None:
    topic = f"agree-{uuid.uuid4().hex[:12]}"
    with KafkaAdminClient(bootstrap_servers=kafka) as admin:
        admin.create_topics({topic: {"num_partitions": 7, "replication_factor": 1}})
        try:
            send(kafka, topic, [{"key": key, "value": b"kafka-python"} for key in KEYS])
            asyncio.run(_send(kafka, topic))
            places: dict[bytes, set[int]] = {}
            for record in read_topic(kafka, topic):
                places.setdefault(record.key, set()).add(record.partition)
        finally:
            admin.delete_topics([topic])
    assert sorted(places) == sorted(KEYS)
    assert {len(found) for found in places.values()} == {1}
    assert len(set.union(*places.values())) > 2


async def _send(kafka: str, topic: str) -> None:
    producer = aiokafka.AIOKafkaProducer(bootstrap_servers=kafka)
    await producer.start()
    try:
        for key in KEYS:
            await producer.send_and_wait(topic, value=b"aiokafka", key=key)
    finally:
        await producer.stop()
