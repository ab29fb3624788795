"""Predictions as lines, CSV or JSON, and what they come to in the end."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import TextIO

from pipeline.library.csv_lines import csv_lines
from pipeline.library.words import clipped_line, counted
from pipeline.prediction.classifier import LinearClassifier
from pipeline.prediction.files import Rule
from pipeline.prediction.records import predict_records
from pipeline.prediction.scores import Confusion, Errors
from pipeline.records.values import Record
from producers.sources import Slot, Source

#: Records that are held at a time: a record may be large, and a reader may wait for its line.
BATCH = 100
#: Seconds to wait for records before looking again whether the source has ended.
TURN_SECONDS = 1.0


class Summary:
    """What the predictions of some records come to.

    records, predicted: How many records came, and how many got a prediction.
    outside: How many values were outside their public range, by feature.
    columns: Names between line number and reason; the first is empty without a prediction.
    """

    def __init__(self, model: Rule) -> None:
        self._model, self._confusion, self._errors = model, Confusion(), Errors()
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
        for said in predict_records(self._model, records, self.outside):
            self.records += 1
            self.predicted += said.value is not None
            if said.value is not None and said.response is not None:
                self._count(said.response, said.value)
            values: list[object] = [said.value, said.label, said.probability]
            yield values[: len(self.columns)], said.reason

    def lines(self) -> Iterator[str]:
        """Yield the summary for people; nothing of responses if none is known."""
        without = self.records - self.predicted
        tail = f", {without} without (the output says why)" if without else ""
        said = counted(self.predicted, "prediction")
        yield f"{counted(self.records, 'record')}: {said}{tail}"
        if self.outside:
            yield clipped_line(self.outside)
        yield from self._of_classes()
        yield from self._of_numbers()

    def _count(self, response: float, value: float) -> None:
        """Count a prediction of a record whose response is known."""
        if isinstance(self._model, LinearClassifier):
            self._confusion.add(response, 1.0 if value >= 0 else -1.0)
            return
        low, high = self._model.file.response.ends
        self._errors.add(response, value)
        self._beyond += not low <= response <= high

    def _of_classes(self) -> Iterator[str]:
        if self._confusion.accuracy is None:
            return
        balanced = self._confusion.balanced_accuracy
        yield (
            f"accuracy {self._confusion.accuracy:.4f}, balanced accuracy "
            f"{'unknown (records of one class only)' if balanced is None else f'{balanced:.4f}'}, "
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
                f"outside the public range of the study: {self._beyond} of these responses, scored "
                "as they are written, while learning clips such values to the range"
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
            put([slot.line, *values, _reason(slot, reason)])
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


def _reason(slot: Slot, reason: str | None) -> str | None:
    return reason if slot.fault is None else slot.fault.removeprefix(f"line {slot.line}: ")
