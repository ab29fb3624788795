"""The client's loop: source, window, release, outbox, Kafka.

A full window becomes a stored release, bytes and headers, in one transaction for a group.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from pipeline.errors import VeilstreamError
from pipeline.messages.envelope import BINARY, headers, rfc3339
from pipeline.privacy.events import Event
from pipeline.privacy.memory import empty_rows
from pipeline.records.blocks import Window
from pipeline.records.encoder import Arrays, Encoder
from pipeline.release.budget import most_releases
from pipeline.release.model import Model
from pipeline.release.policy import Directive, Discard, OpenWindow, Send, ready
from pipeline.release.quality import Clips, Jumps
from pipeline.release.query import Query
from pipeline.release.task import Task, form_of
from pipeline.stream.release import Standing, closes_early, release_behind, release_of
from pipeline.stream.release import Window as Sums
from producers.intake import EventTimes, encoded
from producers.models import ModelFeed
from producers.sender import Sender
from producers.source_check import Held, LaterTest
from producers.source_registry import Admission
from producers.sources.base import Slot, Slots, Source, behind
from producers.store import ClientStore, Outgoing, Tally


@dataclass(frozen=True, slots=True)
class Made:
    """A release that is not stored yet; `position` as in `ClientStore.release`."""

    outgoing: Outgoing
    tally: Tally
    position: bytes
    event: Event


class Making:
    """Makes the releases of one client and stores them.

    task, source, store, source_name, admission, publish, times: As `Client` takes them.
    certain: Whether this database is known to hold all of its releases: else what its noise
        remembers may be another's.
    """

    def __init__(
        self, task: Task, source: Source, store: ClientStore, *, certain: bool, source_name: str,
        admission: Admission | None, publish: Callable[[], None], times: EventTimes | None,
    ) -> None:  # fmt: skip
        self._task, self._source, self._store = task, source, store
        self._source_name, self._chained = source_name, task.chained
        standing = store.standing(task.study.name)
        forgets = task.study.privacy.noise_memory == "process"
        gone = task.remembers and not standing.chain.rows.shape[1]
        if standing.chain.number and (forgets or gone or not certain):
            standing = standing.anew()
        self._forgets = forgets
        #: Where the client stands behind what was made, stored or not.
        self.standing = standing
        self._publish, self._told = publish, False
        self._times, self._made = times, list[Made]()
        #: Refuses records that another client or name has released.
        self._guard = (lambda: None) if admission is None else admission.before_release
        # else later releases of a run cost nothing more
        self.each_pays = task.budget.scope != "record"

    def window(self, window: Arrays, model: Model, *, tally: Tally, position: bytes) -> None:
        """Make the release of a window: noise is drawn here, once."""
        payload = release_of(
            self._task, window, model, client=self._store.client, ledger=self._store.ledger,
            seq=self.next_seq,
        )  # fmt: skip
        behind = Standing(self.next_seq + 1, self.standing.held + self._task.slots)
        self._add(payload, behind, model, tally, position)

    def sums(self, query: Query, *, tally: Tally, position: bytes) -> None:
        """Make the release of a window's sums: noise is drawn here, once."""
        payload, behind = release_behind(
            self._task, query, self.standing, client=self._store.client,
            ledger=self._store.ledger,
        )  # fmt: skip
        self._add(payload, behind, query.model, tally, position)

    @property
    def _closed_at(self) -> int:
        # whole seconds: a window's time need not tell when its last record came
        return int(time.time()) if self._times is None else self._times.at_close() // 1000

    def commit(self) -> int:
        """Store what was made with its spend, all or nothing, and return how many releases."""
        if not self._made:
            return 0
        tallies, rejected = [made.tally for made in self._made], Counter[str]()
        for tally in tallies:
            rejected.update(tally.rejected)
        position = self._made[-1].position
        self._store.release(
            self._task,
            self._source_name,
            [made.outgoing for made in self._made],
            position=self._source.anchored(position),
            tally=Tally(
                sum(tally.records for tally in tallies),
                rejected,
                sum(tally.clipped for tally in tallies),
            ),
            now=float(int(time.time())),
            events=[made.event for made in self._made],
            latest=None if self._times is None else self._times.closed,
            guard=self._guard,
            standing=self._kept_standing() if self._chained else None,
        )
        if not self._told or self.each_pays:
            self._publish()
            self._told = True
        self._source.forget(position)
        stored = len(self._made)
        self._made.clear()
        return stored

    def _kept_standing(self) -> Standing:
        """Return what is stored of where the client stands: rows of noise, unless they must not."""
        standing = self.standing
        if not self._forgets:
            return standing
        chain = replace(standing.chain, rows=empty_rows(0))
        return Standing(standing.seq, standing.held, chain)

    @property
    def next_seq(self) -> int:
        """Number of the next release that is made."""
        return self.standing.seq

    def _add(
        self, payload: bytes, behind: Standing, model: Model, tally: Tally, position: bytes
    ) -> None:
        study, client, seq = self._task.study.name, self._store.client, self.next_seq
        taken = tally.records + sum(tally.rejected.values())
        marks = headers(
            identity=f"{client}/{study}/{seq}",
            source=f"/veilstream/{study}/{client}",
            kind="veilstream.release",
            schema=form_of(self._task).schema,
            content_type=BINARY,
            time=rfc3339(float(self._closed_at)),
        )
        outgoing = Outgoing(seq, payload, marks, behind.held - self.standing.held - taken)
        self._made.append(Made(outgoing, tally, position, self._task.event(model)))
        self.standing = behind


