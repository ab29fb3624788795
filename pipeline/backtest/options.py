"""Event time: columns of times to seconds since 1970, in the order of arrival, and delays.

A time is read as `produce --event-time` reads it, to the millisecond.
"""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import ConfigError, DataError
from pipeline.methods import require_live, require_noise, task_of
from pipeline.records.batch import Batch, Column
from pipeline.records.encoder import Block
from pipeline.records.values import LARGEST_NUMBER, MILLISECONDS_FROM, milliseconds_of
from pipeline.study.model import Study, require_no_level_column
from pipeline.study.versions import simulated, without_privacy
from pipeline.types import Integers, Vector
from pipeline.words import SECONDS

#: Seconds since 1970 at the ends of the years 1 and 9500.
EARLIEST, LATEST = -62_135_596_800, 237_000_000_000


def seconds_of(text: str, option: str) -> float:
    """Return a time that a person wrote, RFC 3339 or seconds since 1970.

    ConfigError if it is neither.
    """
    found = _second(text)
    if math.isnan(found):
        raise ConfigError(
            f"{option}: it must be a time with a zone, such as 2013-06-01T00:00:00Z, or seconds "
            "since 1970"
        )
    return found


class EventTime:
    """The times of a history, batch by batch.

    Records arrive in the order of the history. One whose time lies before that of an earlier
    record is late: refused, or counted as arriving at the newest time before it. One without a
    readable time keeps its slot at that time too, as a record that cannot be used.

    keep_late: Whether late records are kept.

    newest: The newest time so far, seconds since 1970; None before the first.
    late, untimed: How many records were late, and had no readable time.
    """

    def __init__(self, column: str, *, keep_late: bool = False) -> None:
        self.column, self._keep_late = column, keep_late
        self.newest: float | None = None
        self.late = self.untimed = self._rows = 0

    def read(self, slots: Batch) -> tuple[Vector, Vector]:
        """Return the times of the next records, and the same with NaN where there is none.

        Returns: Arrival times, shape (n,), finite and never falling, and which of them were read.

        Raises DataError if records are late and not kept, or nothing says when the history begins.
        """
        found = self._parse(slots.columns([self.column])[self.column])
        found[list(slots.lost)] = np.nan
        known = ~np.isnan(found)
        wild = np.flatnonzero(known & ~((found >= EARLIEST) & (found <= LATEST)))
        if len(wild):
            raise DataError(
                f"record {self._rows + int(wild[0]) + 1}: column {self.column!r} is outside the "
                "years 1 to 9500; numbers are seconds or milliseconds since 1970, and the data "
                "owner must convert other units"
            )
        self.untimed += int(np.count_nonzero(~known)) - len(slots.lost)
        if self.newest is None:
            if not known.any():
                raise DataError(
                    f"column {self.column!r}: none of the first {len(found)} records has a time; "
                    "the data owner must give RFC 3339 texts with a zone, or seconds since 1970"
                )
            self.newest = float(found[known][0])
        arrived = np.maximum.accumulate(np.append(self.newest, np.where(known, found, -np.inf)))
        late = np.flatnonzero(known & (found < arrived[:-1]))
        if len(late) and not self._keep_late:
            raise DataError(
                f"record {self._rows + int(late[0]) + 1}: the time in column {self.column!r} lies "
                "before that of an earlier record; the data owner must sort the history by it, or "
                "keep late records (--late keep): they then count as arriving when they stand"
            )
        self.late += len(late)
        self._rows += len(found)
        self.newest = float(arrived[-1])
        return arrived[1:], np.where(known, found, np.nan)

    def _parse(self, column: Column) -> Vector:
        values = column.values
        if isinstance(values, list) or values.dtype.kind == "b":
            return np.array([_second(value) for value in column.objects()])
        if values.dtype.kind == "M":
            # without a zone of its own it is UTC
            stamps = values.astype("datetime64[ms]")
            return np.where(np.isnat(stamps), np.nan, stamps.astype(np.int64) / 1000)
        numbers = column.numbers
        known = np.isfinite(numbers) & (np.abs(numbers) <= LARGEST_NUMBER) & ~column.missing
        scaled = np.where(np.abs(numbers) >= MILLISECONDS_FROM, numbers, numbers * 1000)
        return np.where(known, np.floor(scaled) / 1000, np.nan)


