"""Joining a client's parts, and running it to its end."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from contextlib import closing as closed
from dataclasses import dataclass
from functools import partial
from typing import BinaryIO

from infra.process import Stopping
from infra.topics import check_clock, check_running, ensure_topics
from pipeline.errors import BudgetExceeded, LedgerBehind
from pipeline.messages.spend import ledger_topics
from pipeline.messages.topics import Topics
from pipeline.methods import require_live
from pipeline.privacy.guarantee import loose_delta
from pipeline.records.encoder import Encoder
from pipeline.release.task import Task, release_bytes
from pipeline.settings import Settings
from pipeline.words import counted
from producers import source_check as source_test
from producers.budget import Limit
from producers.client import Client, Progress
from producers.database import check_id, vault_path
from producers.intake import check_column, event_times_of
from producers.membership import Membership
from producers.models import ModelFeed
from producers.prior_spend import LedgerTopic
from producers.rollback import check_followed, lost_releases, named, owe, pass_over, refuse
from producers.sender import Sender
from producers.source_check import LaterTest
from producers.source_registry import Admission
from producers.sources import Source, known_as, open_source
from producers.store import NO_LIMIT, ClientStore

#: Seconds between two progress reports.
REPORT_SECONDS = 1.0
#: Told of this run's progress.
Report = Callable[[Progress], None]


@dataclass(frozen=True, slots=True)
class Job:
    """What one producer is to do.

    client: Client id: the Kafka key, and the name of its database.
    source: As `producers.sources.open_source` takes it.
    source_name: Name of the source in the privacy ledger; None for the source's own.
    limit: What all studies together may spend on the source; see `ClientStore.open_stream`.
    skip_lost: Go on behind what a database that was restored from an old copy has lost.
    event_time: The column with the times of the records, for histories; None: releases carry the
        time of now.
    accept: Take a source that is refused or stopped otherwise, because its records cannot be used.
    begin: When the first record is due at that rate, in seconds since 1970; None: at once.
    from_start: See `ClientStore.open_stream`.
    other_data: The source holds other records than those which begin alike; see
        `KnownSources.check`.
    """

    client: str
    source: str
    form: str = "csv"
    follow: bool = False
    source_name: str | None = None
    rate: float | None = None
    limit: Limit = NO_LIMIT
    skip_lost: bool = False
    event_time: str | None = None
    begin: float | None = None
    other_data: bool = False
    accept: bool = False
    from_start: bool = False


def run_client(
    task: Task,
    settings: Settings,
    job: Job,
    *,
    report: Report,
    say: Callable[[str], None] = lambda _: None,
    admit: Callable[[], None] = lambda: None,
    started: Callable[[], None] = lambda: None,
    stream: BinaryIO | None = None,
) -> Progress:
    """Run one client until its source ends or a signal asks it to stop.

    report, say: Told of progress, and of what people should know.
    admit: Called once the source is known to be there and nobody else's, before the study is asked
        whether it knows this client.
    started: Called when the study and its source are registered, before anything is read.
    stream: What to read as standard input.

    Raises VeilstreamError: whatever keeps it from going on; what was released is kept and sent at
    the next start.
    """
    require_live(task.study, "a client")
    path = vault_path(settings.home, job.client)
    check_id(job.client, path, say)
    # an orderly end: the open window is simply read again
    topics, stopping = Topics.of(task.study, release_bytes(task)), Stopping()
    with ExitStack() as closing:
        store = closing.enter_context(ClientStore(path, job.client))
        closing.push(partial(_leave, store))
        name = job.source_name or known_as(job.source, job.form).name
        admission = Admission(
            path.parent, job.client, name, job.source, follow=job.follow, other_data=job.other_data
        )
        # a source that cannot be opened, or is another's, must not bind the study to it
        admission.enter(check=lambda columns: _check_columns(task, job, columns), say=say)
        # of the others, which it does not use, it may know nothing
        ensure_topics(settings, [*topics.of_clients, *ledger_topics(task.study, settings)])
        membership = _membership(task, settings, store.client, say, admit)
        # another revision than the running one is refused before it is bound to this client
        models = closing.enter_context(
            closed(ModelFeed(task, settings, topics, store.client, say, membership))
        )
        check_clock(settings, topics.releases.name, models.written, say)
        # before anything is registered: a start that is refused changes no limit
        known = store.peek(task.study.name)
        lost = lost_releases(task, settings, store, known, say, lambda: stopping.asked, membership)
        if stopping.asked:
            return Progress()
        check_followed(task, settings, store, name, lost, say, lambda: stopping.asked)
        if (lost.seqs or store.missing) and not job.skip_lost:
            raise refuse(task, lost, store.missing)
        times = event_times_of(task.study, settings, job.event_time, known.latest)
        account = LedgerTopic(settings, job.client, store.heritage, say)
        account.take_over(name, begun=known.next_seq > 0, other_data=job.other_data)
        stream_state = store.open_stream(
            task,
            name,
            job.limit,
            location=known_as(job.source).location,
            event_time=job.event_time,
            rebind=not (lost.seqs or store.missing),
            from_start=job.from_start,
        )
        started()
        _warn(task, store, name, stream_state.next_seq, job.from_start, say)
        admission.begins(stream_state.position)
        source = open_source(
            job.source,
            stream_state.position,
            # a spool for each study: one must not forget what another still needs
            folder=path.with_suffix(".input") / store.following.first(task.study.name),
            follow=job.follow,
            form=job.form,
            stream=stream,
            settings=settings,
            say=say,
            skip_lost=job.skip_lost,
            columns=_columns_of(task, job),
        )
        closing.callback(source.close)
        if source.columns is not None:
            # of what can be read once, nobody has seen them before
            _check_columns(task, job, source.columns)
        if lost.seqs:
            owe(task, store, source, name, lost, time.time())
            say(f"lost: {counted(len(lost.seqs), 'release')}, which the ledger counts as spent")
            # the register may have come back as old as the database
            admission.before_release()
        _warn_of_missing(store, say)
        account.publish()
        progress = Progress()
        held = source_test.passed(
            task,
            source,
            store.tests,
            name=name,
            stamp=source_test.stamp_of(job.source, task.revision, job.event_time),
            accept=job.accept,
            times=times,
            stopped=lambda: stopping.asked,
            say=say,
            report=_paced(lambda: report(progress), progress),
        )
        if held is None:
            return progress
        sender = Sender(
            store, task.study.name, settings, topics, membership,
            sent=known.sent if lost.certain else None,
        )  # fmt: skip
        client = Client(
            task,
            source,
            store,
            sender,
            models,
            certain=lost.certain,
            source_name=name,
            rate=job.rate,
            times=times,
            admission=admission,
            publish=account.publish,
            first=held,
            test=LaterTest(task, store.tests, name=name, accept=job.accept),
            say=say,
            ahead=0.0 if job.begin is None else job.begin - time.time(),
        )
        try:
            if pass_over(
                task, store, source, say=say, stopped=lambda: stopping.asked, meanwhile=sender.pump
            ):
                _loop(client, source, sender, stopping, report)
            client.finish()
        finally:
            sender.close()
        return client.progress


def _check_columns(task: Task, job: Job, columns: Sequence[str]) -> None:
    """Refuse columns that the study, or the times of its records, cannot be read from."""
    Encoder(task.study).check_columns(columns)
    if job.event_time is not None:
        check_column(job.event_time, columns)


def _columns_of(task: Task, job: Job) -> list[str]:
    return [*Encoder(task.study).columns, *([job.event_time] if job.event_time else [])]


def _leave(store: ClientStore, _: object, error: object, __: object) -> None:
    # who registers nothing is no client, but one whose releases the log has: `client status` looks
    if not isinstance(error, LedgerBehind):
        store.leave_nothing()


def _membership(
    task: Task, settings: Settings, client: str, say: Callable[[str], None],
    admit: Callable[[], None],
) -> Membership | None:  # fmt: skip
    """Have a client admitted, where its study admits any and is the running one."""
    if not task.study.authenticated:
        return None
    check_running(task, settings)
    admit()
    return Membership(task.study, settings, client, say)


def _warn(
    task: Task, store: ClientStore, name: str, releases: int, from_start: bool,
    say: Callable[[str], None],
) -> None:  # fmt: skip
    if from_start and not task.study.study.before:
        say(
            f"WARNING: --from-start has no effect here: study {task.study.study.name!r} follows "
            "none, and continues behind what it has released of its source. To have the records "
            "released once more, begin a study with a new name"
        )
    if warning := loose_delta(task.budget.guarantee.delta, (releases + 1) * task.slots):
        say(f"WARNING: {warning}")
    if task.study.private and store.released_without_privacy(name):
        say(
            f"WARNING: a study without privacy has released source {name!r}: its records are "
            "not protected, whatever this study promises"
        )


def _warn_of_missing(store: ClientStore, say: Callable[[str], None]) -> None:
    if store.missing:
        say(
            f"WARNING: {counted(sum(store.missing.values()), 'release')} of this client still "
            f"unknown to its database: start {named(store.missing)} with --skip-lost too"
        )


def _paced(report: Callable[[], None], progress: Progress) -> Callable[[int], None]:
    """Return a report of how many slots a test still waits for, made once a second."""
    reported = time.monotonic()

    def tell(awaited: int) -> None:
        nonlocal reported
        progress.waiting_for = (
            f"{counted(awaited, 'more record')}, to test the source" if awaited else ""
        )
        if time.monotonic() - reported >= REPORT_SECONDS:
            report()
            reported = time.monotonic()

    return tell


def _loop(
    client: Client, source: Source, sender: Sender, stopping: Stopping, report: Report
) -> None:
    reported, progress = time.monotonic(), client.progress
    try:
        while not (stopping.asked or progress.finished):
            progress.finished = not client.turn()
            if time.monotonic() - reported >= REPORT_SECONDS:
                progress.share = source.progress
                report(progress)
                reported = time.monotonic()
    except BudgetExceeded:
        # what has been paid for leaves now: who is refused has no reason to start again
        sender.drain()
        raise
    progress.share = source.progress
    report(progress)
