"""Faust fed whole fetch batches, each partition resuming from its own watermark.

Faust hands an agent one event per record, which costs ten times what a fold does, and it resumes
from Kafka's committed offsets, which can pass a record that was never folded. Here one fetched
batch of one partition is one event with one ack, and after every assignment the position comes
from the stored state; the committed offset is only a hint for lag monitors.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Collection, Mapping
from typing import Any, Protocol

import faust
from aiokafka.errors import GroupAuthorizationFailedError, IllegalStateError, KafkaError
from faust.events import Event
from faust.tables.manager import TableManager
from faust.transport.drivers import aiokafka as driver
from faust.types.tuples import ConsumerMessage
from mode import Service
from yarl import URL

from agents.header_names import read_any_name

#: How often the offsets of an assignment are looked up before it is given up, and how long after.
ATTEMPTS, PAUSE_SECONDS = 20, 0.1
#: Seconds between two looks at whether the worker may be in its group.
RIGHTS_SECONDS = 1.0


#: Batches that may wait to be folded, and seconds between two looks at that. Faust would read on
#: for thousands: a worker that folds slower than Kafka sends would hold the log in its memory.
MOST_WAITING, WAITING_SECONDS = 4, 0.02


class Positions(Protocol):
    """Who knows where each partition continues."""

    @property
    def topic(self) -> str:
        """The topic whose records come in batches."""

    def assign(self, bounds: Mapping[int, tuple[int, int]]) -> Mapping[int, int]:
        """Take over partitions, given first and next offset of each log; return where to read on.

        Of those that it does not return nothing is handed out.
        It is the last word on a worker's partitions: those that are not named are given up.
        """

    def failed(self, error: Exception) -> None:
        """Stop the worker, whom Kafka does not let read; it does not return."""


class PlainRecords(OrderedDict[Any, Any]):
    """What a fetcher has of each partition, handing out records as they were parsed.

    aiokafka copies each of them into an object of twelve fields, which takes longer than all that
    is done with a release afterwards.
    """

    def __setitem__(self, tp: Any, found: Any) -> None:
        """Keep what a partition has: its records, or an error."""
        records = getattr(found, "_partition_records", None)
        if records is not None:
            records._consumer_record = _as_it_is
        super().__setitem__(tp, found)


def _as_it_is(_: Any, record: Any) -> Any:
    return record


class BatchThread(driver.AIOKafkaConsumerThread):  # type: ignore[misc]
    """The thread in which a consumer speaks to Kafka."""

    async def _commit(self, offsets: Mapping[Any, int]) -> bool:
        """Commit, and return whether that was done.

        It is asked for in another thread: where all partitions have been taken away since, nothing
        is left to commit, which aiokafka would call a fault, and Faust a crash of the worker.
        """
        mine = self.assignment()
        return any(tp in mine for tp in offsets) and await super()._commit(offsets)


class BatchConsumer(driver.Consumer):  # type: ignore[misc]
    """A consumer whose messages are fetch batches."""

    _strange: Collection[Any] = ()

    def _new_consumer_thread(self) -> BatchThread:
        return BatchThread(self, loop=self.loop, beacon=self.beacon)

    async def perform_seek(self) -> None:
        """Seek every assigned partition to its watermark; called after each assignment."""
        positions: Positions = self.transport.positions
        for attempt in range(ATTEMPTS):
            try:
                await self._seek_all(positions)
            except IllegalStateError as error:
                # a partition was taken away meanwhile, as when another worker joins: what is
                # assigned now is known already
                if attempt + 1 == ATTEMPTS:
                    positions.failed(error)
                await asyncio.sleep(PAUSE_SECONDS)
            except (KafkaError, TimeoutError) as error:
                positions.failed(error)
            else:
                return

    async def _seek_all(self, positions: Positions) -> None:
        fetcher = self._thread._consumer._fetcher
        if not isinstance(fetcher._records, PlainRecords):
            # what came before is not taken over: seeking fetches it again
            fetcher._records = PlainRecords()
        mine = [tp for tp in self.assignment() if tp.topic == positions.topic]
        first = await self.earliest_offsets(*mine) if mine else {}
        after = await self.highwaters(*mine) if mine else {}
        found = positions.assign({tp.partition: (first[tp], after[tp]) for tp in mine})
        self._strange = {tp for tp in mine if tp.partition not in found}
        for tp in mine:
            offset = found.get(tp.partition, after[tp])
            await self.seek_wait({tp: offset})
            self._read_offset[tp] = offset - 1 if offset else None
            self._committed_offset[tp] = offset or None

    @Service.task  # type: ignore[untyped-decorator]
    async def _watch_rights(self) -> None:
        """End the worker if it may not be in its group: it would wait for an assignment for ever.

        Faust takes records past the coordinator, which keeps this fault for a reader to raise; and
        tasks of the application do not begin before the first assignment.
        """
        while not self.should_stop:
            await self.sleep(RIGHTS_SECONDS)
            coordinator = getattr(self._thread._consumer, "_coordinator", None)
            fault = getattr(coordinator, "_pending_exception", None)
            if isinstance(fault, GroupAuthorizationFailedError):
                self.transport.positions.failed(fault)

    async def getmany(self, timeout: float) -> AsyncIterator[tuple[Any, Any]]:
        """Yield one message for each partition that has records: the batch as its value."""
        positions: Positions = self.transport.positions
        if self.flow_active and self._waiting() >= MOST_WAITING:
            await self.sleep(WAITING_SECONDS)
            return
        try:
            records, _ = await self._wait_next_records(timeout)
        except IllegalStateError:
            # a partition that was read has been taken away
            return
        except KafkaError as error:
            positions.failed(error)
            raise
        if records is None or self.should_stop:
            return
        if not self.flow_active:
            await self.perform_seek()
            return
        generation = self.app.consumer_generation_id
        for tp, batch in records.items():
            if not self.flow_active or generation != self.app.consumer_generation_id:
                # a rebalance came in between: whoever owns the partition now reads it again
                return
            if batch and tp not in self._strange:
                last = batch[-1]
                yield tp, ConsumerMessage(
                    tp.topic, tp.partition, last.offset, last.timestamp / 1000,
                    last.timestamp_type, [], None, batch, None, tp=tp, generation_id=generation,
                )  # fmt: skip

    def _waiting(self) -> int:
        """Return how many batches have been read and wait for the agent."""
        return sum(topic.queue.qsize() for topic in self.app.topics)


class BatchTransport(driver.Transport):  # type: ignore[misc]
    """A transport with batch consumers."""

    Consumer = BatchConsumer

    def __init__(self, url: list[URL], app: faust.App, positions: Positions) -> None:
        super().__init__(url, app)
        read_any_name()
        self.positions = positions


class NoTables(TableManager):  # type: ignore[misc]
    """Faust waits a second for tables to be declared; here are none, and restarts must be quick."""

    async def on_start(self) -> None:
        """Go on at once."""
        if not self.should_stop:
            await self._update_channels()
            await self.recovery.start()


class BatchSchema(faust.Schema):  # type: ignore[misc]
    """Hands a batch to the agent as it is: decoding is the reducer's business."""

    def compile(self, app: faust.App, **_: Any) -> Any:
        """Return the function that makes an event of a message."""

        async def decode(message: Any, *, propagate: bool = False) -> Event:
            return Event(app, message.key, message.value, {}, message)

        return decode