def _second(value: object) -> float:
    """Return seconds since 1970, NaN if it is no time."""
    found = milliseconds_of(value)
    return math.nan if found is None else found / 1000


@dataclass(frozen=True, slots=True)
class Delay:
    """How late something comes.

    mean: >= 0, in seconds of event time or in records of the history.
    of: "seconds" or "records".
    exponential: Whether each delay is drawn from an exponential law with this mean; else all are
        equal.
    """

    mean: float = 0.0
    of: str = "records"
    exponential: bool = False

    def draw(self, rng: np.random.Generator) -> float:
        """Return the next delay."""
        return float(rng.exponential(self.mean)) if self.exponential and self.mean else self.mean

    def __str__(self) -> str:
        return f"{self.mean:g} {self.of}{', exponential' if self.exponential else ''}"


def delay_of(text: str, option: str) -> Delay:
    """Return the delay that a person wrote: "30s", "12h", "500 records", "exponential:2.5s".

    ConfigError if it is none.
    """
    units = "|".join((*SECONDS, "seconds?", "r", "records?"))
    pattern = rf"(exponential:|constant:)?([0-9.]+(?:e[+-]?[0-9]+)?) ?({units})?"
    found = re.fullmatch(pattern, text.strip())
    try:
        mean = float(found[2]) if found else -1.0
    except ValueError:
        mean = -1.0
    if found is None or not 0 <= mean <= 1e12 or (found[3] is None and mean > 0):
        raise ConfigError(
            f"{option}: {text!r} is not a delay; write a number with its unit, such as 30s (s, m, "
            "h or d) or 500 records, and exponential: before it for random ones"
        )
    unit = found[3] or "r"
    if unit.startswith("r"):
        return Delay(mean, "records", exponential=found[1] == "exponential:")
    seconds = mean * SECONDS[unit[0]]
    return Delay(seconds, "seconds", exponential=found[1] == "exponential:")


#: A client id is a Kafka key and a name in every release.
LONGEST_NAME = 200
#: Slices of the public range that stand for the classes of a number or a count.
SLICES = 10
#: Stands for the client of a slot that holds no record.
_LOST = object()
RULES = "round-robin, blocks:N, range:FEATURE or dirichlet:ALPHA"


class Clients(ABC):
    """Deals records to clients.

    names: The clients by number, in the order in which they were first seen.
    columns: Columns that it reads beside the study's.
    """

    columns: tuple[str, ...] = ()

    def __init__(self) -> None:
        self.names: list[str] = []

    @abstractmethod
    def of(self, slots: Batch, block: Block) -> Integers:
        """Return the numbers of the clients of the next records, shape (n,)."""


class ByColumn(Clients):
    """A column names the client; a slot without a record belongs to the client before it."""

    def __init__(self, column: str) -> None:
        super().__init__()
        self._column, self.columns = column, (column,)
        self._numbers: dict[str, int] = {}
        self._last: int | None = None

    def of(self, slots: Batch, block: Block) -> Integers:
        """As `Clients.of`; DataError if a name is too long."""
        values = list(slots.columns([self._column])[self._column].objects())
        for at in slots.lost:
            values[at] = _LOST
        try:
            numbers = {value: self._number(value) for value in dict.fromkeys(values)}
            found = [numbers[value] for value in values]
        except TypeError:  # a list or an object of JSON is no key
            found = [self._number(value) for value in values]
        codes = np.array(found, dtype=np.int64)
        if slots.lost:
            codes = self._filled(codes)
        self._last = int(codes[-1]) if len(codes) else self._last
        return codes

    def _filled(self, codes: Integers) -> Integers:
        """Give each slot without a record to the client before it."""
        if codes[0] < 0:
            codes[0] = self._named("client") if self._last is None else self._last
        named_at = np.where(codes >= 0, np.arange(len(codes)), 0)
        filled: Integers = codes[np.maximum.accumulate(named_at)]
        return filled

    def _number(self, value: object) -> int:
        if value is _LOST:
            return -1
        if isinstance(value, float) and value.is_integer():
            value = int(value)  # a column of whole numbers with gaps comes as floats
        missing = value is None or value == "" or value != value  # noqa: PLR0124  NaN
        return self._named("(no name)" if missing else str(value))

    def _named(self, name: str) -> int:
        if len(name) > LONGEST_NAME:
            raise DataError(
                f"column {self._column!r}: a client's name has more than {LONGEST_NAME} characters"
            )
        number = self._numbers.setdefault(name, len(self.names))
        if number == len(self.names):
            self.names.append(name)
        return number


