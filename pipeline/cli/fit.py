"""`veilstream fit`: the whole pipeline over a file, in one process."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import click

from pipeline.api.fitting import ExactFit, Fitting
from pipeline.api.records import Records, Rows
from pipeline.api.table import comparison, fit_table, intervals_table, table
from pipeline.cli.context import (
    CLIENT_COLUMN,
    FORMAT,
    READ,
    SAVE_MODEL,
    STUDY,
    save_model,
    say,
    show,
    task_of,
)
from pipeline.cli.progress import Speed
from pipeline.errors import ConfigError
from pipeline.messages.estimate import EstimateMessage, write_estimate
from pipeline.messages.results import FitMessage, write_fit
from pipeline.release.task import Task
from pipeline.words import clipped_line


@click.command()
@STUDY
@READ
@FORMAT
@CLIENT_COLUMN
@click.option(
    "--without-privacy", "plainly", is_flag=True,
    help="The exact fit of the same study to all records. Only for people who may see the data.",
)  # fmt: skip
@click.option(
    "--compare", is_flag=True,
    help=(
        "The estimate beside the exact fit, to see what privacy costs. Only for people who may "
        "see the data."
    ),
)  # fmt: skip
@click.option(
    "--intervals",
    "all_intervals",
    is_flag=True,
    help="All intervals side by side, with what each needs.",
)
@click.option("--json", "as_json", is_flag=True, help="The estimate as JSON.")
@SAVE_MODEL
def fit(
    study: Path, source: str, form: str, client_column: str | None, plainly: bool,
    compare: bool, all_intervals: bool, as_json: bool, save_model_to: Path | None,
) -> None:  # fmt: skip
    """Estimate STUDY from a file, through the same functions as the live stream.

    If estimator.kind is a published method, that method runs on the pooled records, and the output
    says what it keeps private. With a private study the estimate is a separate release under the
    study's guarantee: it draws fresh noise, and no ledger is charged.
    """
    task = task_of(study)
    if plainly and save_model_to is not None:
        raise ConfigError(
            "--save-model: with --without-privacy it would write an estimate of the "
            "study that keeps no privacy; leave one of the two options out"
        )
    if compare and (plainly or as_json):
        raise ConfigError("--compare: it prints a table of both; leave out the other options")
    fitting = Fitting(task, exact=plainly)
    beside = ExactFit(task) if compare else None
    if plainly or compare:
        said = "--without-privacy" if plainly else "--compare"
        say(f"WARNING: {said}: nobody's data is protected in what follows")
    records = Records(task, source, client_column=client_column, form=form)
    rows = _watched(records)
    fitting.take(rows if beside is None else beside.kept(rows))
    # counted from raw data: for the person at the terminal, not for a log collector
    if records.clipped and sys.stderr.isatty():
        say(clipped_line(records.clipped))
    records.check()
    if records.faults_line:
        say(records.faults_line)
    message = fitting.message()
    _print(message, task, as_json=as_json, all_intervals=all_intervals)
    if beside is not None and isinstance(message, EstimateMessage):
        show(comparison(message, beside.message(time.time())))
    if task.study.noised and not plainly and sys.stderr.isatty():
        say(
            "this fit is its own release with fresh noise, and no ledger counts it: what k "
            "private fits of the same records reveal adds up"
        )
    if save_model_to is not None:
        save_model(task, message, save_model_to)


def _watched(records: Records) -> Rows:
    tell = Speed()
    for row in records:
        yield row
        tell("reading", records.count)


def _print(
    message: EstimateMessage | FitMessage, task: Task, *, as_json: bool, all_intervals: bool
) -> None:
    if isinstance(message, FitMessage):
        if as_json:
            sys.stdout.write(write_fit(message).decode() + "\n")
        else:
            show(fit_table(message, task.study))
    elif as_json:
        sys.stdout.write(write_estimate(message).decode() + "\n")
    else:
        show(table(message, task.study))
        if all_intervals:
            show(intervals_table(message, task.study))
