"""A log folded again: where it begins and ends, with other settings, and compared.

A bound of time means, in each partition, the first release of that time or later: the replay begins
with it, or ends before it. Admissions have the time at which somebody was admitted, which may be
years behind those of a history: they count with what comes before them, or else behind them.

Settings may differ in keys of which clients know nothing: a release is made of the records, the
model and the keys that clients use; it stays what it is. Keys that only the fold or the estimate
reads may differ.

Records go in in an order that is always the same; nothing but its arguments is read or written.
"""

from __future__ import annotations

import heapq
import logging
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from pipeline.errors import ConfigError, NumericError, PayloadError
from pipeline.messages.authentic import Authenticator
from pipeline.messages.envelope import DeadLetter, rfc3339
from pipeline.messages.estimate import EstimateMessage
from pipeline.messages.release import header_of
from pipeline.methods import method_of, server_of
from pipeline.records.values import parse_rfc3339
from pipeline.release.task import Task
from pipeline.stream.fold import LogRecord, Reducer, may_be_word
from pipeline.stream.merge import combine
from pipeline.stream.partition import Partition
from pipeline.study.model import Study
from pipeline.study_file.edit import with_keys
from pipeline.study_file.load import check_key
from pipeline.words import SECONDS

_AGO = re.compile(r"-(\d{1,9})([smhd])", re.ASCII)
_OFFSETS = re.compile(r"\d{1,4}:\d{1,18}(,\d{1,4}:\d{1,18})*", re.ASCII)
_ALLOWED = (
    'allowed are RFC 3339 with a zone such as "2026-03-01T12:00:00Z", a time ago such as -2h (s, '
    "m, h, d), beginning, end, or an offset of each partition such as 0:1200,1:900"
)


@dataclass(frozen=True, slots=True, order=True)
class Moment:
    """A time of the log, in milliseconds since 1970."""

    milliseconds: int


@dataclass(frozen=True, slots=True)
class Offsets:
    """An offset of each partition."""

    at: tuple[tuple[int, int], ...]


#: None: where the log itself begins or ends.
Bound = Moment | Offsets | None


@dataclass(frozen=True, slots=True)
class Extent:
    """What the log of one partition holds.

    first, after: Its first offset, and the next one after its end.
    oldest: Time of its first record, in milliseconds since 1970; None if there is none.
    """

    first: int
    after: int
    oldest: int | None


@dataclass(frozen=True, slots=True)
class Span:
    """The offsets of one partition that a replay reads: from `start` up to, without, `stop`."""

    start: int
    stop: int


def parse_bound(text: str, option: str, *, now: float, partitions: int) -> Bound:
    """Return the bound that a text means.

    now: Seconds since 1970.
    partitions: How many partitions the log has.

    Raises ConfigError if it means none.
    """
    if text in ("beginning", "end"):
        if text != {"--from": "beginning", "--to": "end"}.get(option, text):
            raise ConfigError(f"{option}: {text!r} leaves nothing to replay; {_ALLOWED}")
        return None
    if found := _AGO.fullmatch(text):
        return Moment(max(round(now * 1000) - int(found[1]) * 1000 * SECONDS[found[2]], 0))
    if text.isascii() and text.isdecimal() and len(text) <= 18 and partitions == 1:
        return Offsets(((0, int(text)),))
    if _OFFSETS.fullmatch(text):
        pairs = [part.split(":") for part in text.split(",")]
        at = tuple(sorted((int(number), int(offset)) for number, offset in pairs))
        if [number for number, _ in at] != list(range(partitions)):
            raise ConfigError(
                f"{option}: name an offset of each of the {partitions} partitions once, for "
                f"example {','.join(f'{number}:0' for number in range(partitions))}"
            )
        return Offsets(at)
    moment = parse_rfc3339(text)
    if moment is None or moment < 0:
        raise ConfigError(f"{option}: {text!r} is not a time or offset; {_ALLOWED}")
    return Moment(moment)


def check_order(start: Bound, stop: Bound) -> None:
    """Refuse a range that ends before it begins; ConfigError, naming both ends."""
    if isinstance(start, Moment) and isinstance(stop, Moment) and start >= stop:
        raise ConfigError(
            f"--from: {_time(start.milliseconds)} is not before --to, {_time(stop.milliseconds)}"
        )
    if isinstance(start, Offsets) and isinstance(stop, Offsets):
        for (number, first), (_, last) in zip(start.at, stop.at, strict=True):
            if first > last:
                raise ConfigError(
                    f"--from: offset {first} of partition {number} is behind --to, {last}"
                )


