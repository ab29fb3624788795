"""The event loop of a backtest: predict, release, fold and publish in the order of time.

Pure: encoded records in, scores and the state of the study out. The steps are those of
`OfflineRun`; what stands between them here is time. Things happen at moments: a window closes when
its last label has come, its release is made at the newest model that has reached the client,
arrives after the network's delay and is folded in the order of arrival; the worker publishes at the
study's rhythm, or when a model is due; model and estimate reach clients and predictors after
another delay, all at once. Where releases depend on those before them, a window begins when models
have kept up, and its release is at the newest model of when its first block was full.

A window closes no sooner than it has its model. One that waits keeps its records in the source, so
that it holds the same ones, later.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from pipeline.backtest.history import Closed, Moment, Opened, Part, Windows
from pipeline.backtest.options import Delay
from pipeline.backtest.scores import Judge, Snapshot, Tally, Timeline
from pipeline.errors import ConfigError, NumericError
from pipeline.release.model import Model
from pipeline.release.policy import Directive, OpenWindow, Send, Wait
from pipeline.release.task import Task
from pipeline.stream.in_process import OfflineRun
from pipeline.stream.merge import start_is_over
from pipeline.types import Vector


@dataclass(slots=True)
class _Window:
    """A window with its slots, once they have come; model: at which it is, if it has one."""

    size: int
    model: Model | None = None
    closed: Closed | None = None


@dataclass(slots=True)
class _Client:
    """A client's windows in their order; how many releases are on their way; offsets of others."""

    windows: deque[_Window] = field(default_factory=deque)
    sent: int = 0
    unseen: deque[int] = field(default_factory=deque)
    last: int = -1


class Pacing:
    """The windows of all clients of a study whose releases depend on those before them.

    ended: Whether no record and no model will come any more: then nobody waits.
    """

    def __init__(self, task: Task) -> None:
        self._policy, self.ended = task.policy, False
        self._clients: dict[int, _Client] = {}

    def take(self, window: Opened | Closed) -> None:
        """Take the news of a window, those of one client in their order."""
        windows = self._clients.setdefault(window.client, _Client()).windows
        if isinstance(window, Opened):
            windows.append(_Window(window.size))
        else:
            next(held for held in windows if held.closed is None).closed = window

    def leaving(self, client: int, model: Model) -> Iterator[tuple[Closed, Model]]:
        """Yield the windows of a client that leave now, each with its model.

        model: The newest that has reached the client.
        """
        held = self._clients[client]
        while held.windows:
            first = held.windows[0]
            if first.model is None:
                if not self.ended and self._waits(held, first.size, model):
                    return
                first.model = model
            if first.closed is None:
                return
            held.windows.popleft()
            held.sent += 1
            yield first.closed, first.model

    def arrived(self, client: int, offset: int) -> None:
        """Note that a release has reached the log."""
        held = self._clients[client]
        held.sent, held.last = held.sent - 1, offset
        held.unseen.append(offset)

    def waiting(self) -> list[int]:
        """Return the clients that have a window which could not begin."""
        return [
            client
            for client, held in self._clients.items()
            if held.windows and held.windows[0].model is None
        ]

    def _waits(self, held: _Client, size: int, model: Model) -> bool:
        read = sum(model.offsets)
        while held.unseen and held.unseen[0] < read:
            held.unseen.popleft()
        behind = max(0, held.last + 1 - read)
        told = Directive(model.version, len(held.unseen), behind, model.watermark).after(held.sent)
        decision = self._policy.decide(OpenWindow(0, size), told, 0.0)
        return isinstance(decision, Wait) and bool(decision.reason)


@dataclass(frozen=True, slots=True)
class _Arrival:
    """A release that reaches the worker; `made` is when its client sent it."""

    client: int
    payload: bytes
    made: Moment


@dataclass(frozen=True, slots=True)
class _News:
    """A publication that reaches clients and predictors."""

    number: int
    model: Model | None
    coefficients: Vector


class _Look:
    """The worker looks whether a publication is due."""


class _Freeze:
    """From now on the frozen estimate learns no more."""


_Event = Opened | Closed | _Arrival | _News | _Look | _Freeze


