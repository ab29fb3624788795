"""`veilstream produce`."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from pipeline.cli.context import STUDY, connected, live_plan_of, say
from pipeline.errors import ConfigError
from pipeline.settings import Settings
from producers.client import Progress
from producers.ledger import Limit
from producers.run import Job, run_client


@click.command()
@STUDY
@click.option("--client", required=True, help="Client id: it owns its ledger for ever.")
@click.option(
    "--source",
    required=True,
    help="A .csv, .jsonl or .ndjson file, - for standard input, or shuttle:K/N for demo data.",
)
@click.option(
    "--format", "form", type=click.Choice(["csv", "jsonl"]), default="csv", show_default=True,
    help="Format of standard input.",
)  # fmt: skip
@click.option("--follow", is_flag=True, help="Wait for the file to grow, as tail -f does.")
@click.option("--source-name", help="Name of the source in the ledger; default: the source's own.")
@click.option("--rate", type=click.FloatRange(min=0, min_open=True), help="Records per second.")
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
    "--quiet", is_flag=True, help="No progress lines (without a terminal there are none anyway)."
)
def produce(
    study: Path, client: str, source: str, form: str, follow: bool, source_name: str | None,
    rate: float | None, epsilon_limit: float | None, delta_limit: float | None, level: str | None,
    skip_lost: bool, quiet: bool,
) -> None:  # fmt: skip
    """Read raw records, release noised windows of them to STUDY, and keep the ledger.

    Nothing leaves but noised sums. Stop it at any time and start it again: no record of a file is
    lost, and none enters two releases. Standard input cannot be read again: what was still in the
    pipe is lost, and what is fed a second time is released a second time.
    """
    plan = live_plan_of(study, "a client", level)
    settings = connected(Settings.read())
    if not plan.study.private and (epsilon_limit or delta_limit):
        raise ConfigError("--epsilon-limit, --delta-limit: this study keeps no privacy")

    def report(progress: Progress, share: float | None) -> None:
        # counts of an open window are for the person at the terminal, not for a log collector
        if quiet or not sys.stderr.isatty():
            return
        done = "" if share is None else f" ({share:.0%})"
        waiting = f", waiting for {progress.waiting_for}" if progress.waiting_for else ""
        say(f"{client}: {progress.records} records{done}, {progress.releases} releases{waiting}")

    run_client(
        plan,
        settings,
        Job(
            client, source, form, follow, source_name, rate, Limit(epsilon_limit, delta_limit),
            skip_lost,
        ),
        report=report,
        say=lambda line: say(f"{client}: {line}"),
    )  # fmt: skip
