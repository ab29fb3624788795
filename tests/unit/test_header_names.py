"""Names of headers that are no text are read, whichever library reads them."""

from __future__ import annotations

from typing import Any

import aiokafka
from aiokafka.consumer.fetcher import PartitionRecords
from kafka import TopicPartition
from kafka.record import memory_records
from kafka.record.default_records import DefaultRecordBatchBuilder
from kafka.record.util import calc_crc32c

from agents import link as compiled
from infra.kafka import CompiledRecords


class Name(str):
    """What a producer writes as other bytes than those of its text."""

    __slots__ = ()

    def encode(self, *_: Any) -> bytes:
        return b"\xff\xc3\xa4\x1b"


def batch(first: int, *bad: int, codec: int = 0) -> bytes:
    builder = DefaultRecordBatchBuilder(2, codec, False, -1, 0, 0, 1 << 20)
    for at in range(4):
        name = Name("....") if at in bad else "ce_id"
        builder.append(at, 1000 + at, b"k%d" % at, b"v" * at, [(name, b"x"), ("n", None)])
    raw = builder.build()
    raw[:8] = first.to_bytes(8, "big")
    raw[17:21] = calc_crc32c(bytes(raw[21:])).to_bytes(4, "big")
    return bytes(raw)


RAW = batch(0) + batch(4, 1, 3) + batch(8, 0, codec=1) + batch(12)
BAD = {5, 7, 8}


def shown(records: Any) -> list[tuple[Any, ...]]:
    return [(r.offset, r.timestamp, r.key, r.value, [*r.headers]) for r in records]


WANTED = [
    (
        at, 1000 + at % 4, b"k%d" % (at % 4), b"v" * (at % 4),
        [("\\xffä\x1b" if at in BAD else "ce_id", b"x"), ("n", None)],
    )
    for at in range(16)
]  # fmt: skip


def test_kafka_python_reads_all_records() -> None:
    records = memory_records.MemoryRecords(RAW)
    found = CompiledRecords(0, TopicPartition("t", 0), records).take(100)
    assert shown(found) == WANTED


def test_aiokafka_reads_all_records() -> None:
    compiled.read_any_name()
    place = aiokafka.TopicPartition("t", 0)
    records = PartitionRecords(place, compiled.AnyNames(RAW), [], 0, None, None, True, 0)
    assert shown(records) == WANTED
    assert records.next_fetch_offset == 16
