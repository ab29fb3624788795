"""A replay of the releases topic: what is read, what is compared, and where the estimates go.

It reads the topic, and the ids of erased clients from Redis. Estimates go to lines, files that are
whole or not there; published ones can be compared with them, number by number. Nothing is written
to Kafka or Redis.
"""

from __future__ import annotations

import itertools
import os
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from itertools import chain
from operator import attrgetter
from pathlib import Path
from typing import Any

import msgspec

from agents.announcing import authenticator, begin_admitted, store_of
from agents.history import History, Interrupted, history_of
from pipeline.errors import LocalStoreError, NumericError, OffsetGap, PayloadError
from pipeline.messages.authentic import Authenticator
from pipeline.messages.envelope import rfc3339
from pipeline.messages.estimate import EstimateMessage, read_estimate, write_estimate
from pipeline.messages.topics import Topics
from pipeline.release.task import Task
from pipeline.settings import Settings, extra
from pipeline.stream.fold import LogRecord, Reducer
from pipeline.stream.merge import combine
from pipeline.stream.partition import Partition
from pipeline.stream.replay import (
    Bound,
    Difference,
    Extent,
    Replay,
    Rhythm,
    Span,
    difference,
    resolve,
)

#: Told of how many of how many published estimates have been looked at.
Report = Callable[[int, int], None]


@dataclass(slots=True)
class Checked:
    """What a check has found.

    compared, different: How many estimates were compared, and how many of them differ.
    apart: How many were not compared, by reason.
    first, message: The first difference, and the published estimate that has it.
    differing: Offsets, in the topic of estimates, of those that differ.
    impossible: Likewise, of those that stand for positions that the log does not have: somebody
        else wrote them, or the log was made anew.
    """

    compared: int = 0
    different: int = 0
    apart: Counter[str] = field(default_factory=Counter)
    first: Difference | None = None
    message: EstimateMessage | None = None
    differing: list[int] = field(default_factory=list)
    impossible: list[int] = field(default_factory=list)

    @property
    def sound(self) -> bool:
        """Whether every estimate that could be compared is that of the log."""
        return not self.differing and not self.impossible


class Follower:
    """The states of all partitions, moved on from one set of log positions to the next.

    starts: Where each partition begins: 0, or its first record that is left.
    """

    def __init__(
        self, task: Task, settings: Settings, history: History, starts: Mapping[int, int],
        erased: frozenset[str],
    ) -> None:  # fmt: skip
        trust = authenticator(task, settings)
        self.trust, self._history = trust, history
        self._reducer = Reducer(task, trust=trust)
        self._ends = {n: extent.after for n, extent in history.extents().items()}
        self.states = {
            n: Partition.empty(task, erased, number=n).starting_at(starts[n]) for n in starts
        }
        begin_admitted(task, settings, trust, self.states)
        self._held: dict[int, list[LogRecord]] = {n: [] for n in starts}
        history.seek({n: Span(starts[n], self._ends[n]) for n in starts})

    def possible(self, live: EstimateMessage) -> bool:
        """Whether the log reaches as far as an estimate says it stands for."""
        named = [known.partition for known in live.watermark]
        return sorted(named) == sorted(self.states) and all(
            0 <= known.next_offset <= self._ends[known.partition] for known in live.watermark
        )

    def behind(self, positions: Mapping[int, int]) -> bool:
        """Whether a partition is further than these positions."""
        return any(self.states[n].head.next_offset > at for n, at in positions.items())

    def move(self, positions: Mapping[int, int]) -> None:
        """Fold each partition up to its position, which is `possible`."""
        for number, at in positions.items():
            state = self.states[number]
            while state.head.next_offset < at:
                held = self._held[number] or self._history.more(number)
                cut = bisect_left(held, at, key=attrgetter("offset"))
                self._reducer.fold(state, held[:cut], allow_gaps=True)
                self._held[number] = held[cut:]
                if not held or cut == 0:
                    # what the estimate had is no longer in the log: its positions will differ
                    break


