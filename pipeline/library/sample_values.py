"""The values of a sample file: which records can be used, and what is wrong with the others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from pipeline.errors import DataError, RecordError
from pipeline.methods.offline import offline_method
from pipeline.records.features import Features, response_of
from pipeline.release.quality import Trial, refusal_of, worded
from pipeline.release.task import Task
from pipeline.types import Matrix, Vector
from producers.sources.tables import read_batches

#: So many records of a sample are read.
RECORDS = 200_000


@dataclass(frozen=True, slots=True)
class Sample:
    """What a file holds.

    values, responses: Of the usable records, shapes (n, k) and (n,); responses are encoded, and NaN
        in a file without them.
    read: How many records there are.
    faults: How many values have which fault. The words name a column, never a value.
    outside: How many values lie outside their range, by column.
    refused: Why `veilstream produce` will refuse such a source; empty if it will not.
    """

    values: Matrix
    responses: Vector
    read: int
    faults: Counter[str]
    outside: Counter[str]
    refused: str


def read_sample(task: Task, path: str, form: str = "csv") -> Sample:
    """Read a file with the features of a study, and with its responses if it has them.

    Raises DataError if the file cannot be read, lacks a feature, or has no record that can be used.
    """
    features, response = Features.of(task.study), response_of(task.study)
    refusals, ends = {*features.refusals, *response.refusals}, task.study.data.response.ends
    parts, responses = [], [np.zeros(0)]
    # a client looks at so many of the first records, and at no others
    most, first, usable, undeclared = Trial.of(task).slots, 0, 0, 0
    faults, read, beyond = Counter[str](), 0, 0
    for batch in read_batches(path, features.names, form=form, optional=[response.name]):
        columns = [features.column(name, batch.columns[name]) for name in features.names]
        checks: list[tuple[str, Vector, Callable[[Any], object]]] = [
            (name, column, partial(features.value, name))
            for name, column in zip(features.names, columns, strict=True)
        ]
        encoded = written = np.full(len(batch), np.nan)
        if response.name in batch.columns:
            encoded, written = response.of_column(batch.columns[response.name])
            checks.append((response.name, encoded, response.of_label))
        bad, strange = batch.lost.copy(), np.zeros(len(batch), dtype=np.bool_)
        for name, column, ask in checks:
            for at in np.flatnonzero(~np.isfinite(column) & ~batch.lost).tolist():
                fault = _fault(ask, batch.columns[name][at])
                faults[fault] += 1
                bad[at], strange[at] = True, strange[at] or fault in refusals
        lost = int(np.count_nonzero(batch.lost))
        faults.update({"the line cannot be read": lost} if lost else {})
        parts.append(np.column_stack(columns)[~bad])
        responses.append(encoded[~bad])
        if task.study.data.response.kind != "class":
            with np.errstate(invalid="ignore"):
                out = (written < ends[0]) | (written > ends[1])
            beyond += int(np.count_nonzero(out & ~bad))
        tested = slice(most - first)
        first += len(bad[tested])
        usable += int(np.count_nonzero(~bad[tested]))
        undeclared += int(np.count_nonzero(strange[tested]))
        read += len(batch)
        if read >= RECORDS:
            break
    values = np.concatenate(parts) if parts else np.zeros((0, len(features.names)))
    if not len(values):
        raise DataError(
            f"{path}: none of its {read} records could be used: {worded(faults) or 'it has none'}. "
            "The operator must declare in [data] what its values are, or the data owner must "
            "correct them"
        )
    outside = features.outside(values)
    outside.update({response.name: beyond} if beyond else {})
    # what runs in `fit` alone has no clients
    live = offline_method(task.study) is None
    refused = refusal_of(task, usable, undeclared, first) if live else ""
    return Sample(values, np.concatenate(responses), read, faults, outside, refused)


def _fault(ask: Callable[[Any], object], value: object) -> str:
    try:
        ask(value)
    except RecordError as fault:
        return str(fault)
    return "a value that cannot be used"
