"""Predictions as lines, CSV or JSON, and what they come to in the end."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TextIO

from pipeline.prediction import Confusion, LinearClassifier, Prediction, predict_records
from producers.sources import Slot, Source

#: Records that are held at a time: a record may be large, and a reader may wait for its line.
BATCH = 100
#: Seconds to wait for records before looking again whether the source has ended.
TURN_SECONDS = 1.0


@dataclass(slots=True)
class Summary:
    """Counts over all records.

    Attributes
    ----------
    records, predicted
        How many records came, and how many got a prediction.
    confusion
        Of those whose class is known.
    """

    records: int = 0
    predicted: int = 0
    confusion: Confusion = field(default_factory=Confusion)

    def add(self, prediction: Prediction) -> None:
        """Count one record."""
        self.records += 1
        if prediction.decision is None:
            return
        self.predicted += 1
        if prediction.response is not None:
            self.confusion.add(prediction.response, 1.0 if prediction.decision >= 0 else -1.0)

    def lines(self) -> Iterator[str]:
        """Yield the summary for people."""
        without = self.records - self.predicted
        tail = f", {without} without (the output says why)" if without else ""
        yield f"{self.records} records: {self.predicted} predictions{tail}"
        if self.confusion.accuracy is None:
            return
        balanced = self.confusion.balanced_accuracy
        yield (
            f"accuracy {self.confusion.accuracy:.4f}, balanced accuracy "
            f"{'unknown (records of one class only)' if balanced is None else f'{balanced:.4f}'}, "
            f"of {self.confusion.total} records whose class is known"
        )


def write_predictions(
    model: LinearClassifier, source: Source, out: TextIO, *, as_json: bool
) -> Summary:
    """Write a line for each record of a source; memory does not grow with their number.

    Parameters
    ----------
    out
        Where lines go; flushed whenever the source has to be waited for.
    as_json
        JSON lines instead of CSV with a header.

    Raises
    ------
    DataError
        If the source has a header without a feature of the model, or cannot be read.
    """
    if source.columns is not None:
        model.features.check_columns(source.columns)
    probable = hasattr(model, "predict_proba")
    put = (_json_lines if as_json else _csv_lines)(out, probable=probable)
    summary = Summary()
    while not source.ended:
        slots = source.read(BATCH, TURN_SECONDS)
        predictions = predict_records(model, [slot.record for slot in slots])
        for slot, prediction in zip(slots, predictions, strict=True):
            summary.add(prediction)
            put(slot, prediction)
        out.flush()
    return summary


def _csv_lines(out: TextIO, *, probable: bool) -> Callable[[Slot, Prediction], None]:
    writer = csv.writer(out, lineterminator="\n")
    middle = ["probability"] if probable else []
    writer.writerow(["line", "decision", "class", *middle, "reason"])

    def put(slot: Slot, said: Prediction) -> None:
        chance = [said.probability] if probable else []
        writer.writerow([slot.line, said.decision, said.label, *chance, _reason(slot, said)])

    return put


def _json_lines(out: TextIO, *, probable: bool) -> Callable[[Slot, Prediction], None]:
    def put(slot: Slot, said: Prediction) -> None:
        found = {"line": slot.line, "decision": said.decision, "class": said.label}
        if probable:
            found["probability"] = said.probability
        found["reason"] = _reason(slot, said)
        out.write(json.dumps(found, allow_nan=False) + "\n")

    return put


def _reason(slot: Slot, said: Prediction) -> str | None:
    if slot.fault is None:
        return said.reason
    return slot.fault.removeprefix(f"line {slot.line}: ")
