"""A replay of the releases topic: what is read, where it goes, and how it goes on after a stop.

It reads the topic, and the ids of erased clients from Redis. It writes to its output, and to a file
that keeps its position. Nothing of the live study is written.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path

from agents.authority import authenticator, begin_admitted, store_of
from agents.history import History, Interrupted
from agents.outputs import Output, file_faults
from agents.refold import history_of
from pipeline.errors import NumericError, OffsetGap
from pipeline.messages.envelope import rfc3339
from pipeline.messages.estimate import EstimateMessage
from pipeline.reducer import LogRecord
from pipeline.release.task import Task
from pipeline.replay.ranges import Bound, Extent, Rhythm, Span, resolve
from pipeline.replay.run import Replay
from pipeline.replay.saved import Saved
from pipeline.settings import Settings

#: Seconds between two savings of the position.
SAVE_SECONDS = 10.0
#: Told of how many offsets of how many are done.
Report = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Job:
    """What a replay is to do.

    start, stop: Where it begins and ends.
    speed: Times the pace of the log; 0: as fast as it goes.
    accept_loss, accept_others: Go on without what retention took; pass over releases of other
        revisions.
    memo: The file that keeps its position; None: it cannot go on after a stop.
    command: What was asked for, by option, for that file.
    """

    start: Bound
    stop: Bound
    rhythm: Rhythm
    speed: float
    accept_loss: bool
    accept_others: bool
    memo: Path | None
    command: dict[str, str]


@dataclass(slots=True)
class Outcome:
    """What a replay has done.

    replay: Its state at the end.
    estimates: How many were written, before an interruption too.
    records, seconds: Offsets that this run read, and how long that took.
    last: The last estimate of this run.
    interrupted: Whether it was asked to stop before its end.
    """

    replay: Replay
    estimates: int
    records: int = 0
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
    task: Task,
    live: Task,
    settings: Settings,
    job: Job,
    output_at: Callable[[int], Output],
    *,
    stopped: Callable[[], bool],
    report: Report,
) -> Outcome:
    """Replay a study's releases.

    task, live: The study as the replay has it, and as its file has it.
    output_at: Opens the output behind so many bytes of an interrupted replay.

    Raises VeilstreamError: whatever keeps it from its end.
    """
    erased = store_of(live, settings).erased()
    saved = None
    if job.memo is not None and job.memo.exists():
        with file_faults(str(job.memo)):
            saved = Saved.decode(job.memo.read_bytes(), job.command, erased)
    with history_of(live, settings, stopped) as history:
        spans = _spans(history, job) if saved is None else saved.spans
        trust = authenticator(live, settings)
        replay = Replay(
            task, history.topic, live.revision, spans, job.rhythm, job.accept_others, erased, trust
        )
        if saved is not None:
            saved.restore(replay)
        else:
            begin_admitted(live, settings, trust, replay.partitions)
        history.seek(
            {n: Span(replay.partitions[n].head.next_offset, s.stop) for n, s in spans.items()}
        )
        outcome = Outcome(replay, 0 if saved is None else saved.estimates)
        output = output_at(0 if saved is None else saved.written)
        try:
            _run(history, output, job, outcome, stopped, report)
        finally:
            output.close()
    return outcome


def _run(
    history: History,
    output: Output,
    job: Job,
    outcome: Outcome,
    stopped: Callable[[], bool],
    report: Report,
) -> None:
    replay, begun, before = outcome.replay, time.monotonic(), outcome.replay.records

    def batch(number: int) -> list[LogRecord]:
        report(replay.records, replay.total)
        return history.more(number)

    pace = Pace(job.speed, stopped)

    def wait(milliseconds: int) -> None:
        report(replay.records, replay.total)
        pace(milliseconds)

    streams = {n: chain.from_iterable(iter(partial(batch, n), [])) for n in replay.spans}
    kept = begun
    try:
        for message in replay.run(streams, wait if job.speed else None):
            output.write(message)
            outcome.estimates, outcome.last = outcome.estimates + 1, message
            outcome.interrupted = stopped()
            if outcome.interrupted:
                break
            if job.memo is not None and time.monotonic() - kept > SAVE_SECONDS:
                _keep(job, outcome, output)
                kept = time.monotonic()
    except Interrupted:
        outcome.interrupted = True
    if outcome.interrupted:
        _keep(job, outcome, output)
    else:
        output.finish()
        if job.memo is not None:
            job.memo.unlink(missing_ok=True)
    outcome.records = replay.records - before
    outcome.seconds = time.monotonic() - begun


def _keep(job: Job, outcome: Outcome, output: Output) -> None:
    """Write down where a replay is, whole or not at all."""
    written = output.flush()
    if job.memo is None:
        return
    saved = Saved.of(outcome.replay, job.command, written=written, estimates=outcome.estimates)
    made = job.memo.with_name(job.memo.name + ".made")
    with file_faults(str(job.memo)):
        with made.open("wb") as file:
            file.write(saved.encode())
            file.flush()
            os.fsync(file.fileno())
        made.replace(job.memo)


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
