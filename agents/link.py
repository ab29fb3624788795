"""The worker's own ends at Kafka: a producer with a watch, and the position in the releases log.

As `infra.kafka`, for aiokafka, whose compiled reader takes a batch apart.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import aiokafka
from aiokafka.consumer import fetcher
from aiokafka.errors import (
    CorruptRecordException,
    IllegalStateError,
    KafkaConnectionError,
    KafkaError,
)
from aiokafka.record.memory_records import MemoryRecords, _MemoryRecordsPy

from infra.kafka import kafka_options, lenient, told
from pipeline.errors import BrokerError, VeilstreamError
from pipeline.settings import Settings


class AnyNames:
    """What was fetched of a partition: batches that can be read whatever names headers have."""

    def __init__(self, fetched: Any) -> None:
        self._fetched, self._begun = bytes(fetched), 0
        self._compiled = MemoryRecords(self._fetched)
        self.has_next = self._compiled.has_next
        self.size_in_bytes = self._compiled.size_in_bytes

    def next_batch(self) -> Any:
        """Return the next batch; None behind the last one."""
        begin = self._begun
        length = self._fetched[begin + 8 : begin + 12]
        self._begun += _MemoryRecordsPy.LOG_OVERHEAD + int.from_bytes(length, signed=True)
        batch = self._compiled.next_batch()
        return batch and _Batch(batch, memoryview(self._fetched)[begin : self._begun])


class _Batch:
    """A compiled batch, which is read in Python if it has a name that is no text."""

    def __init__(self, compiled: Any, raw: memoryview) -> None:
        self._compiled, self._raw = compiled, raw

    def __getattr__(self, name: str) -> Any:
        return getattr(self._compiled, name)

    def __next__(self) -> Any:
        return next(self._compiled)

    def __iter__(self) -> Iterator[Any]:
        try:
            return iter(list(self._compiled))
        except (UnicodeDecodeError, CorruptRecordException):
            return lenient(self._raw)


def read_any_name() -> None:
    """Have all consumers of aiokafka read any name of a header."""
    fetcher.MemoryRecords = AnyNames


#: How long Kafka may be silent before the worker stops.
PATIENCE_SECONDS = 20.0


class ReleasesLog:
    """Where the consumer stands in the releases topic.

    consumer: Gives Faust's consumer, which does not exist before the application starts.
    """

    def __init__(self, consumer: Callable[[], Any], topic: str) -> None:
        self._consumer, self._topic = consumer, topic

    async def reread(self, partition: int, offset: int) -> None:
        """Go back to an offset; nothing happens if the partition has been taken away."""
        if (topic_partition := self._topic_partition(partition)) is not None:
            # it may be taken away just now; whoever gets it begins at its watermark
            with suppress(IllegalStateError):
                await self._consumer().seek(topic_partition, offset)

    async def bounds(self, partition: int) -> tuple[int, int]:
        """Return the first and the next offset of a partition.

        BrokerError if the partition has been taken away.
        """
        topic_partition = self._topic_partition(partition)
        if topic_partition is None:
            raise BrokerError(
                f"Kafka has given partition {partition} to another worker while this one used "
                "it; start this worker again"
            )
        first = await self._consumer().earliest_offsets(topic_partition)
        after = await self._consumer().highwaters(topic_partition)
        return first[topic_partition], after[topic_partition]

    async def left(self, folded: Mapping[int, int]) -> dict[int, int] | None:
        """Return how many records of each partition are still to be folded; None if nobody says.

        The end of a transaction takes an offset that nobody is handed: where the consumer is at
        the end, and all that it handed over is folded, nothing is left.

        folded: Watermarks; partitions that have been taken away are left out of the answer.
        """
        found = dict[int, int]()
        topic_partitions = {
            n: topic_partition
            for n in folded
            if (topic_partition := self._topic_partition(n)) is not None
        }
        if not topic_partitions:
            return found
        consumer = self._consumer()
        # where it fails, it is asked again soon
        with suppress(IllegalStateError, KafkaError, TimeoutError):
            ends = await consumer.highwaters(*topic_partitions.values())
            for number, topic_partition in topic_partitions.items():
                found[number] = max(0, ends[topic_partition] - folded[number])
                handed = consumer._read_offset[topic_partition]
                if (
                    found[number]
                    and (handed is None or handed < folded[number])
                    and await consumer.position(topic_partition) >= ends[topic_partition]
                ):
                    found[number] = 0
            return found
        return None

    def _topic_partition(self, partition: int) -> Any:
        for topic_partition in self._consumer().assignment():
            if (topic_partition.topic, topic_partition.partition) == (self._topic, partition):
                return topic_partition
        return None


async def _started(consumer: Any) -> None:
    """Start a consumer; a broker that starts again is waited for, until cancelled."""
    while True:
        try:
            await consumer.start()
        except KafkaConnectionError:
            await asyncio.sleep(1.0)
        else:
            return


class Link:
    """The worker's own producer, idempotent, and its watch over Kafka."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        #: None until it is ready.
        self._producer: Any = None
        self._ready = asyncio.Event()

    async def start(self) -> None:
        """Connect; BrokerError if Kafka does not answer."""
        self._producer = aiokafka.AIOKafkaProducer(
            **kafka_options(self._settings),
            enable_idempotence=True,
            max_request_size=32 * 2**20,
            request_timeout_ms=int(PATIENCE_SECONDS * 1000),
            linger_ms=0,
        )
        try:
            # an idempotent producer asks for its id again and again, without an end of its own
            async with asyncio.timeout(PATIENCE_SECONDS):
                await self._producer.start()
        except (KafkaError, TimeoutError) as error:
            raise await self._told(error, "does not answer", "the cluster", "Write") from error
        self._ready.set()

    async def stop(self) -> None:
        """Disconnect."""
        if self._producer is not None:
            with suppress(KafkaError):
                await self._producer.stop()

    async def send(
        self, topic: str, key: bytes | None, value: bytes | None,
        headers: Sequence[tuple[str, bytes | None]],
    ) -> None:  # fmt: skip
        """Send one message to a topic of one partition, and wait until Kafka has it.

        BrokerError if Kafka does not take it in time.
        """
        await self._ready.wait()
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                await self._producer.send_and_wait(
                    topic, value=value, key=key, headers=list(headers), partition=0
                )
        except (KafkaError, TimeoutError) as error:
            fault = f"does not take a message for {topic}"
            raise await self._told(error, fault, f"topic {topic}", "Write") from error

    async def read(self, topic: str, last: int | None = None) -> list[tuple[int, bytes | None]]:
        """Return offset and value of all messages of a small topic with one partition.

        last: Of its newest so many offsets alone.

        BrokerError if Kafka does not answer in time.
        """
        topic_partition = aiokafka.TopicPartition(topic, 0)
        values: list[tuple[int, bytes | None]] = []
        async with self._reader(topic, f"does not give what is in {topic}", "Read") as consumer:
            consumer.assign([topic_partition])
            end = (await consumer.end_offsets([topic_partition]))[topic_partition]
            if last is not None:
                first = await consumer.beginning_offsets([topic_partition])
                consumer.seek(topic_partition, max(first[topic_partition], end - last))
            while await consumer.position(topic_partition) < end:
                for records in (await consumer.getmany(timeout_ms=200)).values():
                    values += [(record.offset, record.value) for record in records]
        return values

    async def extent(self, topic: str, partitions: int) -> tuple[int, int]:
        """Return the sums of the first and of the next offsets of a topic's partitions.

        BrokerError as `bounds`.
        """
        first, after = zip(*await self.bounds(topic, partitions), strict=True)
        return sum(first), sum(after)

    async def bounds(self, topic: str, partitions: int) -> list[tuple[int, int]]:
        """Return first and next offset of each partition of a topic.

        BrokerError if Kafka does not answer in time, or has no such topic.
        """
        return await self._bounds([aiokafka.TopicPartition(topic, n) for n in range(partitions)])

    async def extents(self, topics: Sequence[str]) -> list[tuple[int, int]]:
        """Return first and next offset of each of some topics with one partition.

        BrokerError if Kafka does not answer in time.
        """
        return await self._bounds([aiokafka.TopicPartition(topic, 0) for topic in topics])

    async def _bounds(self, places: list[Any]) -> list[tuple[int, int]]:
        topic = places[0].topic
        async with self._reader(topic, f"does not say where {topic} ends", "Describe") as consumer:
            first = await consumer.beginning_offsets(places)
            after = await consumer.end_offsets(places)
            return [(first[place], after[place]) for place in places]

    async def watch(self) -> None:
        """Ask Kafka for its metadata now and then; a consumer alone would wait for ever.

        BrokerError if it has been silent for `PATIENCE_SECONDS`.
        """
        await self._ready.wait()
        silent = 0.0
        while True:
            await asyncio.sleep(PATIENCE_SECONDS / 5)
            try:
                async with asyncio.timeout(PATIENCE_SECONDS):
                    answered = await self._producer.client.force_metadata_update()
            except TimeoutError:
                answered, silent = False, PATIENCE_SECONDS
            silent = 0.0 if answered else silent + PATIENCE_SECONDS / 5
            if silent >= PATIENCE_SECONDS:
                fault = f"has not answered for {silent:.0f} s"
                raise await self._told(None, fault, "the cluster", "Describe")

    @asynccontextmanager
    async def _reader(self, topic: str, fault: str, operation: str) -> AsyncIterator[Any]:
        """Connect a consumer without a group, for one question that is answered in time."""
        read_any_name()
        consumer = aiokafka.AIOKafkaConsumer(
            **kafka_options(self._settings), enable_auto_commit=False, auto_offset_reset="earliest"
        )
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                await _started(consumer)
                yield consumer
        except (KafkaError, TimeoutError) as error:
            raise await self._told(error, fault, f"topic {topic}", operation) from error
        finally:
            with suppress(KafkaError):
                await consumer.stop()

    async def _told(
        self, error: BaseException | None, fault: str, what: str, operation: str
    ) -> VeilstreamError:
        kind = "" if error is None else f" ({type(error).__name__})"
        otherwise = f"Kafka at {self._settings.kafka} {fault}{kind}; start this worker again"
        if ".releases." in what:
            otherwise += ", or, if that topic is gone, see docs/guides/lost-log.md"
        return await asyncio.to_thread(
            told, self._settings, error, otherwise, what=what, operation=operation
        )
