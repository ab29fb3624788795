"""A topic read from anywhere to anywhere: no group, no commit, nothing but reading.

It reads with aiokafka, as a worker does: kafka-python takes more than twice as long for a record
(`python -m benchmarks.replay`).
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import suppress
from typing import Any, TypeVar

import aiokafka
from aiokafka.errors import KafkaError, OffsetOutOfRangeError

from agents.link import read_any_name
from infra.kafka import kafka_options, told
from infra.topics import check_partitions
from pipeline.errors import BrokerError, OffsetGap
from pipeline.settings import Settings
from pipeline.stream.fold import LogRecord
from pipeline.stream.replay import Extent, Span

Answer = TypeVar("Answer")
#: How long Kafka may be silent while there is something to read.
PATIENCE_SECONDS = 20.0
#: Records of one partition that are held, about: one that has more waits for the others.
HELD = 8000
#: Records that are taken at once, at most.
FETCHED = 4000


class Interrupted(Exception):
    """Somebody asked the reader to stop."""


class History:
    """The log of one topic.

    topic, partitions: Its name, and how many partitions it must have.
    stopped: Asked now and then; reading ends with `Interrupted` when it says so.
    """

    def __init__(
        self,
        settings: Settings,
        topic: str,
        partitions: int,
        stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        self._settings, self.topic, self._stopped = settings, topic, stopped
        self._topic_partitions = {n: aiokafka.TopicPartition(topic, n) for n in range(partitions)}
        self._stops: dict[int, int] = {}
        self._held: dict[int, list[LogRecord]] = {}
        #: Partitions that have more records than the others can follow.
        self._ahead: set[int] = set()
        self._loop = asyncio.new_event_loop()
        self._consumer: Any = None

    def __enter__(self) -> History:
        """Connect.

        Raises BrokerError if Kafka does not answer; ConfigError as `infra.topics.check_partitions`.
        """
        try:
            check_partitions(self._settings, self.topic, len(self._topic_partitions))
            self._run(self._start())
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        if self._consumer is not None:
            with suppress(KafkaError):
                self._loop.run_until_complete(self._consumer.stop())
            self._consumer = None
        self._loop.close()

    def extents(self) -> dict[int, Extent]:
        """Return what each partition holds now; BrokerError if Kafka fails."""
        topic_partitions = list(self._topic_partitions.values())
        first = self._run(self._consumer.beginning_offsets(topic_partitions))
        after = self._run(self._consumer.end_offsets(topic_partitions))
        oldest = self._run(self._consumer.offsets_for_times(dict.fromkeys(topic_partitions, 0)))
        return {
            n: Extent(first[p], after[p], None if oldest[p] is None else oldest[p].timestamp)
            for n, p in self._topic_partitions.items()
        }

    def at(self, milliseconds: int) -> dict[int, int]:
        """Return the first offset of each partition at or after a time; its end if none is.

        BrokerError if Kafka fails.
        """
        topic_partitions = list(self._topic_partitions.values())
        after = self._run(self._consumer.end_offsets(topic_partitions))
        found = self._run(
            self._consumer.offsets_for_times(dict.fromkeys(topic_partitions, milliseconds))
        )
        return {
            n: after[p] if found[p] is None else found[p].offset
            for n, p in self._topic_partitions.items()
        }

    def seek(self, spans: Mapping[int, Span]) -> None:
        """Begin to read some partitions, each from the start of its span to its end."""
        self._stops = {n: span.stop for n, span in spans.items()}
        self._held = {n: [] for n in spans}
        self._ahead.clear()
        self._run(self._assign(spans))

    def records(self, number: int) -> Iterator[LogRecord]:
        """Yield the records of one partition up to the end of its span.

        BrokerError, OffsetGap, Interrupted as `more`.
        """
        return itertools.chain.from_iterable(iter(lambda: self.more(number), []))

    def more(self, number: int) -> list[LogRecord]:
        """Return the next records of a partition, none at the end of its span.

        What comes of others meanwhile is held for them. Raises BrokerError if Kafka fails or is
        silent; OffsetGap if retention takes away what is still to be read; Interrupted if that was
        asked for.
        """
        deadline = time.monotonic() + PATIENCE_SECONDS
        topic_partition, stop = self._topic_partitions[number], self._stops[number]
        while not self._held[number]:
            if self._stopped():
                raise Interrupted
            # the position and not the records: the end of a transaction is never handed out
            if self._run(self._consumer.position(topic_partition)) >= stop:
                return []
            if self._run(self._fetch()):
                deadline = time.monotonic() + PATIENCE_SECONDS
            elif time.monotonic() > deadline:
                raise BrokerError(
                    f"{self.topic}[{number}]: Kafka has sent nothing for {PATIENCE_SECONDS:.0f} s"
                )
        taken, self._held[number] = self._held[number], []
        return taken

    async def _assign(self, spans: Mapping[int, Span]) -> None:
        self._consumer.assign([self._topic_partitions[n] for n in spans])
        for number, span in spans.items():
            self._consumer.seek(self._topic_partitions[number], span.start)
            if span.start >= span.stop:
                self._consumer.pause(self._topic_partitions[number])

    async def _fetch(self) -> bool:
        """Take what has come, and let partitions wait that are ahead or done."""
        for number in [n for n in self._ahead if not self._held[n]]:
            self._ahead.remove(number)
            self._consumer.resume(self._topic_partitions[number])
        batches = await self._consumer.getmany(timeout_ms=500)
        for topic_partition, records in batches.items():
            number = topic_partition.partition
            stop, held = self._stops[number], self._held[number]
            done = records[-1].offset + 1 >= stop
            held += [r for r in records if r.offset < stop] if done else records
            if done or len(held) >= HELD:
                self._consumer.pause(topic_partition)
                if not done:
                    self._ahead.add(number)
        return bool(batches)

    async def _start(self) -> None:
        read_any_name()
        self._consumer = aiokafka.AIOKafkaConsumer(
            **kafka_options(self._settings),
            group_id=None,
            enable_auto_commit=False,
            auto_offset_reset="none",
            max_poll_records=FETCHED,
            max_partition_fetch_bytes=4 * 2**20,
        )
        async with asyncio.timeout(PATIENCE_SECONDS):
            await self._consumer.start()

    def _run(self, waiting: Coroutine[Any, Any, Answer]) -> Answer:
        try:
            return self._loop.run_until_complete(waiting)
        except OffsetOutOfRangeError as error:
            raise OffsetGap(
                f"{self.topic}: retention has removed the offset that was being read; run the "
                "command again, with --accept-loss if what is left is enough"
            ) from error
        except (KafkaError, TimeoutError) as error:
            otherwise = (
                f"{self.topic} cannot be read from {self._settings.kafka} ({type(error).__name__})"
            )
            what = f"topic {self.topic}"
            raise told(self._settings, error, otherwise, what=what, operation="Read") from error