def check(
    task: Task, settings: Settings, *, accept_loss: bool, stopped: Callable[[], bool],
    report: Report,
) -> Checked:  # fmt: skip
    """Compare every published estimate of a study with a fold of the log to its positions.

    Positions of estimates grow. Where they went back, as after a rebuild, the log is folded again
    for those estimates. Raises OffsetGap if retention took the start of the log, and that is not
    accepted; BrokerError, StoreError if Kafka or Redis fails.
    """
    erased = store_of(task, settings).erased()
    topics, found = Topics.of(task.study), Checked()
    with (
        history_of(task, settings, stopped) as releases,
        History(settings, topics.estimates.name, 1, stopped) as published,
    ):
        starts = _starts(releases, accept_loss=accept_loss)
        extent = published.extents()[0]
        only: set[int] | None = None
        first = extent.first
        while only is None or only:
            published.seek({0: Span(first, extent.after)})
            follower, again = Follower(task, settings, releases, starts, erased), []
            for record in published.records(0):
                if only is not None and record.offset not in only:
                    continue
                report(record.offset - extent.first + 1, extent.after - extent.first)
                live = _usable(task, follower.trust, record, found)
                if live is None:
                    continue
                if not follower.possible(live):
                    found.impossible.append(record.offset)
                    continue
                positions = {known.partition: known.next_offset for known in live.watermark}
                if any(at < starts[n] for n, at in positions.items()):
                    found.apart["from before the part that retention has left"] += 1
                    continue
                if follower.behind(positions):
                    again.append(record.offset)
                    continue
                follower.move(positions)
                if _differs(task, live, follower.states, releases.topic, found, erased):
                    found.differing.append(record.offset)
            only = set(again)
            first = again[0] if again else first
    return found


def _starts(history: History, *, accept_loss: bool) -> dict[int, int]:
    starts = {number: extent.first for number, extent in history.extents().items()}
    gone = [f"0 to {at - 1} of partition {n}" for n, at in starts.items() if at]
    if gone and not accept_loss:
        raise OffsetGap(
            f"{history.topic}: retention has removed offsets {', '.join(gone)}, so estimates "
            "that need them cannot be checked; --accept-loss checks those of a state that was "
            "rebuilt without them"
        )
    return starts


def _usable(
    task: Task, trust: Authenticator | None, record: LogRecord, found: Checked
) -> EstimateMessage | None:
    """Return a published estimate that this study can be compared with, or count why not."""
    try:
        if trust is not None:
            trust.check(record.value or b"")
        live = read_estimate(record.value or b"")
    except PayloadError:
        found.apart["not signed by this study"] += 1
        return None
    except msgspec.DecodeError:
        found.apart["no estimate"] += 1
        return None
    if live.study_revision != task.revision:
        found.apart["of another revision"] += 1
    elif live.level != task.study.estimator.level:
        found.apart[OTHERWISE] += 1
    else:
        return live
    return None


def _differs(
    task: Task, live: EstimateMessage, states: Mapping[int, Partition], topic: str, found: Checked,
    erased: frozenset[str],
) -> bool:  # fmt: skip
    _, replayed = combine(task, states, topic=topic, model_version=None, published_at=0.0)
    if erased and live.diagnostics.erased < replayed.diagnostics.erased:
        found.apart["from before a client was taken out"] += 1
        return False
    if live.interval_method != replayed.interval_method:
        found.apart[OTHERWISE] += 1
        return False
    found.compared += 1
    different = difference(live, replayed)
    if different is None:
        return False
    found.different += 1
    if found.first is None:
        found.first, found.message = different, live
    return True


#: Why an estimate is not compared that a worker of other settings published.
OTHERWISE = "with another level or interval"
#: What an unfinished file is called, behind the name that it will have.
PARTIAL = ".partial"


#: Takes an estimate.
Write = Callable[[EstimateMessage], None]