class Engine:
    """One study over one history.

    timed: Whether the clock is event time in seconds; else it counts records, windows close only
        when they are full, and the worker publishes by the number of releases alone, as
        `OfflineRun`.
    names: The clients by number; it may grow while records come.
    network, labels: How late releases and publications come, in the unit of the clock; and how late
        the label of a record, in either unit.
    seed: Of the delays, >= 0.
    bins: The most bins of time.
    freeze: When an estimate stops to learn beside the one that goes on; None: never.

    run: The study's state.
    timeline: What happened, by time.
    after, frozen: Scores of the updating and of the frozen estimate on the same records: those that
        came after `freeze`.
    publications, failures: How many estimates were published, and how often none could be formed.
    """

    def __init__(
        self,
        task: Task,
        *,
        timed: bool,
        names: Sequence[str],
        network: Delay,
        labels: Delay,
        seed: int = 0,
        bins: int = 100,
        freeze: float | None = None,
    ) -> None:
        self._task, self._timed, self._names = task, timed, names
        self._network, self._labels = network, labels
        self._rng = np.random.default_rng([seed, 0xDE])
        self._judge = Judge(task)
        self.run = OfflineRun(task, timed=timed)
        self._windows = Windows(task.growth, task.study.window.seconds if timed else None)
        self._pacing = Pacing(task) if task.chained else None
        self.timeline = Timeline(bins, 1.0 if timed else float(task.slots))
        self.after, self.frozen = Tally(), Tally()
        self.publications = self.failures = self.records = 0
        self._events: list[tuple[Moment, int, _Event]] = []
        #: Windows whose last label comes with a later record: its number, and the window.
        self._unlabelled: list[tuple[int, int, Opened | Closed]] = []
        self._serial = 0
        self._now = Moment(0.0, -1)
        self._model: Model = task.first_model
        self._newest: _News | None = None
        self._published_at: float | None = None
        self._look_at: float | None = None
        self._arrived: dict[str, Moment] = {}
        self._started = False
        self._kept: Vector | None = None
        if freeze is not None:
            self._push(Moment(freeze, -1), _Freeze())

    def feed(self, part: Part) -> None:
        """Take the next records: predict each before anything is learnt from it.

        Raises ConfigError if an estimate is to be frozen before there is one; PrivacyError if a sum
        does not fit its lattice.
        """
        first = 0
        while self._task.growth.divisor and not self._windows.begun and first < len(part.clock):
            # windows grow from the first model on, which comes when one of them is full
            room = self._windows.room
            self._feed(part.between(first, first + room))
            first += room
        self._feed(part.between(first, len(part.clock)))

    def _feed(self, part: Part) -> None:
        if not len(part.clock):
            return
        self._windows.begun = self._model.version > 0
        self.timeline.reach(float(part.clock[0]), float(part.clock[-1]))
        for window in self._windows.cut(part):
            self._label(window)
        self._labelled(part)
        count = len(part.clock)
        predicted, beside = np.full(count, np.nan), np.full(count, np.nan)
        done = 0
        while self._events:
            place = _place(part, self._events[0][0])
            if place >= count:
                break
            if isinstance(self._events[0][2], (_News, _Freeze)):
                # only these change what is predicted
                self._predict(part, slice(done, place), predicted, beside)
                done = place
            self._step()
        self._predict(part, slice(done, count), predicted, beside)
        self.records += count
        self._now = Moment(float(part.clock[-1]), part.first + count - 1)
        self._score(part, predicted, beside)

    def finish(self) -> None:
        """Close what is open, and let everything arrive that is on its way."""
        end = Moment(self._now.clock, self.records)
        for _, _, window in sorted(self._unlabelled, key=lambda item: item[:2]):
            self._push(end, window)
        # in records or in seconds, what is left of the labels comes after the last record
        late = self._labels.mean if self._labels.mean and self._in_clock else 0.0
        for window in self._windows.rest(end):
            if isinstance(window, Closed):
                taken = OpenWindow(len(window.rows.responses), self._task.slots, 0.0, ended=True)
                # a client may be bound to keep a window that is not full
                if not isinstance(self._task.policy.decide(taken, Directive(0, 0), 0.0), Send):
                    continue
            self._push(window.at.later(late), window)
        while self._events:
            self._step()
        if self._pacing is not None:
            self._pacing.ended = True
            self._go_on(self._now)
            while self._events:
                self._step()

    @property
    def _in_clock(self) -> bool:
        """Whether labels are late in the unit of the clock."""
        return self._timed == (self._labels.of == "seconds")

    def _label(self, window: Opened | Closed) -> None:
        """Hold a window back until the label of its last record has come."""
        late = self._labels.mean
        if not late or self._in_clock:
            self._push(window.at.later(late), window)
            return
        self._serial += 1
        heapq.heappush(self._unlabelled, (window.at.cause + int(late), self._serial, window))

    def _labelled(self, part: Part) -> None:
        """Let windows go whose labels come with the records of a part."""
        while self._unlabelled and self._unlabelled[0][0] < part.first + len(part.clock):
            number, _, window = heapq.heappop(self._unlabelled)
            clock = window.at.clock
            if number >= part.first:
                # else the label had come with an earlier record, before the window closed
                clock = max(clock, float(part.clock[number - part.first]))
            self._push(Moment(clock, number - 1), window)

    def _push(self, at: Moment, event: _Event) -> None:
        self._serial += 1
        heapq.heappush(self._events, (at, self._serial, event))

    def _step(self) -> None:
        at, _, event = heapq.heappop(self._events)
        match event:
            case Opened() | Closed():
                self._take(at, event)
            case _Arrival():
                milliseconds = int(1000 * event.made.clock) if self._timed else 0
                if self._pacing is not None:
                    self._pacing.arrived(event.client, self.run.releases)
                self.run.fold(self._names[event.client], event.payload, milliseconds)
                self._publish_if_due(at)
            case _Look():
                self._look_at = None
                self._publish_if_due(at)
            case _News():
                self._hear(event)
                self._go_on(at)
            case _Freeze():
                if self._newest is None:
                    raise ConfigError(
                        "--freeze: the stream had no estimate yet at this time; give a later time"
                    )
                self._kept = self._newest.coefficients

    def _take(self, at: Moment, window: Opened | Closed) -> None:
        if self._pacing is not None:
            self._pacing.take(window)
            self._leave(at, window.client)
        elif isinstance(window, Closed):
            self._release(at, window, self._model)

    def _go_on(self, at: Moment) -> None:
        """Let windows begin that have waited for a model."""
        if self._pacing is not None:
            for client in self._pacing.waiting():
                self._leave(at, client)

    def _leave(self, at: Moment, client: int) -> None:
        if self._pacing is not None:
            for window, model in self._pacing.leaving(client, self._model):
                self._release(at, window, model)

    def _release(self, at: Moment, window: Closed, model: Model) -> None:
        name = self._names[window.client]
        payload = self.run.release(name, window.rows, model)
        arrives = at.later(self._network.draw(self._rng))
        # a client's own releases keep their order, as its producer sees to it
        arrives = max(arrives, self._arrived.get(name, arrives))
        self._arrived[name] = arrives
        self._push(arrives, _Arrival(window.client, payload, at))

    def _publish_if_due(self, at: Moment) -> None:
        """Publish by the study's rhythm; without event time there are no seconds to count."""
        rhythm, waiting = self._task.study.stream.publish, self.run.waiting
        enough, model = waiting >= rhythm.releases, self.run.wait()
        if not waiting or not (enough or self._timed or model is not None):
            return
        last = self._published_at
        if self._timed and last is not None:
            wait = rhythm.pause if enough else max(rhythm.pause, rhythm.seconds)
            due = last + (wait if model is None else min(wait, model))
            if due > at.clock:
                if self._look_at is None or due < self._look_at:
                    self._look_at = due
                    self._push(Moment(due, at.cause), _Look())
                return
        self._publish(at)

    def _publish(self, at: Moment) -> None:
        self._published_at = at.clock
        moves = self._started or start_is_over(self._task, self.run.partitions)
        try:
            estimate = self.run.publish() if moves else self.run.estimate(0.0)[0]
        except NumericError:
            self.failures += 1
            self.run.waiting = 0
            return
        self.run.waiting = 0
        self._started = moves
        self.publications += 1
        study = self._task.study
        self.timeline.note(Snapshot.of(estimate, at.clock, study.estimator.level))
        model = self.run.model if moves else None
        news = _News(self.publications, model, estimate.coefficients)
        self._push(at.later(self._network.draw(self._rng)), news)

    def _hear(self, news: _News) -> None:
        """Take over a publication, unless a newer one has overtaken it."""
        if self._newest is None or news.number > self._newest.number:
            self._newest = news
            self._model = news.model or self._model

    def _predict(self, part: Part, rows: slice, predicted: Vector, beside: Vector) -> None:
        if self._newest is not None:
            features = part.features[rows]
            predicted[rows] = self._judge.predictor(features, self._newest.coefficients)
        if self._kept is not None:
            beside[rows] = self._judge.predictor(part.features[rows], self._kept)

    def _score(self, part: Part, predicted: Vector, beside: Vector) -> None:
        known = part.usable & ~np.isnan(predicted)
        both = part.usable & ~np.isnan(beside)
        for span, rows in self.timeline.each(part.clock):
            usable, scored = part.usable[rows], known[rows]
            span.arrived += len(usable)
            span.unusable += int(np.count_nonzero(~usable))
            span.unscored += int(np.count_nonzero(usable & ~scored))
            written = part.written[rows]
            span.tally.add(self._judge, written[scored], predicted[rows][scored])
            span.frozen.add(self._judge, written[both[rows]], beside[rows][both[rows]])
        if both.any():
            self.after.add(self._judge, part.written[both], predicted[both])
            self.frozen.add(self._judge, part.written[both], beside[both])


def _place(part: Part, at: Moment) -> int:
    """Return the place of the first record of a part that comes after a moment."""
    begins = int(np.searchsorted(part.clock, at.clock, side="left"))
    ends = int(np.searchsorted(part.clock, at.clock, side="right"))
    return min(max(begins, at.cause + 1 - part.first), ends)
