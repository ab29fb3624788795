"""One start of a client in phases, and its run to the end."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from contextlib import closing as closed
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import BinaryIO

from infra.process import Stopping
from infra.topics import check_clock, check_running, ensure_topics
from pipeline.errors import BudgetExceeded, LedgerBehind
from pipeline.messages.spend import ledger_topic, prefix
from pipeline.messages.topics import Topics
from pipeline.methods import require_live
from pipeline.privacy.guarantee import loose_delta
from pipeline.release.task import Task, release_bytes
from pipeline.settings import Settings
from pipeline.words import counted
from producers import source_check as source_test
from producers.budget import Limit
from producers.client import Client, Progress
from producers.database import check_id, vault_path
from producers.intake import EventTimes, check_columns, columns_of, event_times_of
from producers.membership import Membership
from producers.models import ModelFeed
from producers.prior_spend import LedgerTopic
from producers.rollback import Claims, Lost, lost_releases, named, owe, pass_over, refuse
from producers.sender import Sender
from producers.source_check import Held, LaterTest
from producers.source_registry import Admission
from producers.sources import known_as, open_source
from producers.sources.base import Source
from producers.store import NO_LIMIT, ClientStore, Stream

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


@dataclass(slots=True)
class Start:
    """One start of a client, and what its phases have made so far.

    Parameters as of `run_client`.
    """

    task: Task
    settings: Settings
    job: Job
    report: Report
    say: Callable[[str], None]
    admit: Callable[[], None]
    started: Callable[[], None]
    stream: BinaryIO | None
    closing: ExitStack
    stopping: Stopping = field(default_factory=Stopping)
    progress: Progress = field(default_factory=Progress)
    #: Whether the start is over before its last phase, without a fault.
    ended: bool = False
    path: Path = field(init=False)
    name: str = field(init=False)
    topics: Topics = field(init=False)
    store: ClientStore = field(init=False)
    admission: Admission = field(init=False)
    membership: Membership | None = field(init=False)
    models: ModelFeed = field(init=False)
    account: LedgerTopic = field(init=False)
    claims: Claims = field(init=False)
    known: Stream = field(init=False)
    lost: Lost = field(init=False)
    copied: set[str] = field(init=False)
    behind: bool = field(init=False)
    times: EventTimes | None = field(init=False)
    source: Source = field(init=False)
    held: Held | None = field(init=False)

    @property
    def study(self) -> str:
        """The study's name."""
        return self.task.study.name


def run_client(
    task: Task, settings: Settings, job: Job, *, report: Report,
    say: Callable[[str], None] = lambda _: None, admit: Callable[[], None] = lambda: None,
    started: Callable[[], None] = lambda: None, stream: BinaryIO | None = None,
) -> Progress:  # fmt: skip
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
    with ExitStack() as closing:
        start = Start(task, settings, job, report, say, admit, started, stream, closing)
        for phase in PHASES:
            phase(start)
            if start.ended:
                break
        return start.progress


def own_database(start: Start) -> None:
    """Open the file, which one process has, and whose rows are one state."""
    start.path = vault_path(start.settings.home, start.job.client)
    check_id(start.job.client)
    start.store = start.closing.enter_context(ClientStore(start.path, start.job.client))
    start.closing.push(partial(_leave, start.store))


def claim_source(start: Start) -> None:
    """See that the source opens and is nobody else's, before the study is bound to it."""
    job = start.job
    start.name = job.source_name or known_as(job.source, job.form).name
    start.admission = Admission(
        start.path.parent, job.client, start.name, job.source,
        follow=job.follow, other_data=job.other_data,
    )  # fmt: skip
    start.admission.enter(
        check=partial(check_columns, start.task.study, job.event_time), say=start.say
    )


def join_study(start: Start) -> None:
    """See that the topics are there, and that the running study admits this client."""
    task, settings, say = start.task, start.settings, start.say
    start.topics = Topics.of(task.study, release_bytes(task))
    # of the others, which it does not use, it may know nothing
    ensure_topics(settings, [*start.topics.of_clients, ledger_topic(task.study, settings)])
    start.membership = _membership(task, settings, start.store.client, say, start.admit)
    # another revision than the running one is refused before it is bound to this client
    start.models = start.closing.enter_context(
        closed(ModelFeed(task, settings, start.topics, start.store.client, say, start.membership))
    )
    check_clock(settings, start.topics.releases.name, start.models.written, say)


