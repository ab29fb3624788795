"""A history in encoded batches placed in time, and the windows of its clients as they close."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from pipeline.backtest.options import EventTime, Options
from pipeline.errors import ConfigError, DataError
from pipeline.records.batch import Batch, Column, Columns
from pipeline.records.columns import names_of
from pipeline.records.encoder import Arrays, Block, Encoder, Stretch
from pipeline.records.features import LAST, there
from pipeline.release.policy import Growth
from pipeline.study.model import Study
from pipeline.study.reference import MOST_SEEN
from pipeline.study_file.edit import Like, like
from pipeline.types import Integers, Matrix, Vector
from producers.sources import read_batches


@dataclass(frozen=True, slots=True)
class Part:
    """The next records of a history, encoded and placed in time.

    first: Number of the first record in the whole history, from 0.
    clock: When each record arrives, shape (n,), never falling: seconds since 1970, or its number.
    clients: Number of the client of each record, shape (n,).
    features, responses, written, usable: As in `Block`.
    """

    first: int
    clock: Vector
    clients: Integers
    features: Matrix
    responses: Vector
    written: Vector
    usable: NDArray[np.bool_]

    def between(self, begin: int, end: int) -> Part:
        """Return some of its records, by their place in it."""
        rows = slice(begin, end)
        return Part(
            self.first + begin, self.clock[rows], self.clients[rows], self.features[rows],
            self.responses[rows], self.written[rows], self.usable[rows],
        )  # fmt: skip


@dataclass(frozen=True, slots=True, order=True)
class Moment:
    """A point of the history: a time, and which record was the last before it.

    Of two things at the same time the one that an earlier record caused comes first; what record
    i causes comes after the prediction of record i and before that of record i + 1.
    """

    clock: float
    cause: int

    def later(self, by: float) -> Moment:
        """Return a later moment with the same cause."""
        return Moment(self.clock + by, self.cause)


@dataclass(frozen=True, slots=True)
class Opened:
    """A window whose first block is full, or that closes before: at the newest model by then.

    size: How many slots it may hold.
    """

    at: Moment
    client: int
    size: int


@dataclass(frozen=True, slots=True)
class Closed:
    """A window that is closed, with its slots."""

    at: Moment
    client: int
    rows: Arrays


@dataclass(slots=True)
class _Open:
    """A window that fills; begun: as `Windows.begun` was when it had a model, None before."""

    opened: float
    size: int
    begun: bool | None = None
    taken: int = 0
    last: int = 0
    features: list[Matrix] = field(default_factory=list)
    responses: list[Vector] = field(default_factory=list)


class Windows:
    """The open windows of all clients.

    growth: How large they are.
    seconds: A window closes this long after its first slot; None: only when it is full.

    begun: Whether clients have a model by now: what they release at one lets windows grow.
    """

    def __init__(self, growth: Growth, seconds: float | None) -> None:
        self._growth, self._seconds, self.begun = growth, seconds, False
        self._open: dict[int, _Open] = {}
        self._before: dict[int, int] = {}

    @property
    def room(self) -> int:
        """How many records may come before another than the last of them closes a full window."""
        rooms = [held.size - held.taken for held in self._open.values()]
        return min([self._growth.records, *rooms])

    def cut(self, part: Part) -> list[Opened | Closed]:
        """Take records; return the windows that open and close by the last of them, in order."""
        order = np.argsort(part.clients, kind="stable")
        bounds = np.flatnonzero(np.diff(part.clients[order])) + 1
        found: list[Opened | Closed] = []
        for rows in np.split(order, bounds) if len(order) else []:
            found += self._fill(part, int(part.clients[rows[0]]), rows)
        if self._seconds is not None and len(part.clock):
            found += self._close_by(float(part.clock[-1]))
        found.sort(key=lambda window: window.at)
        return found

    def rest(self, at: Moment) -> Iterator[Opened | Closed]:
        """Close what is left, in the order of the first slots."""
        for step, client in enumerate(sorted(self._open, key=lambda one: self._open[one].opened)):
            yield from self._end(client, Moment(at.clock, at.cause + step))

    def _fill(self, part: Part, client: int, rows: Integers) -> Iterator[Opened | Closed]:
        clock, done = part.clock[rows], 0
        while done < len(rows):
            held = self._open.get(client)
            if held is None:
                size = self._growth.next_window(self._before.get(client, 0))
                held = self._open[client] = _Open(float(clock[done]), size)
            until = held.size if held.begun is not None else self._growth.records
            full = end = min(done + until - held.taken, len(rows))
            if self._seconds is not None:
                deadline = held.opened + self._seconds
                end = max(done, min(full, int(np.searchsorted(clock, deadline))))
                if not held.taken:
                    end = max(end, done + 1)  # a window has its first slot, however short it is
            self._take(held, part, rows[done:end])
            done = end
            if held.taken == until:
                at = Moment(float(clock[end - 1]), held.last)
                yield from self._begin(client, at)
                if held.taken == held.size:
                    yield self._close(client, at)
            elif end < full and self._seconds is not None:
                yield from self._end(client, Moment(held.opened + self._seconds, held.last))

    def _take(self, held: _Open, part: Part, rows: Integers) -> None:
        if not len(rows):
            return
        held.taken += len(rows)
        held.last = part.first + int(rows[-1])
        usable = part.usable[rows]
        held.features.append(np.where(usable[:, None], part.features[rows], 0.0))
        held.responses.append(np.where(usable, part.responses[rows], np.nan))

    def _close_by(self, now: float) -> Iterator[Opened | Closed]:
        seconds = self._seconds or 0.0
        for client in sorted(c for c, held in self._open.items() if held.opened + seconds <= now):
            held = self._open[client]
            yield from self._end(client, Moment(held.opened + seconds, held.last))

    def _begin(self, client: int, at: Moment) -> Iterator[Opened]:
        held = self._open[client]
        if held.begun is None:
            held.begun = self.begun
            yield Opened(at, client, held.size)

    def _end(self, client: int, at: Moment) -> Iterator[Opened | Closed]:
        yield from self._begin(client, at)
        yield self._close(client, at)

    def _close(self, client: int, at: Moment) -> Closed:
        held = self._open.pop(client)
        if held.begun:
            blocks = -(-held.taken // self._growth.records)
            self._before[client] = self._before.get(client, 0) + blocks * self._growth.records
        rows = Arrays(np.concatenate(held.features), np.concatenate(held.responses))
        return Closed(at, client, rows)


#: The path of a file, or a table as of `names_of`.
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
    faults: How many records cannot be read, by the first column that cannot; under `LINE`, how many
        slots hold no record at all.
    clipped: How many values of each feature of sound records were clipped, shape (p,).
    classes: Sound records with a negative and with a positive response.
    span: When the first and the last record arrived; None before any.
    share: How much of the history has been read, 0 to 1; None where that is not known.
    """

    def __init__(self, study: Study, options: Options, history: History, form: str) -> None:
        self._history, self._form, self._shuffle = history, form, options.shuffle
        self._encoder = Encoder(study)
        self._columns = (*self._encoder.features.columns, self._encoder.response.name)
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
        self.clipped = np.zeros(len(self._encoder.features.names), dtype=np.int64)
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
            slots = batch.slots
            self._read += len(slots)
            self.share = batch.share
            block = self._encoder.block(slots)
            usable, inside = block.reasons.codes == 0, np.ones(len(slots), dtype=bool)
            if self._time is None:
                clock = self.records + np.arange(len(slots), dtype=np.float64)
            else:
                clock, found = self._time.read(slots)
                if self._fades and clock[0] < 0:
                    raise DataError(
                        "estimator.forgetting in seconds counts from 1970, and the history begins "
                        "before; the operator must forget by records"
                    )
                usable = usable & ~np.isnan(found)
                inside = self._within(clock)
            part = self._part(slots, block, clock, usable, inside)
            self.records += len(part.clock)
            if len(part.clock):
                first, last = float(part.clock[0]), float(part.clock[-1])
                self.span = (self.span[0] if self.span else first, last)
            self.unusable += int(np.count_nonzero(~part.usable))
            for index, sign in enumerate((-1.0, 1.0)):
                held = part.usable & (part.responses == sign)
                self.classes[index] += int(np.count_nonzero(held))
            self.clipped += block.beyond[usable & inside, :-1].sum(axis=0)
            wrong = block.reasons.columns[inside & (block.reasons.codes != 0)]
            for place, count in zip(*np.unique(wrong, return_counts=True), strict=True):
                self.faults[self._column(int(place))] += int(count)
            yield part
        self._check()

    def usable_records(self) -> Iterator[Arrays]:
        """Yield the sound records of the history, encoded."""
        for part in self.parts():
            yield Arrays(part.features[part.usable], part.responses[part.usable])

    def _part(
        self,
        slots: Batch,
        block: Block,
        clock: NDArray[np.float64],
        usable: NDArray[np.bool_],
        inside: NDArray[np.bool_],
    ) -> Part:
        clients = self._clients.of(slots, block)
        chosen: Any = slice(None) if inside.all() else inside
        return Part(
            first=self.records,
            clock=clock[chosen],
            clients=clients[chosen],
            features=block.arrays.features[chosen],
            responses=block.arrays.responses[chosen],
            written=block.written[chosen],
            usable=usable[chosen],
        )

    def _column(self, place: int) -> str:
        """Return the name of a column by its place in `Reasons.columns`."""
        if place < 0:
            return LINE
        return self._encoder.response.name if place == LAST else self._encoder.features.names[place]

    def _within(self, clock: NDArray[np.float64]) -> NDArray[np.bool_]:
        inside = np.ones(len(clock), dtype=bool)
        if self._start is not None:
            inside &= clock >= self._start
        if self._end is not None:
            inside &= clock < self._end
        return inside

    def _batches(self) -> Iterator[Stretch]:
        columns = [*self._columns, *self._clients.columns]
        if self._time is not None:
            columns.append(self._time.column)
        columns = list(dict.fromkeys(columns))
        found = _batches(self._history, columns, self._form)
        return found if self._shuffle is None else shuffled(found, columns, self._shuffle)

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


