"""Histories to parts: batches of a file or of a table in memory, encoded and placed in time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from pipeline.backtest.clock import EventTime
from pipeline.backtest.options import Options
from pipeline.backtest.windows import Part
from pipeline.errors import ConfigError, DataError
from pipeline.records.encoder import Arrays, Batch, BatchEncoder, Encoded
from pipeline.records.features import there
from pipeline.study.model import Study
from producers.sources.tables import read_batches

#: The path of a file, a data frame, or a mapping from names to columns.
History: TypeAlias = Any
#: Records of a table that are worked on at once.
RECORDS = 65_536
#: Stands in the place of a column where a whole record cannot be read.
LINE = "(line)"


def check_history(history: History, options: Options, form: str) -> None:
    """Look whether a history can be read at all, whatever a study asks of it.

    Raises DataError if it cannot be opened, holds no records, or lacks a column that the options
    name.
    """
    columns = [name for name in (options.client_column, options.event_time) if name is not None]
    # a table in memory is open, and has nothing to say without columns
    file = isinstance(history, (str, Path))
    if (file or columns) and next(_batches(history, columns, form), None) is None:
        raise _no_records()


class Reading:
    """One pass over a history: its parts, and what was counted on the way.

    study, options: What to read, and how.
    form: What standard input holds: "csv" or "jsonl".

    names: The clients by number.
    records, unusable: Record slots within the range of time, and those without a sound record.
    faults: How many records have a value that cannot be read, by column; under `LINE`, how many
        slots hold no record at all.
    clipped: How many values of each feature of sound records were clipped, shape (p,).
    classes: Sound records with a negative and with a positive response.
    span: When the first and the last record arrived; None before any.
    share: How much of the history has been read, 0 to 1; None where that is not known.
    """

    def __init__(self, study: Study, options: Options, history: History, form: str) -> None:
        self._history, self._form, self._shuffle = history, form, options.shuffle
        self._encoder = BatchEncoder(study)
        self._clients = options.clients_of(study)
        forgetting = study.estimator.forgetting
        self._fades = forgetting is not None and forgetting.of == "seconds"
        self._time: EventTime | None = None
        if options.event_time is not None:
            self._time = EventTime(options.event_time, keep_late=options.late == "keep")
        self._start = options.clock(options.start, "--from")
        self._end = options.clock(options.end, "--to")
        if self._start is not None and self._end is not None and self._start >= self._end:
            raise ConfigError("--from and --to: the first must lie before the second")
        self.names = self._clients.names
        self.records = self.unusable = self._read = 0
        self.faults: Counter[str] = Counter()
        self.clipped = np.zeros(len(study.data.features), dtype=np.int64)
        self.classes = [0, 0]
        self.span: tuple[float, float] | None = None
        self.share: float | None = None

    @property
    def late(self) -> int:
        """Records whose time lies before an earlier one's."""
        return self._time.late if self._time else 0

    @property
    def untimed(self) -> int:
        """Records without a readable time."""
        return self._time.untimed if self._time else 0

    def parts(self) -> Iterator[Part]:
        """Yield the parts of the history in order.

        DataError if it cannot be read, lacks a column, holds no records, none that can be
        used, or none in the range of time; or as `EventTime.read`.
        """
        for batch in self._batches():
            self._read += len(batch)
            self.share = batch.share
            encoded = self._encoder.encode(batch)
            usable, inside = encoded.usable, np.ones(len(batch), dtype=bool)
            if self._time is None:
                clock = self.records + np.arange(len(batch), dtype=np.float64)
            else:
                clock, found = self._time.read(batch.columns[self._time.column], batch.lost)
                if self._fades and clock[0] < 0:
                    raise DataError(
                        "estimator.forgetting in seconds counts from 1970, and the history begins "
                        "before; the operator must forget by records"
                    )
                usable = usable & ~np.isnan(found)
                inside = self._within(clock)
            part = self._part(batch, encoded, clock, usable, inside)
            self.records += len(part.clock)
            if len(part.clock):
                first, last = float(part.clock[0]), float(part.clock[-1])
                self.span = (self.span[0] if self.span else first, last)
            self.unusable += int(np.count_nonzero(~part.usable))
            for index, sign in enumerate((-1.0, 1.0)):
                held = part.usable & (part.responses == sign)
                self.classes[index] += int(np.count_nonzero(held))
            self.clipped += encoded.clipped(usable & inside)
            unread = np.count_nonzero(encoded.unread[inside], axis=0).tolist()
            faults = [(LINE, int(np.count_nonzero(batch.lost & inside)))]
            faults += zip(self._encoder.columns, unread, strict=True)
            self.faults.update({name: count for name, count in faults if count})
            yield part
        self._check()

    def usable_records(self) -> Iterator[Arrays]:
        """Yield the sound records of the history, encoded."""
        for part in self.parts():
            yield Arrays(part.features[part.usable], part.responses[part.usable])

    def _part(
        self,
        batch: Batch,
        encoded: Encoded,
        clock: NDArray[np.float64],
        usable: NDArray[np.bool_],
        inside: NDArray[np.bool_],
    ) -> Part:
        clients = self._clients.of(batch, encoded)
        chosen: Any = slice(None) if inside.all() else inside
        return Part(
            first=self.records,
            clock=clock[chosen],
            clients=clients[chosen],
            features=encoded.features[chosen],
            responses=encoded.responses[chosen],
            written=encoded.written[chosen],
            usable=usable[chosen],
        )

    def _within(self, clock: NDArray[np.float64]) -> NDArray[np.bool_]:
        inside = np.ones(len(clock), dtype=bool)
        if self._start is not None:
            inside &= clock >= self._start
        if self._end is not None:
            inside &= clock < self._end
        return inside

    def _batches(self) -> Iterator[Batch]:
        columns = [*self._encoder.columns, *self._clients.columns]
        if self._time is not None:
            columns.append(self._time.column)
        columns = list(dict.fromkeys(columns))
        found = _batches(self._history, columns, self._form)
        return found if self._shuffle is None else shuffled(found, self._shuffle)

    def _check(self) -> None:
        if not self._read:
            raise _no_records()
        if not self.records:
            raise DataError(
                f"none of its {self._read} records lies in the range of --from and --to"
            )
        if self.unusable == self.records:
            raise DataError(
                f"none of its {self.records} records could be used: "
                f"{worded_faults(self.faults) or 'they cannot be read'}. The study file must "
                "declare what its values are, or the history must be corrected"
            )