class Dealt(Clients):
    """A rule deals records to a fixed number of clients.

    - `round-robin`: in turn.
    - `blocks:N`: N records to each client in turn.
    - `range:FEATURE`: by equal slices of a number's encoded range, so that clients differ in it.
    - `dirichlet:ALPHA`: each class is shared out by a draw of its own from a symmetric Dirichlet
      law; a small ALPHA gives clients with hardly more than one class. For numbers and counts
      tenths of the public range stand for classes. Source: Hsu, Qi and Brown 2019.

    names: The clients, at least one.
    rule: One of the above.
    seed: Of dirichlet, >= 0.
    study: Its public ranges say where a slice begins.

    Raises ConfigError if the rule is none of these.
    """

    def __init__(self, names: list[str], rule: str, *, seed: int, study: Study) -> None:
        super().__init__()
        self.names, self._count, self._dealt = names, len(names), 0
        self._rng = np.random.default_rng([seed, 0xD1])
        self._kind, _, given = rule.partition(":")
        self._length, self._column, self._study = 1, 0, study
        numbers = [name for name, f in study.data.features.items() if f.kind == "number"]
        self._ends = np.zeros(1), np.ones(1)
        self._shares = np.zeros((SLICES, len(names)))
        if self._kind == "blocks" and re.fullmatch(r"[1-9][0-9]{0,11}", given):
            self._length = int(given)
        elif self._kind == "range" and given in numbers:
            encoding = study.encoding
            self._column, self._ends = encoding.column_of(given), encoding.ends
        elif self._kind == "dirichlet" and (alpha := _positive(given)):
            shares = self._rng.dirichlet(np.full(len(names), alpha), SLICES)
            self._shares = np.cumsum(shares, axis=1)
        elif rule != "round-robin":
            raise ConfigError(
                f"--by: {rule!r} is not a rule; allowed: {RULES}, with N >= 1, a number among the "
                "features and ALPHA > 0"
            )

    def of(self, slots: Batch, block: Block) -> Integers:
        """As `Clients.of`; a record that cannot be used counts as one at the middle."""
        count, usable = self._count, block.reasons.codes == 0
        if self._kind == "range":
            low, high = (float(end[self._column]) for end in self._ends)
            return _slices(block.arrays.features[:, self._column], usable, (low, high), count)
        if self._kind == "dirichlet":
            response = self._study.data.response
            ends = response.ends if response.kind == "count" else (-1.0, 1.0)
            groups = _slices(block.arrays.responses, usable, ends, SLICES)
            draws = self._rng.random(len(slots))
            found: Integers = (draws[:, None] > self._shares[groups]).sum(axis=1)
            return np.minimum(found, count - 1)
        numbers = self._dealt + np.arange(len(slots), dtype=np.int64)
        self._dealt += len(slots)
        return numbers // self._length % count


def _slices(
    values: NDArray[Any], usable: NDArray[np.bool_], ends: tuple[float, float], count: int
) -> Integers:
    """Return which slice of a range each value lies in; the middle one where there is none."""
    low, high = ends
    share = np.where(usable, (values - low) / (high - low), 0.5)
    found: Integers = np.clip(np.floor(share * count), 0, count - 1).astype(np.int64)
    return found


