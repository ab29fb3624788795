"""`veilstream produce`."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from infra.addresses import connected
from pipeline.cli.context import STUDY, live_plan_of, say
from pipeline.errors import ConfigError
from pipeline.library.words import counted
from pipeline.settings import Settings
from producers.client import Progress
from producers.ledger import Limit
from producers.run import Job, run_client

#: So many reports in a row, a second or more apart, make a wait worth a line.
PATIENCE = 5


class Waiting:
    """What a client waits for, said once for each thing."""

    def __init__(self) -> None:
        self._what, self._reports = "", 0
        self._said: set[str] = set()

    def hint(self, what: str) -> str:
        """Return what to say at this report, mostly nothing.

        Parameters
        ----------
        what
            As `Progress.waiting_for`.
        """
        self._reports = self._reports + 1 if what and what == self._what else int(bool(what))
        self._what = what
        if self._reports < PATIENCE or what in self._said:
            return ""
        self._said.add(what)
        # only a worker publishes models
        who = ": `veilstream worker` must be running on this study" if "model" in what else ""
        return f"waiting for {what}{who}"


@click.command()
@STUDY
@click.option("--client", required=True, help="Client id: it owns its ledger for ever.")
@click.option(
    "--source",
    "--input",
    "source",
    required=True,
    help="A .csv, .jsonl or .ndjson file, - for standard input, or shuttle:K/N or flights:AIRLINE "
    "for demo data.",
)
@click.option(
    "--format", "form", type=click.Choice(["csv", "jsonl"]), default="csv", show_default=True,
    help="Format of standard input.",
)  # fmt: skip
@click.option("--follow", is_flag=True, help="Wait for the file to grow, as tail -f does.")
@click.option(
    "--event-time", metavar="COLUMN",
    help="Releases carry the times of this column: for histories. Those times are public.",
)  # fmt: skip
@click.option("--source-name", help="Name of the source in the ledger; default: the source's own.")
@click.option(
    "--other-data", is_flag=True,
    help="The source holds other records than a known one that begins alike. It is remembered.",
)  # fmt: skip
@click.option("--rate", type=click.FloatRange(min=0, min_open=True), help="Records per second.")
@click.option(
    "--begin", type=click.FloatRange(min=0),
    help="With --rate: when its first record is due, in seconds since 1970. Clients that begin "
    "together go through their records side by side.",
)  # fmt: skip
@click.option(
    "--epsilon-limit", type=click.FloatRange(min=0, min_open=True),
    help="Most that all studies together may spend on one unit of this source.",
)  # fmt: skip
@click.option(
    "--delta-limit", type=click.FloatRange(min=0, max=1, min_open=True, max_open=True),
    help="The delta at which that epsilon is meant; default: the first study's.",
)  # fmt: skip
@click.option(
    "--level",
    help="With privacy.personal: the loosest level that records of this client may have.",
)
@click.option(
    "--skip-lost", is_flag=True,
    help="After an old copy of the client's database came back: go on behind what it has lost.",
)  # fmt: skip
@click.option(
    "--quiet", is_flag=True,
    help="No progress lines (without a terminal they say only what it waits for).",
)  # fmt: skip
def produce(
    study: Path, client: str, source: str, form: str, follow: bool, event_time: str | None,
    source_name: str | None, other_data: bool, rate: float | None, begin: float | None,
    epsilon_limit: float | None, delta_limit: float | None, level: str | None, skip_lost: bool,
    quiet: bool,
) -> None:  # fmt: skip
    """Read raw records, release noised windows of them to STUDY, and keep the ledger.

    Nothing leaves but noised sums. Stop it at any time and start it again: no record of a file is
    lost, and none enters two releases. Standard input cannot be read again: what was still in the
    pipe is lost, and what is fed a second time is released a second time.
    """
    if begin is not None and rate is None:
        raise ConfigError("--begin: it says when a rate starts to count; give --rate too")
    plan = live_plan_of(study, "a client", level)
    settings = connected(Settings.read())
    if not plan.study.private and (epsilon_limit or delta_limit):
        raise ConfigError("--epsilon-limit, --delta-limit: this study keeps no privacy")

    wait = Waiting()

    def report(progress: Progress, share: float | None) -> None:
        if quiet:
            return
        if not sys.stderr.isatty():
            # counts of an open window are for the person at the terminal, not for a log collector
            if hint := wait.hint(progress.waiting_for):
                say(f"{client}: {hint}")
            return
        done = "" if share is None else f" ({share:.0%})"
        waiting = f", waiting for {progress.waiting_for}" if progress.waiting_for else ""
        releases = counted(progress.releases, "release")
        say(f"{client}: {counted(progress.records, 'record')}{done}, {releases}{waiting}")

    run_client(
        plan,
        settings,
        Job(
            client, source, form, follow, source_name, rate, Limit(epsilon_limit, delta_limit),
            skip_lost, event_time, begin, other_data,
        ),
        report=report,
        say=lambda line: say(f"{client}: {line}"),
    )  # fmt: skip