def detect_rollback(start: Start) -> None:
    """See that log and folder know no release that the database lacks, or that it may be skipped.

    Before anything is registered: a start that is refused changes no limit.
    """
    store, settings, say = start.store, start.settings, start.say
    start.account = start.closing.enter_context(
        closed(LedgerTopic(settings, start.job.client, store.heritage, say))
    )
    found = start.account.read(prefix(start.job.client, store.ledger))
    start.claims = Claims(settings, store, found, start.account.reader, say)
    start.known = store.peek(start.study)
    start.lost = lost_releases(
        start.task, settings, store, start.known, say, lambda: start.stopping.asked,
        start.membership,
    )  # fmt: skip
    over, here = store.following.over(), {start.study} if start.lost.copied else set[str]()
    # what another copy has released of a study that is over lies behind the one in its place
    start.copied = {study for study, _ in store.runs.copied()} - over | here
    line = {start.study, *start.task.study.study.before} - over
    ahead = {name for name in line if start.claims.slots_behind(name)}
    hidden = {name for name in line if start.claims.lack(name)}
    start.claims.due = bool(hidden)
    start.behind = bool(start.lost.seqs or store.missing or start.copied or ahead or hidden)
    start.ended = start.stopping.asked
    if start.behind and not (start.job.skip_lost or start.ended):
        raise refuse(
            start.task, start.lost, store.missing, start.copied or ahead, hidden,
            settings.ledger_topic,
        )  # fmt: skip


def register(start: Start) -> None:
    """Enter study, source and limit in the ledger, with what was spent elsewhere."""
    job, store = start.job, start.store
    start.times = event_times_of(
        start.task.study, start.settings, job.event_time, start.known.latest
    )
    start.account.take_over(start.name, begun=start.known.next_seq > 0, other_data=job.other_data)
    stream = store.open_stream(
        start.task,
        start.name,
        job.limit,
        location=known_as(job.source).location,
        event_time=job.event_time,
        rebind=not start.behind,
        from_start=job.from_start,
    )
    start.started()
    _warn(start.task, store, start.name, stream.next_seq, job.from_start, start.say)
    start.admission.begins(stream.position)
    start.source = open_source(
        job.source,
        stream.position,
        # a spool for each study: one must not forget what another still needs
        folder=start.path.with_suffix(".input") / store.following.chain(start.study)[-1],
        follow=job.follow,
        form=job.form,
        stream=start.stream,
        settings=start.settings,
        say=start.say,
        skip_lost=job.skip_lost,
        columns=columns_of(start.task.study, job.event_time),
    )
    start.closing.callback(start.source.close)
    if start.source.columns is not None:
        # of what can be read once, nobody has seen them before
        check_columns(start.task.study, job.event_time, start.source.columns)


def skip_lost(start: Start) -> None:
    """Charge what is lost, and owe the records that it can have held."""
    copied = start.study in start.copied
    if start.lost.seqs or copied or start.claims.slots_behind(start.study):
        owe(
            start.task, start.store, start.source, start.name, start.lost, time.time(),
            start.claims, copied=copied,
        )  # fmt: skip
        lost = counted(len(start.lost.seqs), "release")
        start.say(f"lost: {lost}, which the ledger counts as spent")
        # the register may have come back as old as the database
        start.admission.before_release()
    if missing := start.store.missing:
        start.say(
            f"WARNING: {counted(sum(missing.values()), 'release')} of this client still "
            f"unknown to its database: start {named(missing)} with --skip-lost too"
        )
    start.account.publish()


def check_source(start: Start) -> None:
    """See that the first records can be used."""
    task, job = start.task, start.job
    start.held = source_test.passed(
        task,
        start.source,
        start.store.tests,
        name=start.name,
        stamp=source_test.stamp_of(job.source, task.revision, job.event_time),
        accept=job.accept,
        times=start.times,
        stopped=lambda: start.stopping.asked,
        say=start.say,
        admission=start.admission,
        report=_paced(lambda: start.report(start.progress), start.progress),
    )
    start.ended = start.held is None


def release(start: Start) -> None:
    """Go on behind what is owed, window by window."""
    task, store, job, stopping = start.task, start.store, start.job, start.stopping
    sender = Sender(
        store, start.study, start.settings, start.topics, start.claims, start.membership,
        sent=start.known.sent if start.lost.certain else None,
    )  # fmt: skip
    client = Client(
        task,
        start.source,
        store,
        sender,
        start.models,
        certain=start.lost.certain and not start.claims.due,
        source_name=start.name,
        rate=job.rate,
        times=start.times,
        admission=start.admission,
        publish=start.account.publish,
        first=start.held,
        test=LaterTest(task, store.tests, name=start.name, accept=job.accept),
        say=start.say,
        ahead=0.0 if job.begin is None else job.begin - time.time(),
    )
    start.progress = client.progress
    try:
        if pass_over(
            task, store, start.source,
            say=start.say, stopped=lambda: stopping.asked, meanwhile=sender.pump,
        ):  # fmt: skip
            _loop(client, start.source, sender, stopping, start.report)
        client.finish()
    finally:
        sender.close()


#: The order is the safety argument: each says what holds before the next, and one that refuses
#: leaves everything before it undone.
PHASES = (
    own_database,
    claim_source,
    join_study,
    detect_rollback,
    register,
    skip_lost,
    check_source,
    release,
)


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
