"""The Faust application of one study."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import aiokafka
import faust
from aiokafka.errors import KafkaError
from yarl import URL

from agents.folding import Folding
from agents.health import Health
from agents.publishing import Publishing
from agents.transport import BatchSchema, BatchTransport, NoTables
from infra.connection import kafka_options, ssl_context
from pipeline.errors import BrokerError
from pipeline.local.plan import Plan
from pipeline.messages.topics import Topics
from pipeline.settings import Settings
from state import RedisStore
from state.connection import redis_client

#: How long Kafka may be silent before the worker stops.
PATIENCE_SECONDS = 20.0
#: Told of an error that the worker cannot survive; it does not return.
Fatal = Callable[[BaseException], None]


def create_app(
    plan: Plan,
    settings: Settings,
    *,
    instance: str,
    folder: Path,
    health: tuple[str, int] | None,
    fatal: Fatal,
) -> faust.App:
    """Build the application; nothing is opened before it starts.

    Parameters
    ----------
    instance
        Name of this worker within the group, stable over restarts: a worker that comes back under
        its name resumes its partitions at once.
    folder
        Where Faust may keep its own files.
    health
        Host and port of `/healthz` and `/metrics`, or None for neither.
    fatal
        Called with any error of the infrastructure, before anything is acknowledged.
    """
    topics = Topics.of(plan.study)
    store = RedisStore(redis_client(settings), plan)
    link = Link(settings)

    async def reread(partition: int, offset: int) -> None:
        place = next(
            tp for tp in app.consumer.assignment()
            if (tp.topic, tp.partition) == (topics.releases.name, partition)
        )  # fmt: skip
        await app.consumer.seek(place, offset)

    folding = Folding(plan, topics, store, link.send, reread)
    publishing = Publishing(plan, topics, store, folding, link.send, link.read)
    pages = Health(folding, publishing)
    app = faust.App(
        f"veilstream-{plan.study.name}",
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
    app.transport = BatchTransport(app.conf.broker, app, _Guarded(folding, fatal))

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

    @app.task  # type: ignore[untyped-decorator]
    async def publish() -> None:
        try:
            if health:
                await pages.start(*health)
            await link.start()
            await publishing.run()
        except asyncio.CancelledError:
            await pages.stop()
            await link.stop()
            raise
        except BaseException as error:
            fatal(error)

    @app.task  # type: ignore[untyped-decorator]
    async def watch_kafka() -> None:
        try:
            await link.watch()
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            fatal(error)

    return app


class Link:
    """The worker's own producer, idempotent, and its watch over Kafka."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._producer: aiokafka.AIOKafkaProducer | None = None
        self._ready = asyncio.Event()

    async def start(self) -> None:
        """Connect."""
        self._producer = aiokafka.AIOKafkaProducer(
            **kafka_options(self._settings),
            enable_idempotence=True,
            max_request_size=32 * 2**20,
            request_timeout_ms=int(PATIENCE_SECONDS * 1000),
            linger_ms=2,
        )
        await self._producer.start()
        self._ready.set()

    async def stop(self) -> None:
        """Disconnect."""
        if self._producer is not None:
            await self._producer.stop()

    async def send(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[tuple[str, bytes | None]],
    ) -> None:
        """Send one message and wait until Kafka has it.

        Raises
        ------
        BrokerError
            If Kafka does not take it in time.
        """
        await self._ready.wait()
        if self._producer is None:
            raise BrokerError("the producer has been stopped")
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                await self._producer.send_and_wait(
                    topic, value=value, key=key, headers=list(headers)
                )
        except (KafkaError, TimeoutError) as error:
            raise BrokerError(
                f"Kafka does not take a message for {topic}: {type(error).__name__}"
            ) from error

    async def read(self, topic: str) -> list[bytes | None]:
        """Return the values of all messages of a small topic with one partition.

        Raises
        ------
        BrokerError
            If Kafka does not answer in time.
        """
        place = aiokafka.TopicPartition(topic, 0)
        consumer = aiokafka.AIOKafkaConsumer(
            **kafka_options(self._settings), enable_auto_commit=False, auto_offset_reset="earliest"
        )
        values: list[bytes | None] = []
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                await consumer.start()
                consumer.assign([place])
                end = (await consumer.end_offsets([place]))[place]
                while await consumer.position(place) < end:
                    for records in (await consumer.getmany(timeout_ms=200)).values():
                        values += [record.value for record in records]
        except (KafkaError, TimeoutError) as error:
            raise BrokerError(f"{topic} cannot be read: {type(error).__name__}") from error
        finally:
            await consumer.stop()
        return values

    async def watch(self) -> None:
        """Ask Kafka for its metadata now and then; a consumer alone would wait for ever.

        Raises
        ------
        BrokerError
            If it has been silent for `PATIENCE_SECONDS`.
        """
        await self._ready.wait()
        silent = 0.0
        while True:
            await asyncio.sleep(PATIENCE_SECONDS / 5)
            if self._producer is None:
                return
            answered = await self._producer.client.force_metadata_update()
            silent = 0.0 if answered else silent + PATIENCE_SECONDS / 5
            if silent >= PATIENCE_SECONDS:
                raise BrokerError(f"Kafka has not answered for {silent:.0f} s")


class _Guarded:
    """Positions whose faults stop the worker: Faust would log them and read on from anywhere."""

    def __init__(self, folding: Folding, fatal: Fatal) -> None:
        self._folding, self._fatal = folding, fatal

    @property
    def topic(self) -> str:
        return self._folding.topic

    def assign(self, bounds: Any) -> dict[int, int]:
        try:
            return self._folding.assign(bounds)
        except BaseException as error:
            self._fatal(error)
            raise


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