@contextmanager
def written(path: Path) -> Iterator[Write]:
    """Yield what writes estimates to a file: JSON lines, or Parquet made of them at the end.

    The lines go to a file beside it, which gets its name when it is whole: an error leaves it as it
    is. A file that is no regular one, such as a pipe, is written as it comes.

    path: Its name; one that ends in .parquet becomes Parquet.

    LocalStoreError if it cannot be written.
    """
    lines = path.with_name(path.name + PARTIAL) if is_regular(path) else path
    with file_faults(str(path)):
        file = lines.open("wb")

    def write(message: EstimateMessage) -> None:
        with file_faults(str(path)):
            file.write(write_estimate(message) + b"\n")

    try:
        yield write
        with file_faults(str(path)):
            file.flush()
            if lines != path:
                os.fsync(file.fileno())
                _name(lines, path)
    finally:
        # a disk that is full is so for what is still in the buffer, too
        with suppress(OSError):
            file.close()


def _name(lines: Path, path: Path) -> None:
    """Give whole lines the name of the file, as Parquet if it says so; OSError."""
    if path.suffix.lower() != ".parquet":
        lines.replace(path)
        return
    made = path.with_name(path.name + ".made")
    to_parquet(lines, made)
    made.replace(path)
    lines.unlink()


def is_regular(path: Path) -> bool:
    """Whether a path is a regular file, or will be one."""
    return path.is_file() or not path.exists()


@contextmanager
def file_faults(name: str) -> Iterator[None]:
    """Turn faults of a file that is written into ours; a reader that has gone is none.

    LocalStoreError, naming the file and what is wrong.
    """
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise LocalStoreError(
            f"{name} cannot be written ({error.strerror}): check the disk and the folder, then "
            "run the command again"
        ) from error


#: Estimates of one row group; columns as an estimate and its coefficients have them.
GROUP = 500
OF_ALL = ("state_version", "status", "records", "releases", "clients", "level")
OF_EACH = ("value", "standard_error", "sampling_se", "privacy_se")


def to_parquet(lines: Path, made: Path) -> None:
    """Write the estimates of a file of JSON lines as Parquet, some at a time.

    OSError if a file cannot be read or written.
    """
    pa, parquet = extra("pyarrow", "--out"), extra("pyarrow.parquet", "--out")
    time, number = pa.timestamp("us", tz="UTC"), pa.float64()
    schema = pa.schema(
        [
            ("at", time), ("event_time", time), ("state_version", pa.int64()),
            ("status", pa.string()), ("records", pa.int64()), ("releases", pa.int64()),
            ("clients", pa.int64()), ("effective_records", number), ("level", number),
            ("coefficient", pa.string()), ("value", number), ("standard_error", number),
            ("lower", number), ("upper", number), ("sampling_se", number), ("privacy_se", number),
        ]
    )  # fmt: skip
    with lines.open("rb") as file, parquet.ParquetWriter(made, schema) as writer:
        while group := list(itertools.islice(file, GROUP)):
            rows = [row for line in group for row in _rows(read_estimate(line))]
            writer.write_table(pa.Table.from_pylist(rows, schema))


def _rows(message: EstimateMessage) -> Iterator[dict[str, Any]]:
    shared = {name: getattr(message, name) for name in OF_ALL} | {
        "at": _time(message.published_at),
        "event_time": None if message.event_time is None else _time(message.event_time),
        "effective_records": message.diagnostics.effective_records,
    }
    for row in message.coefficients:
        lower, upper = row.interval or (None, None)
        own = {name: getattr(row, name) for name in OF_EACH}
        yield {**shared, **own, "coefficient": row.name, "lower": lower, "upper": upper}


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text).astimezone(UTC)


@dataclass(frozen=True, slots=True)
class Job:
    """What a replay is to do.

    start, stop: Where it begins and ends.
    speed: Times the pace of the log; 0: as fast as it goes.
    accept_loss, accept_others: Go on without what retention took; pass over releases of other
        revisions.
    """

    start: Bound
    stop: Bound
    rhythm: Rhythm
    speed: float
    accept_loss: bool
    accept_others: bool