def _batches(history: History, columns: Sequence[str], form: str) -> Iterator[Stretch]:
    if isinstance(history, (str, Path)):
        return read_batches(str(history), columns, form=form)
    return table_batches(history, columns)


def seen_in(study: Study, options: Options, history: History, form: str) -> Like:
    """Return what a plan by the records of a history is of, as `study check --sample` has it.

    In the order of the file, whatever clients and order a backtest gives them. A study without
    features needs none of them.

    Raises DataError as `Reading.parts`.
    """
    if not study.data.features:
        return study, None
    alone = replace(options, client_column=None, split=None, by="round-robin", shuffle=None)
    reading, found = Reading(study, alone, history, form), list[Arrays]()
    for part in reading.usable_records():
        found.append(part)
        if reading.records >= MOST_SEEN:
            break
    features = np.concatenate([part.features for part in found])
    return like(study, features, np.concatenate([part.responses for part in found]))


def worded_faults(faults: Mapping[str, int]) -> str:
    """Return in how many records which columns cannot be read, the worst first; "" of none."""
    worst = sorted(faults, key=lambda name: -faults[name])
    named = {name: "the line" if name == LINE else f"column {name!r}" for name in worst}
    return ", ".join(f"{named[name]} cannot be read in {faults[name]}" for name in worst)