def resolve(
    start: Bound,
    stop: Bound,
    extents: Mapping[int, Extent],
    at: Callable[[int], Mapping[int, int]],
) -> tuple[dict[int, Span], list[str]]:
    """Return the offsets to read of each partition, and a sentence on each loss of the log.

    at: Gives the first offset of each partition at or after a time in milliseconds; the log's end
        where there is none.

    Raises ConfigError if a bound lies behind the end of the log.
    """
    starts = _offsets(start, "--from", extents, at, dict.fromkeys(extents, 0))
    stops = _offsets(stop, "--to", extents, at, {n: e.after for n, e in extents.items()})
    spans, lost = {}, []
    for number, extent in sorted(extents.items()):
        wanted, end = starts[number], max(stops[number], extent.first)
        if isinstance(start, Moment):
            # a time is looked up in what is left: whether older records had it nobody knows
            earlier = extent.oldest is None or start.milliseconds < extent.oldest
            gone = range(extent.first if earlier else 0)
        else:
            gone = range(wanted, min(extent.first, stops[number]))
        if gone:
            oldest = (
                "" if extent.oldest is None else f" (what is left is of {_time(extent.oldest)})"
            )
            lost.append(f"offsets {gone[0]} to {gone[-1]} of partition {number}{oldest}")
        begin = max(wanted, extent.first)
        spans[number] = Span(min(begin, end), end)
    return spans, lost


def _offsets(
    bound: Bound,
    option: str,
    extents: Mapping[int, Extent],
    at: Callable[[int], Mapping[int, int]],
    default: dict[int, int],
) -> dict[int, int]:
    if bound is None:
        return default
    if isinstance(bound, Moment):
        return dict(at(bound.milliseconds))
    for number, offset in bound.at:
        if offset > extents[number].after:
            raise ConfigError(
                f"{option}: partition {number} ends at offset {extents[number].after}, before "
                f"{offset}"
            )
    return dict(bound.at)


def _time(milliseconds: int) -> str:
    return rfc3339(milliseconds / 1000)


_EVERY = re.compile(r"([1-9]\d{0,8})([smhd]?)", re.ASCII)


