"""`veilstream produce`."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import click

from infra.local import connected, is_local
from infra.process import Waiting
from pipeline.cli.client import admit_here
from pipeline.cli.context import (
    AS_JSON,
    FORMAT,
    SOURCE,
    STUDY,
    TIMEOUT,
    TIMES,
    Number,
    Renamed,
    live_task_of,
    put,
    say,
)
from pipeline.errors import ConfigError, VeilstreamError
from pipeline.release.task import Task
from pipeline.settings import Settings
from pipeline.study.model import Study
from pipeline.words import counted
from producers.budget import Limit
from producers.client import Progress
from producers.database import shown, vault_path
from producers.report import begun, closing, run_of, standing
from producers.start import Job, Report, run_client

#: A line about how far a client is comes no sooner than this.
LINE_SECONDS = 10.0


@click.command()
@STUDY
@click.option(
    "--client", required=True,
    help="Name of this client. What it spends is kept under this name for ever.",
)  # fmt: skip
@click.option(
    *SOURCE, cls=Renamed,
    help="A .csv, .jsonl, .parquet or .arrow file, a folder of the last two with / at its end, - "
    "for standard input, kafka://TOPIC, sqlite://FILE?table=T&key=K, duckdb:// or postgresql:// "
    "likewise, mqtt://HOST/FILTER, or shuttle:K/N or flights:AIRLINE for demo data.",
)  # fmt: skip
@click.option(
    "--listen", metavar="HOST:PORT",
    help="In place of --source: take records that are posted there over HTTP.",
)  # fmt: skip
@FORMAT
@click.option("--follow", is_flag=True, help="Wait for a file or topic to grow, as tail -f does.")
@click.option(
    "--event-time", metavar="COLUMN",
    help=f"For histories: releases carry the times in this column: {TIMES}. Those times become "
    "public, and stream.retention = \"forever\" keeps releases that are old from the start.",
)  # fmt: skip
@click.option("--source-name", help="Name of the source in the ledger; default: the source's own.")
@click.option(
    "--other-data", is_flag=True,
    help="Say once that this source holds other records, although it begins like a known one.",
)  # fmt: skip
@click.option("--rate", type=Number(min=0, min_open=True), help="Records per second.")
@click.option(
    "--begin", type=Number(min=0),
    help=(
        "With --rate: when the first record is due, in seconds since 1970. Clients that begin "
        "together go through their records side by side."
    ),
)  # fmt: skip
@click.option(
    "--epsilon-limit", type=Number(min=0, min_open=True),
    help="The largest epsilon that all studies together may spend on a record (or user) here.",
)  # fmt: skip
@click.option(
    "--delta-limit", type=Number(min=0, max=1, min_open=True, max_open=True),
    help="The delta for which that epsilon holds; default: that of the first study.",
)  # fmt: skip
@click.option(
    "--level",
    help="With privacy.personal: the loosest level that records of this client may have.",
)
@click.option(
    "--skip-lost", is_flag=True,
    help="After an old copy of the client's database was restored: charge the lost releases, "
    "leave out the records that they can have held, and go on.",
)  # fmt: skip
@click.option(
    "--from-start", is_flag=True,
    help=(
        "Begin a study that follows others at the start of the source, although its records were "
        "released for a study that it does not name. They are then released for both."
    ),
)  # fmt: skip
@click.option(
    "--accept-unusable", "accept", is_flag=True,
    help="Begin, and continue in this run, even if hardly any record of the source can be used.",
)  # fmt: skip
@click.option(
    "--metrics-port", type=click.IntRange(1, 65535),
    help="Serve /metrics on this port of loopback: budget, releases, counts of records.",
)  # fmt: skip
@TIMEOUT
@AS_JSON
@click.option("--quiet", is_flag=True, help="Nothing but warnings and errors.")
def produce(
    *, study: Path, source: str | None, listen: str | None, epsilon_limit: float | None,
    delta_limit: float | None, level: str | None, metrics_port: int | None, as_json: bool,
    quiet: bool, timeout: float | None, **given: Any,
) -> None:  # fmt: skip
    """Read records, send noised sums of them to STUDY, and count the privacy spent.

    Only noised sums leave. You may stop it at any time and start it again: no record of a file is
    lost, and none enters two releases. Standard input cannot be read again: what was still in the
    pipe is lost, and what is fed a second time is released a second time.
    """
    if (source is None) == (listen is None):
        raise ConfigError("--source, --listen: give one of them: where the records come from")
    limit = Limit(epsilon_limit, delta_limit)
    place = f"listen://{listen}" if source is None else source
    job = Job(source=place, limit=limit, **given)
    if job.begin is not None and job.rate is None:
        raise ConfigError("--begin: it says when a rate starts to count; give --rate too")
    task = live_task_of(study, "a client", level).of_client(job.client)
    settings = connected(Settings.read())
    if not task.study.private and limit != Limit():
        raise ConfigError("--epsilon-limit, --delta-limit: this study keeps no privacy")

    path, name = vault_path(settings.home, job.client), shown(job.client)
    here = task.study.authenticated and is_local(settings)
    is_begun = False

    def tell(line: str) -> None:
        if not quiet or line.startswith("WARNING"):
            say(f"{name}: {line}")

    def begin() -> None:
        nonlocal is_begun
        is_begun = True
        now = standing(path, task)
        tell(begun(task.revision, now, study=task.study.name, follow=job.follow))

    def admit() -> None:
        if here:
            admit_here(task.study, settings, [job.client])

    before, code, progress = standing(path, task), 1, Progress()
    try:
        with _metrics(metrics_port, path, task):
            progress = run_client(
                task,
                settings,
                job,
                report=_report(task.study, tell, timeout),
                say=tell,
                admit=admit,
                started=begin,
            )
        code = 0
    except VeilstreamError as error:
        code = error.exit_code
        raise
    finally:
        after = standing(path, task)
        done = run_of(before, after)
        cut_off = code == 0 and not progress.finished
        for line in (
            closing(
                done,
                after,
                task.study,
                failed=code != 0 or cut_off,
                outside=progress.outside,
            )
            if after and is_begun
            else ()
        ):
            tell(line)
        if cut_off:
            read = "" if progress.share is None else f" when {progress.share:.0%} was read"
            tell(f"NOT finished: a signal stopped it{read}; the same command goes on")
        if as_json:
            names = {"client": job.client, "study": task.study.name, "revision": task.revision}
            put({**names, "source": after.get("source"), "exit_code": code,
                 "finished": progress.finished, "read": progress.share, **done})  # fmt: skip


def _report(study: Study, tell: Callable[[str], None], timeout: float | None = None) -> Report:
    """Return what says how far a client is, and what it waits for; WaitTimeout if for too long."""
    rhythm, counts, told = study.stream.publish, "", -LINE_SECONDS
    wait = Waiting(rhythm=rhythm.seconds + rhythm.pause, timeout=timeout)

    def report(progress: Progress) -> None:
        nonlocal counts, told
        # counts of an open window are for the person at the terminal, not for a log collector
        if sys.stderr.isatty() and time.monotonic() - told >= LINE_SECONDS:
            read = "" if progress.share is None else f" ({progress.share:.0%})"
            releases = counted(progress.releases, "release")
            line = f"{counted(progress.records, 'record')}{read}, {releases}"
            if line != counts:
                tell(line)
                counts, told = line, time.monotonic()
        if hint := wait.hint(progress.waiting_for, progress.records + progress.releases):
            tell(hint)

    return report


def _metrics(port: int | None, path: Path, task: Task) -> AbstractContextManager[None]:
    if port is None:
        return nullcontext()
    # most clients start without it
    from producers.metrics import serving  # noqa: PLC0415

    return serving(port, path, task)
