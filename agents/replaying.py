"""A replay of the releases topic: what is read, and where it goes.

It reads the topic, and the ids of erased clients from Redis. It writes to its output alone: nothing
of the live study is written.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import chain

from agents.authority import authenticator, begin_admitted
from agents.history import History, Interrupted
from agents.outputs import Output
from agents.refold import history_of
from pipeline.errors import NumericError, OffsetGap
from pipeline.messages.envelope import rfc3339
from pipeline.messages.estimate import EstimateMessage
from pipeline.release.task import Task
from pipeline.settings import Settings
from pipeline.stream.fold import LogRecord
from pipeline.stream.replay import Bound, Extent, Replay, Rhythm, Span, resolve
from state import RedisStore
from state.connection import redis_client

#: Told of how many offsets of how many are done.
Report = Callable[[int, int], None]


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
    task: Task,
    live: Task,
    settings: Settings,
    job: Job,
    output_of: Callable[[], Output],
    *,
    stopped: Callable[[], bool],
    report: Report,
) -> Outcome:
    """Replay a study's releases.

    task, live: The study as the replay has it, and as its file has it.
    output_of: Opens the output, once it is clear that there is something to replay.

    Raises VeilstreamError: whatever keeps it from its end.
    """
    erased = RedisStore(redis_client(settings), live).erased()
    with history_of(live, settings, stopped) as history:
        spans = _spans(history, job)
        trust = authenticator(live, settings)
        replay = Replay(
            task, history.topic, live.revision, spans, job.rhythm, job.accept_others, erased, trust
        )
        begin_admitted(live, settings, trust, replay.partitions)
        history.seek(spans)
        outcome, output = Outcome(replay), output_of()
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
    replay, begun = outcome.replay, time.monotonic()

    def batch(number: int) -> list[LogRecord]:
        report(replay.records, replay.total)
        return history.more(number)

    pace = Pace(job.speed, stopped)

    def wait(milliseconds: int) -> None:
        report(replay.records, replay.total)
        pace(milliseconds)

    streams = {n: chain.from_iterable(iter(partial(batch, n), [])) for n in replay.spans}
    try:
        for message in replay.run(streams, wait if job.speed else None):
            output.write(message)
            outcome.estimates, outcome.last = outcome.estimates + 1, message
            outcome.interrupted = stopped()
            if outcome.interrupted:
                break
    except Interrupted:
        outcome.interrupted = True
    if not outcome.interrupted:
        output.finish()
    outcome.seconds = time.monotonic() - begun


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