def shuffled(batches: Iterator[Stretch], names: Sequence[str], seed: int) -> Iterator[Stretch]:
    """Yield the records of a history in a random order: the same one for a seed and a number."""
    every = list(batches)
    if not every:
        return
    starts = np.cumsum([0, *(len(batch.slots) for batch in every)])
    order = np.random.default_rng([seed, int(starts[-1])]).permutation(starts[-1])
    places = np.empty_like(order)
    places[order] = np.arange(len(order))
    parts = [batch.slots.columns(names) for batch in every]
    columns = {name: Column.shuffled([part[name] for part in parts], order) for name in names}
    lost = {
        int(places[start + at]): why
        for start, batch in zip(starts, every, strict=False)
        for at, why in batch.slots.lost.items()
    }
    whole = Columns(columns, len(order), lost)
    for first in range(0, len(order), RECORDS):
        some = whole.part(slice(first, first + RECORDS))
        yield Stretch(some, (first + len(some)) / len(order))


def table_batches(table: History, columns: Sequence[str]) -> Iterator[Stretch]:
    """Yield a table, as of `names_of`, in batches.

    DataError if it is neither, lacks a column, or its columns have different lengths.
    """
    names = names_of(table)
    if names is None:
        raise DataError(
            "records come as the path of a file, a table of pandas, polars or Arrow, or a mapping "
            "from names to columns"
        )
    missing = [name for name in columns if name not in names]
    if missing:
        lacks = ", ".join(map(repr, missing))
        raise DataError(f"the table has no column {lacks}{there(names, columns, of_file=False)}")
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
        part = {name: Column.of(v[start : start + RECORDS]) for name, v in found.items()}
        count = min(RECORDS, total - start)
        yield Stretch(Columns(part, count), (start + count) / total)


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