def _no_records() -> DataError:
    return DataError("the history holds no records; the data owner must name one that does")


def _batches(history: History, columns: Sequence[str], form: str) -> Iterator[Batch]:
    if isinstance(history, (str, Path)):
        return read_batches(str(history), columns, form=form)
    return table_batches(history, columns)


def worded_faults(faults: Mapping[str, int]) -> str:
    """Return in how many records which columns cannot be read, the worst first; "" of none."""
    worst = sorted(faults, key=lambda name: -faults[name])
    named = {name: "the line" if name == LINE else f"column {name!r}" for name in worst}
    return ", ".join(f"{named[name]} cannot be read in {faults[name]}" for name in worst)


def shuffled(batches: Iterator[Batch], seed: int) -> Iterator[Batch]:
    """Yield the records of a history in a random order: the same one for a seed and a number."""
    every = list(batches)
    if not every:
        return
    lost = np.concatenate([batch.lost for batch in every])
    columns = {
        name: np.concatenate([batch.columns[name] for batch in every]) for name in every[0].columns
    }
    order = np.random.default_rng([seed, len(lost)]).permutation(len(lost))
    for first in range(0, len(order), RECORDS):
        some = order[first : first + RECORDS]
        found = {name: column[some] for name, column in columns.items()}
        yield Batch(found, lost[some], (first + len(some)) / len(order))


def table_batches(table: History, columns: Sequence[str]) -> Iterator[Batch]:
    """Yield a data frame, or a mapping from names to columns, in batches.

    DataError if it is neither, lacks a column, or its columns have different lengths.
    """
    if isinstance(table, Mapping):
        names = list(table)
    elif hasattr(table, "columns") and hasattr(table, "__getitem__"):
        names = list(table.columns)
    else:
        raise DataError(
            "records come as the path of a file, a data frame, or a mapping from names to columns"
        )
    missing = [name for name in columns if name not in names]
    if missing:
        lacks = ", ".join(map(repr, missing))
        raise DataError(f"the table has no column {lacks}{there(names, missing, of_file=False)}")
    found = {name: _column(name, table[name]) for name in columns}
    shapes = {values.shape for values in found.values()}
    if len(shapes) > 1 or any(len(shape) != 1 for shape in shapes):
        said = ", ".join(f"{name!r} has shape {values.shape}" for name, values in found.items())
        raise DataError(
            "each column must hold one value for each record, and all must be of one "
            f"length; the caller must correct those of another shape: {said}"
        )
    [(total,)] = shapes
    for start in range(0, total, RECORDS):
        part = {name: values[start : start + RECORDS] for name, values in found.items()}
        count = min(RECORDS, total - start)
        yield Batch(part, np.zeros(count, dtype=bool), (start + count) / total)


def _column(name: str, values: Any) -> NDArray[Any]:
    zone = getattr(getattr(values, "dtype", None), "tz", None)
    if zone is not None:
        # times with a zone, to the same moments in UTC
        return np.asarray(values.dt.tz_convert(None))
    try:
        column = np.asarray(values)
    except ValueError:
        raise DataError(
            f"column {name!r}: it must hold one value for each record, and no lists; the "
            "caller must make a column of each value"
        ) from None
    if column.dtype == object and hasattr(values, "isna"):
        # pandas has marks of its own for missing values
        column = column.copy()
        column[np.asarray(values.isna())] = None
    return column
