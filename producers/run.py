"""Joining a client's parts, and running it to its end."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import BinaryIO

from infra.topics import ensure_topics
from pipeline.local.plan import Plan
from pipeline.messages.topics import Topics
from pipeline.settings import Settings
from producers.client import Client, Progress
from producers.models import ModelFeed
from producers.sender import Sender
from producers.sources import name_of, open_source
from producers.vault import Vault

#: Seconds between two progress reports.
REPORT_SECONDS = 1.0
#: Told of progress: this run's counters, and the share of the source that was read if known.
Report = Callable[[Progress, float | None], None]


@dataclass(frozen=True, slots=True)
class Job:
    """What one producer is to do.

    Attributes
    ----------
    client
        Client id: the Kafka key, and the name of its database.
    source
        As `producers.sources.open_source` takes it.
    source_name
        Name of the source in the privacy ledger; None for the source's own.
    limit
        (epsilon, delta) that all studies may spend on the source; see `Vault.open_stream`.
    """

    client: str
    source: str
    form: str = "csv"
    follow: bool = False
    source_name: str | None = None
    rate: float | None = None
    limit: tuple[float, float] | None = None


def vault_path(folder: Path, client: str) -> Path:
    """Return where a client's database is."""
    safe = "".join(c if c.isalnum() or c in "-_." else f"%{ord(c):02x}" for c in client)
    return folder / "clients" / f"{safe}.db"


def run_client(
    plan: Plan,
    settings: Settings,
    job: Job,
    *,
    report: Report,
    stream: BinaryIO | None = None,
) -> Progress:
    """Run one client until its source ends or a signal asks it to stop.

    Raises
    ------
    VeilstreamError
        Whatever keeps it from going on; what was released is kept and sent at the next start.
    """
    topics = Topics.of(plan.study)
    stopping = _Stopping()
    path = vault_path(settings.home, job.client)
    with Vault(path, job.client) as vault:
        name = job.source_name or name_of(job.source, job.form)
        if job.source != "-":
            # a source that cannot be opened must not bind the study to it
            open_source(job.source, None, folder=path.parent).close()
        stream_state = vault.open_stream(plan, name, job.limit)
        source = open_source(
            job.source,
            stream_state.position,
            # a spool for each study: one must not forget what another still needs
            folder=path.with_suffix(".input") / plan.study.name,
            follow=job.follow,
            form=job.form,
            stream=stream,
        )
        ensure_topics(settings, topics.all())
        sender = Sender(vault, plan.study.name, settings, topics)
        models = ModelFeed(plan, settings, topics)
        client = Client(
            plan,
            source,
            vault,
            sender,
            models,
            next_seq=stream_state.next_seq,
            source_name=name,
            rate=job.rate,
        )
        try:
            _loop(client, stopping, lambda: report(client.progress, source.progress))
            client.finish()
        finally:
            sender.close()
            models.close()
            source.close()
        return client.progress


def _loop(client: Client, stopping: _Stopping, report: Callable[[], None]) -> None:
    reported = time.monotonic()
    while not stopping.asked and client.turn():
        if time.monotonic() - reported >= REPORT_SECONDS:
            report()
            reported = time.monotonic()
    report()


class _Stopping:
    """SIGINT and SIGTERM ask for an orderly end: the open window is simply read again."""

    def __init__(self) -> None:
        self.asked = False
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._ask)

    def _ask(self, _number: int, _frame: FrameType | None) -> None:
        self.asked = True
