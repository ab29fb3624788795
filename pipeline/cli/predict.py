"""`veilstream predict`: a model file or the live estimate, over the records of a file."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

import click

from infra.addresses import connected
from pipeline.cli.context import FILE, FORMAT, STUDY, say, task_of
from pipeline.cli.predictions import write_predictions
from pipeline.errors import ConfigError
from pipeline.library.feed import newest_estimate
from pipeline.prediction.files import Rule, load_model, rule_of
from pipeline.release.task import Task
from pipeline.settings import Settings
from pipeline.study import require_live
from producers.sources import open_once


@click.command()
@STUDY
@click.option(
    "--input", "source", required=True, help="A .csv, .jsonl, .ndjson or .parquet file, or -."
)
@FORMAT
@click.option("--model", "path", type=FILE, help="A model file; default: the newest live estimate.")
@click.option("--output", type=FILE, help="Where the lines go; default: standard output.")
@click.option("--json", "as_json", is_flag=True, help="JSON lines instead of CSV.")
def predict(
    study: Path, source: str, form: str, path: Path | None, output: Path | None, as_json: bool
) -> None:
    """Predict the response of each record of a file with a model of STUDY.

    One line for each record: its line number; where the response is one of two classes, the
    decision value (the linear predictor, 0 or more for the positive class), the class, and its
    positive class's probability if the loss gives one; where it is a number or a count, the
    expected response in its own unit. A record that cannot be used gets an empty prediction with
    the reason.

    If the input has the response column, the accuracy is printed at the end, or for numbers and
    counts the mean absolute error (MAE) and the root of the mean squared error (RMSE).

    Predictions say something of raw records: they are for whoever may see those.
    """
    task = task_of(study)
    model = load_model(path) if path else _live(task)
    model.check_study(task)
    file = model.file
    if file.status != "ready":
        say(f"the model is {file.status}: {file.reason}")
    opened = open_once(source, form=form)
    try:
        with _sink(output, source) as out:
            summary = write_predictions(model, opened, out, as_json=as_json)
    finally:
        opened.close()
    for line in summary.lines():
        say(line)


def _live(task: Task) -> Rule:
    require_live(task.study, "a live prediction without --model")
    say(
        "asking Kafka for the newest live estimate; without a live study: --model FILE, as "
        "`veilstream fit --save-model FILE` writes it"
    )
    return rule_of(task, newest_estimate(task.study, connected(Settings.read())))


@contextmanager
def _sink(path: Path | None, source: str) -> Iterator[TextIO]:
    """Open the output; a new file is for its owner's eyes alone."""
    if path is None:
        yield sys.stdout
        return
    try:
        if path.exists() and Path(source).exists() and path.samefile(source):
            raise ConfigError("--output: it is the input; the operator must name another file")
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    except OSError as error:
        raise ConfigError(f"--output: cannot write {path}: {error.strerror}") from error
    with os.fdopen(handle, "w", encoding="utf-8", newline="") as out:
        yield out
