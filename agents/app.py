"""The Faust application of one study."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import faust
from yarl import URL

from agents.announcing import Announcing
from agents.authority import store_of
from agents.folding import Folding
from agents.health import Health
from agents.link import Link, ReleasesLog
from agents.log_watch import LogWatch
from agents.progress import Progress
from agents.publishing import Publishing
from agents.transport import BatchSchema, BatchTransport, NoTables
from agents.verifying import Verifying
from infra.connection import told
from infra.tls import ssl_context
from infra.waiting import AGAIN, Waiting
from pipeline.messages.authentic import Authenticator
from pipeline.messages.topics import Topics
from pipeline.release.task import Task
from pipeline.settings import Settings


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


#: Told of an error that the worker cannot survive; it does not return.
Fatal = Callable[[BaseException], None]


def create_app(
    task: Task,
    settings: Settings,
    *,
    instance: str,
    folder: Path,
    health: tuple[str, int] | None,
    fatal: Fatal,
    trust: Authenticator | None = None,
    say: Callable[[str], None] = lambda _: None,
    verify: tuple[Path, float] | None = None,
) -> faust.App:
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
    app.transport = BatchTransport(app.conf.broker, app, _Guarded(folding, settings, group, fatal))

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
        except asyncio.CancelledError:
            await pages.stop()
            await link.stop()
            raise
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
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            fatal(error)

    return app


class _Guarded:
    """Positions whose faults stop the worker: Faust would log them and read on from anywhere."""

    def __init__(self, folding: Folding, settings: Settings, group: str, fatal: Fatal) -> None:
        self._folding, self._settings, self._group = folding, settings, group
        self._fatal = fatal

    @property
    def topic(self) -> str:
        return self._folding.topic

    def assign(self, bounds: Any) -> dict[int, int]:
        try:
            return self._folding.assign(bounds)
        except BaseException as error:
            self._fatal(error)
            raise

    def failed(self, error: Exception) -> None:
        otherwise = f"Kafka at {self._settings.kafka} cannot be read ({type(error).__name__})"
        refused = "Group" in type(error).__name__
        kind = f"group {self._group}" if refused else f"topic {self.topic}"
        self._fatal(told(self._settings, error, otherwise, what=kind, operation="Read"))


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