#: Releases that may wait for Kafka before the client stops reading its source.
OUTBOX_LIMIT = 1000
#: Windows that share a transaction, and slots that one turn reads, at most.
GROUP = 64
GROUP_SLOTS = 65_536
#: Slots that are read at a time: they stay in a processor's cache until they are encoded.
PART = 16_384
#: How long one turn waits for records, in seconds; where releases wait for their claim, less.
TURN_SECONDS, CLAIM_SECONDS = 0.2, 0.005


@dataclass(slots=True)
class Progress:
    """What this run has done, for a progress line.

    share: Of the source that was read; None where nobody knows how long it is.
    finished: Whether the source has ended, and all of it is released.
    outside: The share of the values of each column that was cut to its range, of the usable records
        that were read; empty before the run has come to its end.
    """

    records: int = 0
    releases: int = 0
    waiting_for: str = ""
    share: float | None = None
    finished: bool = False
    outside: dict[str, float] = field(default_factory=dict)


class Client:
    """One client of one study.

    task, source, store, sender, models: The study, its records, the database, and the two ends at
        Kafka.
    admission: Asked before anything is released; None: nobody else can have these records.
    publish: Tells what was spent, once it is; before the release leaves.
    rate: Slots per second at most; None for as fast as they come. For demonstrations.
    times: The times of the records, where releases carry those; None: the client's own clock.
    ahead: Seconds until the first slot is due at that rate; below 0 some are due at once.
    first: Slots of the source that have been read already, and when the first of them came.
    certain: Whether the database is known to hold all of its releases; see `Making`.
    test: Takes each window before it is released, and may refuse to go on.
    say: Told when the share of unusable records jumps, and of ranges that cut many values.
    clock: Monotonic seconds.
    """

    def __init__(
        self, task: Task, source: Source, store: ClientStore, sender: Sender, models: ModelFeed, *,
        source_name: str, certain: bool = True, admission: Admission | None = None,
        publish: Callable[[], None] = lambda: None, rate: float | None = None,
        times: EventTimes | None = None, ahead: float = 0.0, first: Held | None = None,
        test: LaterTest | None = None, say: Callable[[str], None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self._task, self._source, self._store = task, source, store
        self._sender, self._models, self._admission = sender, models, admission
        self._making = Making(
            task, source, store, certain=certain, source_name=source_name,
            admission=admission, publish=publish, times=times,
        )  # fmt: skip
        self._encoder = Encoder(task.study)
        self._rate, self._times, self._clock = rate, times, clock
        self._first, self._test = first or Held(), test
        self._chained = task.chained
        #: The sums of the open window, where it is those of blocks; None before its first slot.
        self._sums: Sums | None = None
        self._began = 0.0
        self._window = Window(task.slots, self._first.opened)
        self._faults: Counter[str] = Counter()
        self._usable = 0
        self._jumps, self._say = Jumps(*store.tests.counts(task.study.name)), say
        self._clips = Clips(self._encoder.value_names)
        self._directive = Directive(0, 0)
        self._policy, self._discarded = task.policy, 0
        self._forgets = self._chained and task.study.estimator.forgetting is not None
        self._held: Sequence[Slot] = []
        #: Windows that may still leave in this turn.
        self._left = 0
        self._started = clock() + ahead
        self.progress = Progress()

    def turn(self) -> bool:
        """Do one round; return False when the source has ended and its last window is out.

        Raises VeilstreamError: any fault after which this process must stop; everything released is
        kept.
        """
        self._models.poll()
        self._sender.pump()
        now = self._clock()
        windows = self._left = self._windows(now)
        if not windows:
            # a model that has seen a release comes after its acknowledgement
            if not self._sender.wait(TURN_SECONDS):
                self._models.poll(TURN_SECONDS)
            return True
        if self._held:
            self._fill(now)
        else:
            self._read(self._allowance(windows), now)
        ended = self._source.ended and not self._held and not self._first.slots
        self._settle(self._clock(), ended=ended)
        self.progress.releases += self._making.commit()
        return not ended or self._window.room == 0

    def finish(self) -> None:
        """Say what is left to say, and wait for Kafka."""
        self.progress.outside = {n: c / self._usable for n, c in self._encoder.clipped.items()}
        for line in filter(None, (self._jumps.close(), self._clips.close())):
            self._say(line)
        self._sender.drain()

    def _windows(self, now: float) -> int:
        """Return how many windows may be filled now, up to a group; 0 says why in `progress`."""
        waiting = self._store.waiting(self._task.study.name)
        outbox = OUTBOX_LIMIT - waiting
        self._directive = self._told(waiting)
        if outbox <= 0:
            self.progress.waiting_for = "Kafka"
            return 0
        room = self._share_left()
        if room <= 0:
            self.progress.waiting_for = "releases of other clients (trust.largest_share)"
            return 0
        # what the budget refuses must not take windows with it that it allows
        most = min(1 if self._making.each_pays else GROUP, outbox, room)
        found, self.progress.waiting_for = ready(
            self._policy, self._open_window(), self._directive, now, most
        )
        return found

    def _share_left(self) -> int:
        """Return how many blocks of `window.records` slots may leave before others send some."""
        most = most_releases(self._task.study, self._models.newest.watermark)
        made = self._making.standing.held // self._task.slots
        return OUTBOX_LIMIT if most is None else most - made

    def _open_window(self, *, ended: bool = False) -> OpenWindow:
        window, size = self._window, self._window.size
        if self._chained and not window.taken:
            size = max(size, self._making.standing.room(self._task, self._models.newest))
        return OpenWindow(window.taken, size, window.opened, self._discarded, ended)

    def _told(self, waiting: int) -> Directive:
        """Return what the newest model says; waiting: releases that Kafka has not acknowledged."""
        model = self._models.newest
        own, behind = self._sender.unseen(self._models.read_to)
        seen = model.watermark // self._task.study.stream.partitions
        return Directive(model.version, own, behind, seen).after(waiting)

    def _read(self, most: int, now: float) -> None:
        """Read up to so many slots, those that are there, and put them into windows."""
        wait = self._patience
        while most > 0:
            # whole windows, where some fit: their slots are encoded together
            room, size = self._window.room, self._task.slots
            asked = min(most, room + (PART - room) // size * size if room <= PART else PART)
            try:
                self._held = self._first.take(asked) or self._source.read(asked, wait)
            except VeilstreamError:
                # it must not take with it what was read before
                self.progress.releases += self._making.commit()
                raise
            came = len(self._held)
            if wait and not (came or self._source.ended):
                self.progress.waiting_for = "records from the source"
            whole = came == asked or isinstance(self._held, Slots)
            self._fill(now)
            if self._held or not (came and whole):
                return
            most, wait = most - came, 0.0

    def _fill(self, now: float) -> None:
        """Put slots into windows, as far as the policy lets them go."""
        # a window that has no room said otherwise a moment ago
        while self._held and self._window.room and self._left > 0:
            if not (self._window.taken or self._begins()):
                return
            most = self._window.room
            if self._forgets:
                # it may close behind each of its blocks
                most = min(most, self._task.slots - self._window.taken % self._task.slots)
            taken, self._held = self._held[:most], self._held[most:]
            self._take(taken)
            if self._window.room == 0 or self._has_aged():
                self._settle(now)

    def _begins(self) -> bool:
        """Begin a window: where it is the sums of blocks, it is as large as they may be by now.

        False: those before it have taken what `trust.largest_share` leaves.
        """
        if not self._chained:
            return True
        model, window = self._models.newest, self._window
        room = self._making.standing.room(self._task, model)
        if room:
            self._sums, self._began = Sums(self._task, lambda: self._models.newest), self._seconds()
            window.size, window.keep = room, self._sums.take
        return room > 0

    def _seconds(self) -> float:
        """Return the time that a window would have if it closed now, in seconds since 1970."""
        return time.time() if self._times is None else self._times.newest

    def _has_aged(self) -> bool:
        """Whether the open window should close because newer releases have another age."""
        window, sums = self._window, self._sums
        if not self._forgets or sums is None or window.taken % self._task.slots:
            return False
        now = self._models.newest, self._seconds()
        return closes_early(self._task, (sums.model, self._began), now)

    def _settle(self, now: float, *, ended: bool = False) -> None:
        """Do with the open window what the policy says."""
        decision = self._policy.decide(self._open_window(ended=ended), self._directive, now)
        free, before = self._chained or self._share_left() > 0, self._window
        if free and (isinstance(decision, Send) or self._has_aged()):
            self._close()
        elif isinstance(decision, Discard):
            self._window = Window(self._task.slots)
            self._discarded += 1
            self._faults.clear()
        self._left -= self._window is not before

    def _allowance(self, windows: int) -> int:
        """Return how many slots may be read now for so many windows, one at least."""
        room = self._window.room
        most = room + max(0, min((windows - 1) * self._task.slots, GROUP_SLOTS - room))
        if self._chained:
            # windows grow, and a large one takes several turns: Kafka does not wait for its end
            most = GROUP_SLOTS if windows > 1 else min(room, GROUP_SLOTS)
        if self._rate is None:
            return most
        due = int((self._clock() - self._started) * self._rate) - self.progress.records
        # a turn costs the same for one record as for many: wait until some are due
        if due < min(room, max(1.0, self._rate * TURN_SECONDS)):
            time.sleep(min(self._patience, TURN_SECONDS / 2))
            return 0
        return min(most, due)

    @property
    def _patience(self) -> float:
        # what waits for its claim leaves as soon as that is there
        return CLAIM_SECONDS if self._sender.claiming else TURN_SECONDS

    def _take(self, slots: Sequence[Slot]) -> None:
        """Put slots into the open window, which has room for all of them."""
        self.progress.records += len(slots)
        if self._admission is not None:
            self._admission.take(slots)
        block = encoded(self._encoder, self._times, slots)
        # good records count as well, under a name that is dropped: so they take as long
        self._faults += block.reasons.count()
        self._usable += block.usable
        for line in (*self._jumps.take(block.reasons), *self._clips.take(block.beyond)):
            self._say(line)
        self._window.add(block, behind(slots), self._clock())

    def _close(self) -> None:
        window, model = self._window, self._models.newest
        if window.position is None:
            return
        self._faults.pop("", None)
        if self._test is not None:
            self._test.take(window.taken, window.usable, self._faults)
        tally = Tally(window.usable, dict(self._faults), window.clipped)
        if self._sums is not None:
            model = self._sums.model
            self._making.sums(self._sums.close(), tally=tally, position=window.position)
            self._sums = None
        else:
            self._making.window(window.slots, model, tally=tally, position=window.position)
        self._directive, self._discarded = self._directive.after(1), 0
        self._window = Window(self._task.slots)
        self._faults.clear()