@dataclass(slots=True)
class Outcome:
    """What a replay has done.

    replay: Its state at the end.
    estimates: How many were written.
    seconds: How long it took.
    last: The last estimate.
    interrupted: Whether it was asked to stop before its end.
    """

    replay: Replay
    estimates: int = 0
    seconds: float = 0.0
    last: EstimateMessage | None = None
    interrupted: bool = False


class Pace:
    """Waits so that records come `speed` times as fast as they once did."""

    def __init__(self, speed: float, stopped: Callable[[], bool]) -> None:
        self._speed, self._stopped = speed, stopped
        self._first: tuple[int, float] | None = None

    def __call__(self, milliseconds: int) -> None:
        """Return when a record of this time is due; Interrupted if that was asked for."""
        if self._first is None:
            self._first = milliseconds, time.monotonic()
        begun, at = self._first
        due = at + (milliseconds - begun) / 1000 / self._speed
        while (left := due - time.monotonic()) > 0:
            if self._stopped():
                raise Interrupted
            time.sleep(min(left, 0.2))


def run_replay(
    task: Task, live: Task, settings: Settings, job: Job,
    output_of: Callable[[], AbstractContextManager[Write]], *, stopped: Callable[[], bool],
    report: Report,
) -> Outcome:  # fmt: skip
    """Replay a study's releases.

    task, live: The study as the replay has it, and as its file has it.
    output_of: Opens the output, once it is clear that there is something to replay.

    Raises VeilstreamError: whatever keeps it from its end.
    """
    erased = store_of(live, settings).erased()
    with history_of(live, settings, stopped) as history:
        spans = _spans(history, job)
        trust = authenticator(live, settings)
        replay = Replay(
            task, history.topic, live.revision, spans, job.rhythm, job.accept_others, erased, trust
        )
        begin_admitted(live, settings, trust, replay.partitions)
        history.seek(spans)
        outcome, begun = Outcome(replay), time.monotonic()
        try:
            with output_of() as write:
                _run(history, write, job, outcome, stopped, report)
        except Interrupted:
            outcome.interrupted = True
    outcome.seconds = time.monotonic() - begun
    return outcome


def _run(
    history: History, write: Write, job: Job, outcome: Outcome, stopped: Callable[[], bool],
    report: Report,
) -> None:  # fmt: skip
    replay = outcome.replay

    def batch(number: int) -> list[LogRecord]:
        report(replay.records, replay.total)
        return history.more(number)

    pace = Pace(job.speed, stopped)

    def wait(milliseconds: int) -> None:
        report(replay.records, replay.total)
        pace(milliseconds)

    streams = {n: chain.from_iterable(iter(partial(batch, n), [])) for n in replay.spans}
    for message in replay.run(streams, wait if job.speed else None):
        write(message)
        outcome.estimates, outcome.last = outcome.estimates + 1, message
        if stopped():
            raise Interrupted


def _spans(history: History, job: Job) -> dict[int, Span]:
    """Return what is to be read.

    Raises OffsetGap if retention took some of it, and that is not accepted; NumericError if there
    is nothing.
    """
    extents = history.extents()
    spans, lost = resolve(job.start, job.stop, extents, history.at)
    if lost and not job.accept_loss:
        raise OffsetGap(
            f"{history.topic}: retention has removed part of the range: {'; '.join(lost)}. "
            "--accept-loss replays what is left"
        )
    if all(span.start >= span.stop for span in spans.values()):
        raise NumericError(f"there is no release in this range: {_held(extents)}")
    return spans


def _held(extents: Mapping[int, Extent]) -> str:
    parts = []
    for number, extent in sorted(extents.items()):
        since = "" if extent.oldest is None else f", from {rfc3339(extent.oldest / 1000)} on"
        parts.append(f"partition {number} holds offsets {extent.first} to {extent.after}{since}")
    return "; ".join(parts)