def _positive(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if 0 < number <= 1e6 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How a backtest is run.

    client_column: Column that says whose record it is; default: all belong to one client.
    split, by: Deal records to so many clients by a rule instead; see `clients.Dealt`.
    event_time: Column with the time of each record, RFC 3339 or seconds since 1970.
    late: What becomes of a record whose time lies before an earlier one's: "refuse" or "keep".
    start, end: Only records with an event time from `start` on and before `end`.
    delay: Of the network, each way: "30s", "exponential:30s" or "500 records".
    label_delay: How long after a record its response is known: "1000 records" or "3600s".
    freeze: Also score the estimate of this time, which learns no more, on all later records;
        without event time the number of a record.
    without_privacy: Run the same study without noise.
    simulate: Draw noise of the same size from this seed: repeatable, and it protects nobody.
    shuffle: Take the records in a random order of this seed, all of them in memory at once.
    seed: Of delays and of the rule "dirichlet".
    bins: The most bins of time, in [2, 1000].
    pooled: Whether to fit all records without privacy as well, and see which intervals hold that.
    beside: Kinds of methods that run over files alone, to score on the same records.

    Raises ConfigError if options do not go together.
    """

    client_column: str | None = None
    split: int | None = None
    by: str = "round-robin"
    event_time: str | None = None
    late: str = "refuse"
    start: str | float | None = None
    end: str | float | None = None
    delay: str = "0"
    label_delay: str = "0"
    freeze: str | float | None = None
    without_privacy: bool = False
    simulate: int | None = None
    shuffle: int | None = None
    seed: int = 0
    bins: int = 60
    pooled: bool = True
    beside: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuse options that do not go together."""
        timed = self.event_time is not None
        if self.client_column is not None and self.split is not None:
            raise ConfigError("--client-column and --split: give one of the two")
        if self.split is not None and not 1 <= self.split <= 100_000:
            raise ConfigError("--split: it must be in [1, 100000]")
        if self.split is None and self.by != "round-robin":
            raise ConfigError("--by: it says how --split deals records; give both")
        if self.late not in ("refuse", "keep"):
            raise ConfigError('--late: it must be "refuse" or "keep"')
        if not timed and (self.start is not None or self.end is not None):
            raise ConfigError("--from and --to need --event-time, the column with the times")
        if self.without_privacy and self.simulate is not None:
            raise ConfigError("--without-privacy and --simulate: give one of the two")
        if not 2 <= self.bins <= 1000:
            raise ConfigError("--bins: it must be in [2, 1000]")
        if min(self.seed, self.simulate or 0, self.shuffle or 0) < 0:
            raise ConfigError("--seed, --simulate and --shuffle: they must be 0 or more")
        if timed and self.shuffle is not None:
            raise ConfigError(
                "--shuffle and --event-time: records with times have an order; give one of the two"
            )
        if self.network.mean and (self.network.of == "seconds") != timed:
            raise ConfigError(
                "--delay: it is in seconds where there is an --event-time, and in records where "
                "there is none"
            )
        if self.labels.exponential:
            raise ConfigError("--label-delay: all labels are equally late; leave exponential: out")
        if self.labels.of == "seconds" and not timed:
            raise ConfigError("--label-delay: in seconds it needs --event-time; give records")

    @property
    def network(self) -> Delay:
        """The network's delay."""
        return delay_of(self.delay, "--delay")

    @property
    def labels(self) -> Delay:
        """The labels' delay."""
        return delay_of(self.label_delay, "--label-delay")

    def clock(self, value: str | float | None, option: str) -> float | None:
        """Return a time of an option, seconds since 1970, or the number of a record.

        Raises ConfigError if it is no time.
        """
        if value is None or isinstance(value, (int, float)):
            return value
        if self.event_time is not None:
            return seconds_of(value, option)
        if not value.isdecimal():
            raise ConfigError(f"{option}: without --event-time it must be the number of a record")
        return float(value)

    def study_of(self, study: Study) -> Study:
        """Return the study that is run.

        Raises ConfigError if its kind has no live stream, or none without noise, or its noise
        cannot be simulated.
        """
        require_live(study, "a backtest")
        require_no_level_column(study.privacy, "a backtest")
        if self.without_privacy:
            found = without_privacy(study)
            require_noise(found)
            return found
        return study if self.simulate is None else simulated(study, self.simulate)

    def clients_of(self, study: Study) -> Clients:
        """Return who the records belong to."""
        if self.client_column is not None:
            return ByColumn(self.client_column)
        names = ["client"]
        if self.split is not None:
            # a method may name the first of them
            named = task_of(study).clients[: self.split]
            names = [*named, *(f"client-{n}" for n in range(len(named), self.split))]
        return Dealt(names, self.by, seed=self.seed, study=study)
