"""What the compiled reader makes of a fetched answer is what kafka-python makes of it."""

from __future__ import annotations

from typing import Any

import aiokafka
import pytest
from aiokafka.consumer.fetcher import PartitionRecords
from kafka import TopicPartition
from kafka.consumer.fetcher import Fetcher
from kafka.errors import CorruptRecordError
from kafka.protocol.consumer import IsolationLevel
from kafka.record import MemoryRecords, memory_records
from kafka.record.default_records import DefaultRecordBatchBuilder
from kafka.record.legacy_records import LegacyRecordBatchBuilder
from kafka.record.util import calc_crc32c

from agents import link as compiled
from infra.kafka import CompiledRecords

PARTITION = TopicPartition("t", 3)
GZIP = 1
VALUES: list[bytes | None] = [b'{"a": 1}', None, b"", b"x" * 5000, "ü".encode()]
ABORT, COMMIT = b"\0\0\0\0", b"\0\0\0\1"


class Aborted:
    """A transaction that was aborted."""

    producer_id, first_offset = 7, 15


def batch(
    first: int, values: list[bytes | None], *, codec: int = 0, producer: int = -1,
    control: bytes = b"", time: int = 1000,
) -> bytes:  # fmt: skip
    builder = DefaultRecordBatchBuilder(2, codec, producer > 0, producer, 0, 0, 1 << 20)
    for at, value in enumerate(values):
        builder.append(at, time - at, control or (b"key" if at % 2 else None), value,
                       [("h", b"v"), ("n", None)] if at == 1 else [])  # fmt: skip
    raw = builder.build()
    raw[:8] = first.to_bytes(8, "big")
    raw[22] |= 0x30 if control else 0
    return signed(raw)


def signed(raw: bytearray) -> bytes:
    """Return a batch with the checksum of what it holds."""
    raw[17:21] = calc_crc32c(bytes(raw[21:])).to_bytes(4, "big")
    return bytes(raw)


def legacy(first: int, values: list[bytes | None]) -> bytes:
    builder = LegacyRecordBatchBuilder(1, 0, 1 << 20)
    for at, value in enumerate(values):
        builder.append(first + at, 500 + at, None, value)
    return bytes(builder.build())


def read(
    kind: Any, raw: bytes, take: list[int], start: int, *, committed: bool
) -> tuple[list[tuple[Any, ...]], list[int], list[str]]:
    """Return records, the offset after each look, and the errors, taken in parts."""
    level = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED
    found = kind(start, PARTITION, MemoryRecords(raw), isolation_level=level,
                 aborted_transactions=[Aborted()])  # fmt: skip
    records: list[tuple[Any, ...]] = []
    offsets, faults = [], []
    for count in take:
        if not found:
            break
        try:
            records += [(r.offset, r.timestamp, r.value) for r in found.take(count)]
        except CorruptRecordError:
            faults.append("corrupt")
            break
        offsets.append(found.next_fetch_offset)
    return records, offsets, faults


LOG = {
    "plain": batch(10, VALUES),
    "compressed": batch(10, VALUES, codec=GZIP),
    "several, with gaps": batch(10, VALUES) + batch(40, VALUES, codec=GZIP) + batch(60, [b"z"]),
    "transactions": batch(10, VALUES) + batch(15, VALUES, producer=7)
    + batch(20, [b"c"], producer=9) + batch(21, [b"\0\0\0\0\0\0"], producer=7, control=ABORT)
    + batch(22, [b"\0\0\0\0\0\0"], producer=9, control=COMMIT) + batch(23, [b"d"], producer=7),
    "old form": legacy(10, VALUES) + batch(15, VALUES),
    "cut off": (batch(10, VALUES) + batch(15, VALUES))[:-7],
    "nothing": b"",
    "checksum": batch(10, VALUES) + batch(15, VALUES)[:-1] + b"!",
}  # fmt: skip


@pytest.mark.parametrize("committed", [True, False])
@pytest.mark.parametrize("start", [10, 12, 16])
@pytest.mark.parametrize("name", list(LOG))
def test_the_same_is_read(name: str, start: int, committed: bool) -> None:
    for take in ([1000, 1000], [1] * 40, [3, 4, 1000, 5]):
        ours, theirs = (
            read(kind, LOG[name], take, start, committed=committed)
            for kind in (CompiledRecords, Fetcher.PartitionRecords)
        )
        assert ours == theirs


def test_of_an_aborted_transaction_nothing_is_read() -> None:
    found = read(CompiledRecords, LOG["transactions"], [1000], 10, committed=True)[0]
    assert [offset for offset, _, _ in found] == [10, 11, 12, 13, 14, 20, 23]
    assert read(CompiledRecords, LOG["checksum"], [99, 99], 10, committed=True)[2] == ["corrupt"]


def test_a_batch_that_cannot_be_read_is_kafka_pythons_own_error() -> None:
    raw = bytearray(batch(10, [b"a", b"b"]))
    raw[61] = 0x7F
    assert read(CompiledRecords, signed(raw), [9, 9], 10, committed=True)[2] == ["corrupt"]


class Name(str):
    """What a producer writes as other bytes than those of its text."""

    __slots__ = ()

    def encode(self, *_: Any) -> bytes:
        return b"\xff\xc3\xa4\x1b"


def batch_at(first: int, *bad: int, codec: int = 0) -> bytes:
    builder = DefaultRecordBatchBuilder(2, codec, False, -1, 0, 0, 1 << 20)
    for at in range(4):
        name = Name("....") if at in bad else "ce_id"
        builder.append(at, 1000 + at, b"k%d" % at, b"v" * at, [(name, b"x"), ("n", None)])
    raw = builder.build()
    raw[:8] = first.to_bytes(8, "big")
    raw[17:21] = calc_crc32c(bytes(raw[21:])).to_bytes(4, "big")
    return bytes(raw)


RAW = batch_at(0) + batch_at(4, 1, 3) + batch_at(8, 0, codec=1) + batch_at(12)
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
