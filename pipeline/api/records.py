"""Records as callers hold them (a file, a frame, arrays) to encoded rows with their clients."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from pipeline.backtest.history import table_batches
from pipeline.errors import ConfigError, DataError, RecordError
from pipeline.records.columns import names_of
from pipeline.records.encoder import Encoder, Row
from pipeline.records.features import there
from pipeline.records.values import Record
from pipeline.release.quality import worded
from pipeline.release.task import Task
from pipeline.words import counted
from producers.sources import open_once

#: The client of records that name none, and of those whose column is empty.
CLIENT, NO_NAME = "client", "(no name)"
#: Encoded records with their clients, in the order of the source; None for an empty slot.
Rows: TypeAlias = Iterator[tuple[str, Row | None]]


class Records:
    """The encoded records of one source, read once.

    data: The path of a .csv, .jsonl, .ndjson or .parquet file, "-" for standard input, a data
        frame, a mapping from names to columns; or, with `y`, an array (n, p) in the study's order
        of features, or a data frame without the response.
    y: The responses, shape (n,), where `data` does not hold them.
    client_column: Column that says whose record it is; None: all are one client's.
    form: What standard input holds: "csv" or "jsonl".

    count, faults: Record slots that have been read, and those without a sound record.
    name: What messages call the source.
    label: A response as the records have it.
    """

    def __init__(
        self,
        task: Task,
        data: Any,
        y: Any = None,
        *,
        client_column: str | None = None,
        form: str = "csv",
    ) -> None:
        self._encoder = Encoder(task.study)
        self._data, self._y, self._form = data, y, form
        self._client_column = client_column
        self.count = self.faults = 0
        self.label: object = ""
        self._reasons: Counter[str] = Counter()
        self.name = str(data) if self._is_file else "the table"

    @property
    def clipped(self) -> Counter[str]:
        """How many values were cut to their public range, by column: counted from raw data."""
        return self._encoder.clipped

    @property
    def _is_file(self) -> bool:
        return isinstance(self._data, (str, Path))

    def __iter__(self) -> Rows:
        """Yield the rows.

        Raises DataError if the source cannot be read, lacks a column, or has columns of different
        lengths; ConfigError if it is Parquet and pyarrow is not installed, or `y` goes with a file.
        """
        client = CLIENT
        for record in self._of_file() if self._is_file else self._of_table():
            self.count += 1
            # nobody can tell whose a lost record was: it takes a slot of the client before it
            if record is not None and self._client_column is not None:
                client = _name(record.get(self._client_column))
            row = None if record is None else self._encoded(record)
            self.faults += row is None
            yield client, row

    def check(self) -> None:
        """Refuse a source that has been read and had nothing to use.

        DataError if it held no records, or none that can be used.
        """
        if self.count == 0:
            raise DataError(f"{self.name} holds no records")
        if self.faults == self.count:
            kinds = worded(self._reasons) or "they cannot be read"
            raise DataError(
                f"{self.name}: none of its {counted(self.count, 'record')} could be used: {kinds}. "
                "The study file must declare what its values are, or the records must be corrected"
            )

    @property
    def faults_line(self) -> str:
        """How many records could not be used, in words; empty if all could."""
        if not self.faults:
            return ""
        kinds = f": {worded(self._reasons)}" if self._reasons else ""
        return (
            f"{self.faults} of {counted(self.count, 'record')} could not be used, and such slots "
            f"stayed empty{kinds}"
        )

    def _encoded(self, record: Record) -> Row | None:
        try:
            row = self._encoder.encode(record)
        except RecordError as fault:
            # it names a column, never a value
            self._reasons[str(fault)] += 1
            return None
        self.label = self.label or record[self._encoder.response.name]
        return row

    def _of_file(self) -> Iterator[Record | None]:
        if self._y is not None:
            raise ConfigError("y: a file holds the responses itself; the caller must leave y out")
        source = open_once(str(self._data), form=self._form)
        try:
            if source.columns is not None:
                self._encoder.check_columns(source.columns)
                if self._client_column is not None and self._client_column not in source.columns:
                    raise DataError(
                        f"--client-column: the source has no column {self._client_column!r}"
                        f"{there(source.columns, [*self._encoder.columns, self._client_column])}"
                    )
            while not source.ended:
                for slot in source.read(1000, 1.0):
                    if slot.record is None:
                        self._reasons[slot.kind] += 1
                    yield slot.record
        finally:
            source.close()

    def _of_table(self) -> Iterator[Record]:
        encoder, others = self._encoder, list[str]()
        if self._y is None and isinstance(self._data, np.ndarray | list | tuple):
            raise DataError(
                "an array holds the features alone: give y, the values of "
                f"{encoder.response.name!r}. A list of records is made a table by pandas.DataFrame"
            )
        table = self._data if self._y is None else self._joined()
        if self._client_column is not None:
            others = [self._client_column]
        names = list(dict.fromkeys([*encoder.columns, *others]))
        for slots, *_ in table_batches(table, names):
            lists = [column.objects() for column in slots.columns(names).values()]
            for values in zip(*lists, strict=True):
                yield dict(zip(names, values, strict=True))

    def _joined(self) -> dict[str, Any]:
        """Return the columns of features and responses that came apart."""
        names, response = self._encoder.features.columns, self._encoder.response.name
        if (given := names_of(self._data)) is not None:
            return {**{name: self._data[name] for name in given}, response: self._y}
        array = np.asarray(self._data)
        if array.ndim != 2 or array.shape[1] != len(names):
            raise DataError(
                f"X has shape {array.shape}; the study needs (n, {len(names)}) with the features "
                f"in this order: {', '.join(names)}"
            )
        return {**dict(zip(names, array.T, strict=True)), response: self._y}


def _name(value: object) -> str:
    # NaN is what a frame has for a missing name
    missing = value is None or value != value  # noqa: PLR0124
    return ("" if missing else str(value)) or NO_NAME
