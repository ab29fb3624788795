"""The Faust application of one study: whole fetch batches, each partition from its own watermark.

Faust hands an agent one event per record, which costs ten times what a fold does, and it resumes
from Kafka's committed offsets, which can pass a record that was never folded. Here one fetched
batch of one partition is one event with one ack, and after every assignment the position comes
from the stored state; the committed offset is only a hint for lag monitors.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import faust
from aiokafka.errors import GroupAuthorizationFailedError, IllegalStateError, KafkaError
from faust.events import Event
from faust.tables.manager import TableManager
from faust.transport.drivers import aiokafka as driver
from faust.types.tuples import ConsumerMessage
from mode import Service
from yarl import URL

from agents.announcing import Announcing, store_of
from agents.folding import Folding, LogWatch, Progress
from agents.history import Verifying
from agents.link import Link, ReleasesLog, read_any_name
from agents.metrics import Health
from agents.publishing import Publishing
from infra.kafka import told
from infra.preflight import ssl_context
from infra.process import AGAIN, Waiting
from pipeline.messages.authentic import Authenticator
from pipeline.messages.topics import Topics
from pipeline.release.task import Task
from pipeline.settings import Settings

#: How often the offsets of an assignment are looked up before it is given up, and how long after.
ATTEMPTS, PAUSE_SECONDS = 20, 0.1
#: Seconds between two looks at whether the worker may be in its group.
RIGHTS_SECONDS = 1.0
#: Told of an error that the worker cannot survive; it does not return.
Fatal = Callable[[BaseException], None]
#: Batches that may wait to be folded, and seconds between two looks at that. Faust would read on
#: for thousands: a worker that folds slower than Kafka sends would hold the log in its memory.
MOST_WAITING, WAITING_SECONDS = 4, 0.02


class Positions:
    """Where each partition continues; faults stop the worker: Faust would read on from anywhere.

    fatal: As of `create_app`.

    topic: The topic whose records come in batches.
    """

    def __init__(self, folding: Folding, settings: Settings, group: str, fatal: Fatal) -> None:
        self._folding, self._settings, self._group = folding, settings, group
        self.topic, self._fatal = folding.topic, fatal

    def assign(self, bounds: Mapping[int, tuple[int, int]]) -> Mapping[int, int]:
        """Take over partitions, given first and next offset of each log; return where to read on.

        Of those that it does not return nothing is handed out.
        It is the last word on a worker's partitions: those that are not named are given up.
        """
        try:
            return self._folding.assign(bounds)
        except BaseException as error:
            self._fatal(error)
            raise

    def failed(self, error: Exception) -> None:
        """Stop the worker, whom Kafka does not let read; it does not return."""
        otherwise = f"Kafka at {self._settings.kafka} cannot be read ({type(error).__name__})"
        refused = "Group" in type(error).__name__
        kind = f"group {self._group}" if refused else f"topic {self.topic}"
        self._fatal(told(self._settings, error, otherwise, what=kind, operation="Read"))


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

    async def _add_gap(self, tp: Any, offset_from: int, offset_to: int) -> None:
        """Do nothing: offsets before that of a message are of its batch, or of no record."""

    def _new_offset(self, tp: Any) -> int | None:
        """Return the offset behind the last batch that is folded; they are folded in their order.

        Faust waits for each offset before it. Where reading begins at 1 it waits for ever, commits
        nothing, and keeps every offset that comes.
        """
        folded = self._acked[tp]
        behind = max(folded) + 1 if folded else None
        folded.clear()
        self._acked_index[tp].clear()
        return behind

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


async def tell_of_waits(
    folding: Folding, say: Callable[[str], None], faults: Callable[[], list[str]]
) -> None:
    """Say what is waited for, and once that this worker does not get on, until cancelled.

    faults: Returns why it does not get on.
    """
    waits, before, stalled = Waiting(first=AGAIN), folding.releases, False
    while True:
        await asyncio.sleep(1.0)
        if (found := faults()) and not stalled:
            say(f"WARNING: this worker makes no progress: {'; '.join(found)}")
        stalled = bool(found)
        if folding.releases != before:
            before = folding.releases
            waits.hint("")
        elif line := waits.hint("releases" if folding.partitions else "partitions to fold"):
            say(line)


def create_app(
    task: Task, settings: Settings, *, instance: str, folder: Path, health: tuple[str, int] | None,
    fatal: Fatal, trust: Authenticator | None = None, say: Callable[[str], None] = lambda _: None,
    verify: tuple[Path, float] | None = None,
) -> faust.App:  # fmt: skip
    """Build the application; nothing is opened before it starts.

    instance: Name of this worker within the group, stable over restarts: a worker that comes back
        under its name resumes its partitions at once.
    folder: Where Faust may keep its own files.
    health: Host and port of `/healthz` and `/metrics`, or None for neither.
    fatal: Called with any error of the infrastructure, before anything is acknowledged.
    say: Told what the worker waits for.
    verify: The study file, and seconds between two comparisons with a second fold; None: none.
    """
    topics = Topics.of(task.study)
    store = store_of(task, settings)
    link = Link(settings)
    log = ReleasesLog(lambda: app.consumer, topics.releases.name)

    folding = Folding(task, topics, store, link.send, log.reread, log.bounds, trust)
    publishing = Publishing(
        task, topics, store, folding, link.send, link.read, link.extent, trust=trust
    )
    announcing = Announcing(task, settings, store, link.extents, lambda: publishing.owner, say)
    watched = LogWatch(topics, store, link.bounds)
    progress = Progress(folding, log.left)
    verifying = (
        Verifying(*verify, lambda: publishing.owner, say, folding.meters) if verify else None
    )
    pages = Health(folding, publishing, progress, verifying)
    app = faust.App(
        group := f"veilstream-{task.study.name}",
        broker=[URL(f"kafka://{server}") for server in settings.kafka.split(",")],
        broker_credentials=_credentials(settings),
        TableManager=NoTables,
        store="memory://",
        datadir=str(folder),
        topic_disable_leader=True,
        topic_allow_declare=False,
        web_enabled=False,
        consumer_auto_offset_reset="earliest",
        consumer_group_instance_id=instance,
        consumer_max_fetch_size=2 * 2**20,
        broker_max_poll_records=4000,
        broker_session_timeout=10.0,
        broker_heartbeat_interval=2.0,
        broker_commit_interval=1.0,
        stream_wait_empty=False,
        worker_redirect_stdouts=False,
    )
    app.transport = BatchTransport(app.conf.broker, app, Positions(folding, settings, group, fatal))

    @app.agent(app.topic(topics.releases.name, schema=BatchSchema()), concurrency=1)  # type: ignore[untyped-decorator]
    async def fold(stream: Any) -> None:
        async for event in stream.noack().events():
            message = event.message
            if message.generation_id != app.consumer_generation_id:
                continue
            try:
                folded = await folding.handle(message.partition, event.value)
            except asyncio.CancelledError:
                raise
            except BaseException as error:
                fatal(error)
            if folded:
                event.ack()

    @app.on_partitions_revoked.connect  # type: ignore[untyped-decorator]
    async def release(_app: Any, revoked: Any, **_: Any) -> None:
        folding.release(tp.partition for tp in revoked if tp.topic == topics.releases.name)

    @app.task  # type: ignore[untyped-decorator]
    async def publish() -> None:
        try:
            if health:
                await pages.start(*health)
            await link.start()
            await publishing.run()
        except BaseException as error:
            fatal(error)

    @app.task  # type: ignore[untyped-decorator]
    async def watch() -> None:
        try:
            await asyncio.gather(
                *(link.watch(), watched.run(), progress.run(), folding.watch_store()),
                announcing.run(),
                tell_of_waits(folding, say, lambda: [*progress.faults(), *publishing.faults()]),
                *([verifying.run()] if verifying else []),
            )
        except BaseException as error:
            fatal(error)

    return app


def _credentials(settings: Settings) -> Any:
    """Return Faust's broker credentials, or None for plain text."""
    if settings.kafka_security == "PLAINTEXT":
        return None
    context = ssl_context(settings)
    if settings.kafka_security == "SSL":
        return faust.SSLCredentials(context)
    return faust.SASLCredentials(
        mechanism=settings.kafka_sasl,
        username=settings.kafka_username,
        password=settings.kafka_password,
        ssl_context=context,
    )