@dataclass(frozen=True, slots=True)
class Rhythm:
    """One of both: releases of the log (repeats and dead letters count), or milliseconds of it."""

    releases: int = 0
    milliseconds: int = 0

    def tick_after(self, time: int) -> int:
        """Return the first whole multiple of the rhythm's time, since 1970, after a time."""
        return (time // self.milliseconds + 1) * self.milliseconds


def parse_rhythm(text: str) -> Rhythm:
    """Return the rhythm that a text means; ConfigError if it means none."""
    found = _EVERY.fullmatch(text)
    if found is None:
        raise ConfigError(
            f"--every: {text!r} is not a rhythm; allowed are a number of releases such as 1000, or "
            "a time of the log such as 10s (s, m, h, d)"
        )
    number = int(found[1])
    if not found[2]:
        return Rhythm(releases=number)
    return Rhythm(milliseconds=1000 * number * SECONDS[found[2]])


#: The keys that may differ, with what reads them.
SERVER_SIDE = {
    "estimator.level": "the intervals",
    "estimator.ridge": "the estimate",
    "estimator.forgetting": "the buckets of the sums, and their weights",
}
#: Why others may not, by the longest beginning of the key.
REASONS = {
    "study": "it names the topics",
    "data": "clients encode records by it, so it is in every release",
    "privacy": "it decides the noise that is in every release",
    "window": "it decides which records make one release",
    "trust": "it decides which releases count, and what they carry to show whose they are",
    "stream": "it is about topics and their rhythm; --every sets how often estimates come",
    "estimator": "clients take their gradients by it, so it is in every release",
    "estimator.class_weights": "clients weigh classes by it, and it decides the noise",
    "estimator.noise_scale": "it decides what releases hold beside the gradient",
}


def parse_change(text: str) -> tuple[str, Any]:
    """Return key and value of a text such as `estimator.level=0.9`; None for "none".

    ConfigError if it is no such text.
    """
    key, equals, value = (part.strip() for part in text.partition("="))
    if not equals:
        raise ConfigError(
            f"--set: {text!r} is not a change of a key; for example estimator.level=0.9"
        )
    if value == "none":
        return key, None
    try:
        return key, tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return key, value


def parse_forgetting(text: str) -> dict[str, Any] | None:
    """Return the table that a text such as "50000 records" means; None for "none".

    ConfigError if it means none.
    """
    if text == "none":
        return None
    number, _, unit = text.partition(" ")
    try:
        return {"half_life": float(number), "of": unit.strip()}
    except ValueError:
        raise ConfigError(
            f"--forgetting: {text!r} is not a half-life; for example '50000 records', '3600 "
            "seconds' or none"
        ) from None


def altered(study: Study, changes: Mapping[str, Any]) -> Study:
    """Return a study with some keys set otherwise; None unsets one.

    changes: Key, as in `estimator.level`, to its value.

    Raises ConfigError if a key is not one of `SERVER_SIDE`, does not belong to this kind of study,
    or the value is not allowed.
    """
    method = method_of(study)
    allowed = {**SERVER_SIDE, **method.spec.server_keys}
    for key in changes:
        check_key(key)
        if key not in allowed and not key.startswith("estimator.forgetting."):
            reason = _reason(REASONS, key)
            raise ConfigError(
                f"{key}: a replay cannot change it: {reason}. It may change {', '.join(allowed)}"
            )
    return with_keys(study, changes, name="the study as the replay would have it")


def _reason(reasons: Mapping[str, str], key: str) -> str:
    while key and key not in reasons:
        key = key.rpartition(".")[0]
    return reasons[key]


#: Not of the log: the clock, the count of models, and words whose numbers stand elsewhere.
APART = frozenset({"published_at", "model_version", "reason"})


@dataclass(frozen=True, slots=True)
class Difference:
    """A field in which two estimates differ, with both values as JSON."""

    field: str
    live: str
    replayed: str


def difference(live: EstimateMessage, replayed: EstimateMessage) -> Difference | None:
    """Return the first field in which two estimates differ, or None.

    Numbers are compared as JSON writes them, in which two finite floats look alike only if all
    their bits are the same.
    """
    one, other = msgspec.to_builtins(live), msgspec.to_builtins(replayed)
    for name in APART:
        one.pop(name), other.pop(name)
    for progress in filter(None, (one["progress"], other["progress"])):
        # by the clock of the worker
        progress.pop("records_per_second"), progress.pop("seconds")
    for row in [*one["coefficients"], *other["coefficients"]]:
        # what noise hides was written as 0 before it was null
        row["sampling_se"] = row["sampling_se"] or None
    return _first(one, other, "")


def _first(one: Any, other: Any, path: str) -> Difference | None:
    if isinstance(one, dict) and isinstance(other, dict) and one.keys() == other.keys():
        pairs = [(f"{path}.{key}".lstrip("."), one[key], other[key]) for key in one]
    elif (
        isinstance(one, list | tuple) and isinstance(other, list | tuple) and len(one) == len(other)
    ):
        pairs = [(f"{path}[{i}]", a, b) for i, (a, b) in enumerate(zip(one, other, strict=True))]
    else:
        left, right = (msgspec.json.encode(value).decode() for value in (one, other))
        return None if left == right else Difference(path, left, right)
    found = (_first(a, b, name) for name, a, b in pairs)
    return next((item for item in found if item is not None), None)


#: Time in milliseconds, partition, offset, and the record.
Ordered = tuple[int, int, int, LogRecord]


def in_order(streams: Mapping[int, Iterable[LogRecord]]) -> Iterator[Ordered]:
    """Merge partitions by time, then partition, then offset.

    A partition's own order stays: a record that says an earlier time than one before it counts as
    of that one's time, and an admission has none of its own. Only one record of each partition is
    held, and admissions before its first release.

    streams: The records of each partition, in the order of their offsets.
    """
    timed = [_timed(n, streams[n]) for n in sorted(streams)]
    return heapq.merge(*timed)


def _timed(number: int, records: Iterable[LogRecord]) -> Iterator[Ordered]:
    clock, early = 0, list[LogRecord]()
    for record in records:
        if not may_be_word(record.value):
            clock = max(clock, record.timestamp)
        elif not clock:
            early.append(record)
            continue
        for one in (*early, record):
            yield clock, number, one.offset, one
        early = []
    for record in early:
        yield record.timestamp, number, record.offset, record


log = logging.getLogger("veilstream.replay")
#: Records that wait to be folded together, at most.
GROUP = 2048


@dataclass(slots=True)
class Replay:
    """The state of a replay; what it yields depends on the log and on this alone.

    task: The study, as it would have been.
    topic: The releases topic, which estimates name.
    revision: The study revision under which the releases were made.
    spans: What is read of each partition.
    trust: The study's keys, where its releases are authenticated.
    others: Whether releases of other revisions are passed over, as a worker does, or end the
        replay.
    partitions: The states, by number.
    since: Releases since the last estimate.
    tick: When the next estimate is due, in milliseconds; 0 before the first record.
    """

    task: Task
    topic: str
    revision: str
    spans: Mapping[int, Span]
    rhythm: Rhythm
    others: bool = False
    erased: frozenset[str] = frozenset()
    trust: Authenticator | None = None
    partitions: dict[int, Partition] = field(init=False, default_factory=dict)
    since: int = field(init=False, default=0)
    tick: int = field(init=False, default=0)
    _waiting: dict[int, list[LogRecord]] = field(default_factory=dict)
    _reducer: Reducer = field(init=False)

    def __post_init__(self) -> None:
        """Begin with empty states at the offsets where the spans begin.

        ConfigError if a path of gradients would begin in its middle.
        """
        whole = server_of(self.task).from_start
        if whole and any(span.start for span in self.spans.values()):
            raise ConfigError(
                f"--from: {whole}: it can only be replayed from the beginning of the log (--to may "
                "end it)"
            )
        self._reducer = Reducer(self.task, self.revision, self.trust)
        for number, span in self.spans.items():
            state = Partition.empty(self.task, self.erased, number=number)
            self.partitions[number] = state.starting_at(span.start)
            self.partitions[number].midway = span.start > 0
            self._waiting[number] = []

    @property
    def records(self) -> int:
        """How many records of the log are done."""
        done = sum(self.partitions[n].head.next_offset - s.start for n, s in self.spans.items())
        return done + sum(len(records) for records in self._waiting.values())

    @property
    def total(self) -> int:
        """How many offsets there are to read."""
        return sum(span.stop - span.start for span in self.spans.values())

    def run(
        self,
        streams: Mapping[int, Iterable[LogRecord]],
        wait: Callable[[int], None] | None = None,
    ) -> Iterator[EstimateMessage]:
        """Fold the range and yield estimates at the rhythm, and one at the end.

        streams: The records of each partition in its span.
        wait: Returns when it is time for records of this time, in milliseconds; None: at once.

        Raises ConfigError if a release was made under another revision of the study.
        """
        every, latest = self.rhythm.releases, 0
        for time, number, _, record in self._ordered(streams):
            if self.tick and time >= self.tick:
                if wait:
                    wait(self.tick)
                yield from self._estimate(self.tick)
                self.tick = self.rhythm.tick_after(time)
            if wait:
                wait(time)
            latest = time
            self.since += 1
            waiting = self._waiting[number]
            waiting.append(record)
            if len(waiting) >= GROUP:
                self._fold(number)
            if self.since == every:
                yield from self._estimate(time)
        if self.since:
            yield from self._estimate(latest)

    def _ordered(self, streams: Mapping[int, Iterable[LogRecord]]) -> Iterator[Ordered]:
        for item in in_order(streams):
            if self.rhythm.milliseconds and not self.tick:
                self.tick = self.rhythm.tick_after(item[0])
            yield item

    def _fold(self, number: int) -> None:
        waiting = self._waiting[number]
        if not waiting:
            return
        self._waiting[number] = []
        letters = self._reducer.fold(self.partitions[number], waiting, allow_gaps=True)
        if not self.others:
            refuse_others(letters, number, self.revision)

    def _estimate(self, time: int) -> Iterator[EstimateMessage]:
        if not self.since:
            return
        for number in self._waiting:
            self._fold(number)
        self.since = 0
        try:
            _, message = combine(
                self.task,
                self.partitions,
                topic=self.topic,
                model_version=None,
                published_at=time / 1000,
            )
        except NumericError as error:
            log.warning("no estimate at this point: %s", error)
            return
        yield message


def refuse_others(letters: Iterable[DeadLetter], number: int, revision: str) -> None:
    """Refuse releases that were made under another revision of the study.

    ConfigError, naming the first of them, and its revision.
    """
    for letter in letters:
        if letter.fault.reason == "wrong-revision":
            raise ConfigError(
                f"offset {letter.offset} of partition {number} was made under revision "
                f"{_revision(letter)} of the study, and this file is revision {revision}: give the "
                "file under which the releases were made, or --accept-other-revisions to pass them "
                "over, as a worker does"
            )


def _revision(letter: DeadLetter) -> str:
    try:
        return header_of(letter.value or b"").revision
    except PayloadError:
        return "another"
