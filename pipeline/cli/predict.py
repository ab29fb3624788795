"""`veilstream predict`: a model file or the live estimate, over the records of a file."""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

import click
import numpy as np

from infra.local import connected
from pipeline.api.feed import newest_message
from pipeline.cli.context import FILE, FORMAT, READ, STUDY, say, task_of
from pipeline.errors import ConfigError
from pipeline.methods import require_live
from pipeline.prediction.estimators import LinearClassifier, Rule, load_model, rule_of
from pipeline.prediction.scores import Confusion, Errors, Ranking, predict_records
from pipeline.records.values import Record
from pipeline.release.task import Task
from pipeline.settings import Settings
from pipeline.types import Vector
from pipeline.words import clipped_line, counted, csv_lines
from producers.sources import open_once
from producers.sources.base import Source

#: Records that are held at a time: a record may be large, and a reader may wait for its line.
BATCH = 100
#: Seconds to wait for records before looking again whether the source has ended.
TURN_SECONDS = 1.0


@click.command()
@STUDY
@READ
@FORMAT
@click.option("--model", "path", type=FILE, help="A model file; default: the newest live estimate.")
@click.option("--output", type=FILE, help="Where the lines go; default: standard output.")
@click.option("--json", "as_json", is_flag=True, help="JSON lines instead of CSV.")
def predict(
    study: Path, source: str, form: str, path: Path | None, output: Path | None, as_json: bool
) -> None:
    """Predict the response of each record of a file with a model of STUDY.

    Prints one line for each record, which begins with its line number. If the response is one of
    two classes, the decision value follows (the linear predictor, 0 or more for the positive
    class), then the class, and the probability of the positive class if the loss gives one. If the
    response is a number or a count, the expected response follows, in its own unit. A record that
    cannot be used gets an empty prediction with the reason.

    If the input has the response column, the accuracy is printed at the end, or for numbers and
    counts the mean absolute error (MAE) and the root of the mean squared error (RMSE).

    Predictions reveal something about raw records: show them only to people who may see those.
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
    return rule_of(task, newest_message(task.study, connected(Settings.read())))


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


class Summary:
    """What the predictions of some records come to.

    records, predicted: How many records came, and how many got a prediction.
    outside: How many values were outside their public range, by feature.
    columns: Names between line number and reason; the first is empty without a prediction.
    """

    def __init__(self, model: Rule) -> None:
        self._model, self._confusion, self._errors = model, Confusion(), Errors()
        self._ranking = Ranking()
        self.records = self.predicted = 0
        self.outside: Counter[str] = Counter()
        #: How many responses are outside the public range: learning has clipped such ones.
        self._beyond = 0
        self.columns = ["prediction"]
        if isinstance(model, LinearClassifier):
            probable = hasattr(model, "predict_proba")
            self.columns = ["decision", "class", *(["probability"] if probable else [])]

    def of(self, records: Sequence[Record | None]) -> Iterator[tuple[list[object], str | None]]:
        """Yield what there is to say of each record as `columns`, and the reason, and count it."""
        found = predict_records(self._model, records, self.outside)
        self.records += len(found)
        self.predicted += sum(said.value is not None for said in found)
        known = [
            (said.response, said.value)
            for said in found
            if said.value is not None and said.response is not None
        ]
        self._count(*np.array(known).reshape(len(known), 2).T)
        for said in found:
            values: list[object] = [said.value, said.label, said.probability]
            yield values[: len(self.columns)], said.reason

    def lines(self) -> Iterator[str]:
        """Yield the summary for people; nothing of responses if none is known."""
        without = self.records - self.predicted
        tail = f", {without} without (the output says why)" if without else ""
        if not self.records:
            yield "WARNING: the input holds no records, so there is nothing to predict"
            return
        said = counted(self.predicted, "prediction")
        yield f"{counted(self.records, 'record')}: {said}{tail}"
        if self.outside:
            yield clipped_line(self.outside)
        yield from self._of_classes()
        yield from self._of_numbers()

    def _count(self, responses: Vector, values: Vector) -> None:
        """Count predictions of records whose response is known, shapes (n,)."""
        if isinstance(self._model, LinearClassifier):
            self._confusion.add_all(responses, np.where(values >= 0, 1.0, -1.0))
            self._ranking.add_all(responses, values)
            return
        low, high = self._model.file.response.ends
        self._errors.add_all(responses, values)
        self._beyond += int(np.count_nonzero((responses < low) | (responses > high)))

    def _of_classes(self) -> Iterator[str]:
        if self._confusion.accuracy is None:
            return
        balanced, area = self._confusion.balanced_accuracy, self._ranking.area
        both = "balanced accuracy and AUC unknown (records of one class only)"
        if balanced is not None and area is not None:
            both = f"balanced accuracy {balanced:.4f}, AUC {area:.4f}"
        yield (
            f"accuracy {self._confusion.accuracy:.4f}, {both}, "
            f"of {counted(self._confusion.total, 'record')} whose class is known"
        )

    def _of_numbers(self) -> Iterator[str]:
        absolute, square = self._errors.mean_absolute, self._errors.root_mean_square
        if absolute is None or square is None:
            return
        yield (
            f"MAE {absolute:.6g}, RMSE {square:.6g}, of {counted(self._errors.total, 'record')} "
            "whose response is known"
        )
        if self._beyond:
            yield (
                f"outside the public range of the study: {self._beyond} of these responses; they "
                "are scored as they are written, while learning clips such values to the range"
            )


def write_predictions(model: Rule, source: Source, out: TextIO, *, as_json: bool) -> Summary:
    """Write a line for each record of a source; memory does not grow with their number.

    out: Where lines go; flushed whenever the source has to be waited for.
    as_json: JSON lines instead of CSV with a header.

    Raises DataError if the source has a header without a feature of the model, or cannot be read.
    """
    if source.columns is not None:
        model.features.check_columns(source.columns)
    summary = Summary(model)
    put = (_json_lines if as_json else _csv_lines)(out, ["line", *summary.columns, "reason"])
    while not source.ended:
        slots = source.read(BATCH, TURN_SECONDS)
        found = summary.of([slot.record for slot in slots])
        for slot, (values, reason) in zip(slots, found, strict=True):
            fault = slot.fault and slot.fault.removeprefix(f"line {slot.line}: ")
            put([slot.line, *values, reason if fault is None else fault])
        out.flush()
    return summary


def _csv_lines(out: TextIO, names: list[str]) -> Callable[[list[object]], None]:
    put = csv_lines(out)
    put(names)
    return put


def _json_lines(out: TextIO, names: list[str]) -> Callable[[list[object]], None]:
    def put(values: list[object]) -> None:
        out.write(json.dumps(dict(zip(names, values, strict=True)), allow_nan=False) + "\n")

    return put
