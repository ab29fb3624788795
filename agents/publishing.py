"""The estimate step: when one is due, merge, estimate, publish the estimate and the next model.

Redis and the models topic both have the newest model: no version is given twice.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass

from agents.folding import STALLED_SECONDS, Folding, Send
from pipeline.errors import NumericError, PayloadError, StateError
from pipeline.messages.authentic import Authenticator
from pipeline.messages.envelope import json_headers, rfc3339
from pipeline.messages.estimate import EstimateMessage, write_estimate
from pipeline.messages.model import Newest, is_possible, read_model, write_model
from pipeline.messages.topics import Topics
from pipeline.release.model import Model
from pipeline.release.policy import Rhythm
from pipeline.release.task import Task
from pipeline.stream.merge import (
    combine,
    expansion_of,
    holds_releases,
    model_after,
    slots_seen,
    start_is_over,
)
from pipeline.stream.partition import Summed
from pipeline.study.model import Publish
from state import Held, RedisStore
from state.codec import model_key

log = logging.getLogger("veilstream.publishing")
#: Reads a topic of one partition, or its last so many offsets: name to offsets and values.
Read = Callable[[str, int | None], Awaitable[Sequence[tuple[int, bytes | None]]]]
#: Where a topic of so many partitions begins and ends: the sums of their first and next offsets.
Extent = Callable[[str, int], Awaitable[tuple[int, int]]]


class NewestModel:
    """Keeps the newest model of a study in Redis and in its topic.

    task, topics, store: The study, its topics and its snapshots.
    send: As in `agents.folding`.
    read: Returns all messages that a small topic holds.
    extent: Tells where topics begin and end.
    trust: The study's keys, which sign it where releases are authenticated.

    held: Version and payload as this worker left them in Redis; None: none.
    """

    def __init__(
        self, task: Task, topics: Topics, store: RedisStore, send: Send, read: Read,
        extent: Extent, trust: Authenticator | None,
    ) -> None:  # fmt: skip
        self._task, self._topics, self._store, self._trust = task, topics, store, trust
        self._send, self._read, self._extent = send, read, extent
        self.held: tuple[int, bytes] | None = None
        self._end: int | None = None
        self._sent = 0

    def begin(self) -> None:
        """Forget where the topic ended: another worker has written to it, or may have."""
        self._end = None

    async def is_lost(self) -> bool:
        """Whether the models topic was made anew, emptied or written by others since the last look.

        Compaction leaves the last model of all, which may be an old one that somebody repeats.
        """
        expected, (first, self._end) = self._end, await self._extent(self._topics.models.name, 1)
        sent, self._sent = self._sent, 0
        others = expected is not None and self._end != expected + sent
        return self.held is not None and (first >= self._end or others)

    def keep(self, version: int, payload: bytes) -> None:
        """Store a model as the newest; it is to be sent afterwards."""
        self._store.store_model(version, payload)
        self.held = version, payload

    def after(self, watermark: int) -> tuple[int, int, bool]:
        """Return version and watermark of the next model; whether clients can read the held one.

        Neither number goes back if Redis was lost.

        watermark: How many record slots the sums have seen.
        """
        held = self.held
        if held is None:
            return 1, watermark, False
        try:
            before = self._read_model(held[1]).watermark
        except PayloadError:
            # of an earlier revision of the study, whose buckets are gone with its state
            return 1 + held[0], watermark, False
        return 1 + held[0], max(watermark, before), True

    async def send_again(self, last: int | None = None) -> None:
        """Bring Redis and the models topic to the same newest model.

        The last owner may have died between storing a model and sending it. Redis may have lost
        its last second, or everything; clients take newer versions only, so none may be given
        twice. The topic is believed as far as clients believe it, and no release is asked: a client
        can claim any version.

        last: Look at so many of the topic's newest messages; None: at all.

        StateError if Redis holds a model that nobody can have published.
        """
        held = self._store.newest_model()
        if held is not None and not is_possible(self._task.study, held[0], time.time()):
            raise StateError(
                f"Redis holds a model of study {self._task.study.name!r} with version {held[0]}, "
                "which no worker can have reached: somebody else wrote it. The operator must "
                "check who may write to Redis, remove the key "
                f"{model_key(self._task.study.name)!r} and start the worker again"
            )
        if held is not None and self._trust is not None:
            self._check_held(held[1])
        messages = await self._read(self._topics.models.name, last)
        releases = self._topics.releases
        _, length = await self._extent(releases.name, releases.partitions)
        sent = self._newest_of(messages, length, known=held is not None)
        if sent is not None and (held is None or sent[0] > held[0]):
            self._store.store_model(*sent)
            held = sent
        self.held = held
        # also where it is the topic's: an older one that somebody repeats may stand behind it
        await self.send(time.time())

    def _newest_of(
        self, messages: Sequence[tuple[int, bytes | None]], releases: int, *, known: bool
    ) -> tuple[int, bytes] | None:
        """Return version and payload of the newest believable model among some messages.

        releases: Length of the releases topic.
        known: Whether Redis has a model as well: then they must be explained by the logs.
        """
        newest: tuple[int, bytes] | None = None
        believed = Newest(self._task, lambda: releases, time.time)
        for offset, payload in messages:
            try:
                model = self._read_model(payload or b"")
            except PayloadError:
                continue
            outcome = believed.take(offset, model)
            if outcome == "taken":
                newest = model.version, payload or b""
            elif outcome == "refused":
                log.warning(
                    "%s has a model of version %d, which no worker can have reached: somebody "
                    "else writes to the topic; the operator must check who may",
                    self._topics.models.name, model.version,
                )  # fmt: skip
        return newest if believed.explained or not known else None

    def signed(self, payload: bytes) -> bytes:
        """Return JSON with the study's signature, where it signs."""
        return payload if self._trust is None else self._trust.sign(payload)

    def _read_model(self, payload: bytes) -> Model:
        """Read a model that this study has published; PayloadError if it is none."""
        if self._trust is not None:
            self._trust.check(payload)
        return read_model(self._task, payload)

    def _check_held(self, payload: bytes) -> None:
        try:
            self._read_model(payload)
        except PayloadError as error:
            if error.reason in {"unsigned", "forged"}:
                raise StateError(
                    f"Redis holds a model of study {self._task.study.name!r} that its key has "
                    "not signed: somebody else wrote it. The operator must check who may write "
                    "to Redis, and run `veilstream study recover` with all workers stopped"
                ) from error

    async def send(self, now: float) -> None:
        """Send the newest model, if there is one."""
        if self.held is None:
            return
        study, (version, payload) = self._task.study.name, self.held
        self._sent += 1
        await self._send(
            self._topics.models.name,
            study.encode(),
            payload,
            json_headers("model/2", study, f"{self._task.revision}/model/{version}", rfc3339(now)),
        )


#: The rate is that over so many seconds, or since the worker began to publish.
LOOK_BACK_SECONDS = 300.0


class Pace:
    """The rate of record slots over the last minutes of publications."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque()

    def rate(self, now: float, slots: int) -> float | None:
        """Note how many slots have come by now; return how many came each second.

        now: Seconds of a clock that never goes back.

        Returns None where there was no publication before this one.
        """
        seen = self._seen
        if seen and slots < seen[-1][1]:
            # another state than before: what came between is not known
            seen.clear()
        seen.append((now, slots))
        while len(seen) > 2 and now - seen[0][0] > LOOK_BACK_SECONDS:
            seen.popleft()
        elapsed = now - seen[0][0]
        return (slots - seen[0][1]) / elapsed if elapsed > 0 else None


#: Seconds between two looks at whether the models topic still has the newest one.
LOOK_SECONDS = 10.0
#: So many of its last messages are looked at then: whoever fills the topic holds nobody up.
RECENT = 1_000
#: Seconds between two looks at what other workers have committed, which nobody tells this one.
OTHERS_SECONDS = 0.1


class Publishing:
    """Publishes estimates and models of one study; the owner of partition 0 does it alone.

    task, topics, store, folding: The study, its topics, its snapshots, and this worker's
        partitions.
    send: As in `agents.folding`.
    read: Returns all messages that a small topic holds.
    extent: Tells where topics begin and end.
    now: A clock in seconds that never goes back.
    trust: The study's keys, which sign what it publishes where releases are authenticated.
    """

    def __init__(
        self, task: Task, topics: Topics, store: RedisStore, folding: Folding, send: Send,
        read: Read, extent: Extent, now: Callable[[], float] = time.monotonic,
        trust: Authenticator | None = None,
    ) -> None:  # fmt: skip
        self._task, self._topics, self._store = task, topics, store
        self._folding, self._send, self._now, self._trust = folding, send, now, trust
        self._models = NewestModel(task, topics, store, send, read, extent, trust)
        self._pace, self._due = Pace(), Due(task.study.stream.publish, task.rhythm)
        #: When it was last seen that the models topic has the newest one; None: not yet.
        self._looked: float | None = None
        #: Seconds after which something is due even if this worker commits nothing.
        self._patience = 0.0
        #: Partitions of other workers as they were last read, with the bytes of their heads; when.
        self._others: dict[int, Held] = {}
        self._others_at = -OTHERS_SECONDS
        #: This worker's last estimate; None before the first.
        self.message: EstimateMessage | None = None
        #: Since when a step is on its way, and since when none has come to its end, and why.
        self._begun: float | None = None
        self._failing: tuple[float, str] | None = None

    @property
    def owner(self) -> bool:
        """Whether this worker publishes."""
        return 0 in self._folding.partitions

    def faults(self) -> list[str]:
        """Return a sentence if the estimate step has failed, or hung, for `STALLED_SECONDS`."""
        now = self._now()
        if not self.owner:
            return []
        if self._begun is not None and now - self._begun >= STALLED_SECONDS:
            return [f"an estimate has taken {now - self._begun:.0f} s so far"]
        if self._failing is not None and now - self._failing[0] >= STALLED_SECONDS:
            since, why = self._failing
            return [f"there has been no estimate for {now - since:.0f} s: {why}"]
        return []

    async def run(self) -> None:
        """Publish estimates and models, each at its rhythm, until cancelled."""
        while True:
            await self._wait(min(self._patience, LOOK_SECONDS))
            if not self.owner:
                self._looked, self._failing, self._patience = None, None, LOOK_SECONDS
                self._folding.came.clear()
                continue
            self._begun = self._now()
            await self._look_at_models()
            await self.publish_if_due(time.time())
            self._begun = None

    async def _look_at_models(self) -> None:
        """Have the newest model in its topic: where that was made anew, clients wait for it."""
        now = self._now()
        if self._looked is None:
            self._models.begin()
            await self._models.send_again()
        elif now - self._looked < LOOK_SECONDS:
            return
        elif await self._models.is_lost():
            log.warning(
                "%s was made anew, or somebody else writes to it, or two workers have published at "
                "once: the newest model is sent again",
                self._topics.models.name,
            )
            await self._models.send_again(RECENT)
        self._looked = now

    async def publish_if_due(self, now: float) -> bool:
        """Publish an estimate, a model, or both, if they are due; return whether any was.

        A model waits for no estimate: clients may be waiting for it.

        now: Seconds since 1970.
        """
        partitions = self._partitions()
        counts, at = Counts.of(partitions.values()), self._now()
        most = max(self._folding.came.values(), default=0)
        estimate, model = self._due.estimate(counts, at), self._due.model(counts, most, at)
        if self._models.held is None and not start_is_over(self._task, partitions.values()):
            # not before more releases have come, and none does without a commit
            model = None
        waits = [wait for wait in (estimate, model) if wait is not None]
        if len(self._folding.partitions) < len(partitions):
            waits.append(OTHERS_SECONDS)
        self._patience = min([LOOK_SECONDS, *waits])
        if 0.0 not in {estimate, model}:
            return False
        # the sums as they are now: what is folded while Kafka takes this, the next ones tell
        self._folding.came.clear()
        return await self._publish(
            partitions, counts, now, estimated=estimate == 0.0, moving=model is not None
        )

    async def _publish(
        self, partitions: dict[int, Summed], counts: Counts, now: float,
        *, estimated: bool, moving: bool,
    ) -> bool:  # fmt: skip
        begun = self._now()
        if self._store.newest_model() != self._models.held:
            # Redis may have lost it since, and clients that have it wait for a newer one
            await self._models.send_again()
        sends: list[Awaitable[object]] = []
        message: EstimateMessage | None = None
        try:
            model, message = self._made(partitions, counts, now, estimated=estimated, moving=moving)
        except NumericError as error:
            log.warning("no estimate at this point: %s", error)
            since = self._now() if self._failing is None else self._failing[0]
            self._failing = since, str(error)
        else:
            self._failing = None
            if model is not None:
                payload = self._models.signed(write_model(self._task, model, rfc3339(now)))
                # stored first: a crash before it is sent is mended by the next owner
                self._models.keep(model.version, payload)
                sends.append(self._models.send(now))
            if message is not None:
                sends += self._estimates(message, now)
        # after a failure, too: the next one waits for as many new releases as any other
        at = self._now()
        if estimated:
            self._due.estimated(counts, at)
        if moving:
            self._due.moved(counts, at, at - begun)
        await asyncio.gather(*sends)
        if message is not None:
            self.message = message
            self._folding.meters.published(message.event_time)
        return bool(sends)

    def _made(
        self, partitions: dict[int, Summed], counts: Counts, now: float,
        *, estimated: bool, moving: bool,
    ) -> tuple[Model | None, EstimateMessage | None]:  # fmt: skip
        """Return the model and the estimate that go out now; NumericError if there can be none.

        moving: Whether the first model may go out, if there is none.
        """
        version, watermark, known = self._models.after(counts.slots)
        # where all clients were taken out there is nothing to make a model of; nor where what Redis
        # holds is no model of this study, and the first one has to wait for more releases
        moves = moving and holds_releases(partitions.values())
        moves = moves and (known or start_is_over(self._task, partitions.values()))
        message: EstimateMessage | None = None
        if estimated:
            estimate, message = combine(
                self._task,
                partitions,
                topic=self._topics.releases.name,
                # the newest that clients can have: this one's, or the last before it
                model_version=version if moves else version - 1 or None,
                published_at=now,
                records_per_second=self._pace.rate(self._now(), counts.slots),
            )
            point = estimate.expansion, estimate.weights
        elif moves:
            point = expansion_of(self._task, [partitions[n] for n in sorted(partitions)])
        if not moves:
            return None, message
        model = model_after(self._task, partitions, point, version, watermark)
        return model if self._trust is None else self._trust.ticketed(model), message

    def _estimates(self, message: EstimateMessage, now: float) -> list[Awaitable[object]]:
        """Return what sends an estimate to its two topics."""
        study = self._task.study.name
        identity = f"{self._task.revision}/{message.state_version}"
        marks = json_headers("estimate/1", study, identity, rfc3339(now))
        written = self._models.signed(write_estimate(message))
        return [
            self._send(topic.name, study.encode(), written, marks)
            for topic in (self._topics.estimates, self._topics.latest)
        ]

    def _partitions(self) -> dict[int, Summed]:
        """Return the sums of every partition: this worker's own, the others' as committed."""
        mine = self._folding.partitions
        every = range(self._topics.releases.partitions)
        others = [n for n in every if n not in mine]
        now = self._now()
        if self._others.keys() != set(others) or now - self._others_at >= OTHERS_SECONDS:
            self._others, self._others_at = self._store.summed(others, self._others), now
        return {n: mine[n] if n in mine else self._others[n][1] for n in every}

    async def _wait(self, seconds: float) -> None:
        """Wait for a commit of this worker, or a while: other workers commit unseen."""
        try:
            async with asyncio.timeout(seconds):
                await self._folding.moved.wait()
        except TimeoutError:
            return
        self._folding.moved.clear()


@dataclass(frozen=True, slots=True)
class Counts:
    """How far all partitions have been folded.

    releases: All that entered sums, those of clients that were taken out, too: an estimate stands
        for them as well.
    slots: Record slots of all releases that came.
    offsets: The sum of the next offsets.
    """

    releases: int = 0
    slots: int = 0
    offsets: int = 0

    @classmethod
    def of(cls, partitions: Iterable[Summed]) -> Counts:
        """Return the counts of all partitions of a study."""
        held = list(partitions)
        heads = [partition.head for partition in held]
        releases = sum(head.folded + head.erased for head in heads)
        return cls(releases, slots_seen(held), sum(head.next_offset for head in heads))


#: An estimate is due, too, when slots have grown by one part in so many: a backlog goes from its
#: first interval to ten times as many records in less time than passes between two estimates.
PART = 10


class Due:
    """Says how long the next estimate and the next model have still to wait.

    publish: The study's rhythm of estimates, which holds no model back.
    rhythm: That of models.
    """

    def __init__(self, publish: Publish, rhythm: Rhythm) -> None:
        self._publish, self._rhythm = publish, rhythm
        self._estimated, self._moved = (Counts(), -math.inf), (Counts(), -math.inf)
        #: Seconds that the last model took: unless slots grow, as long is left for folding.
        self._took = 0.0

    def estimate(self, counts: Counts, now: float) -> float | None:
        """Return in how many seconds an estimate is due; None: not before there are releases.

        now: Seconds of a clock that never goes back.
        """
        before, at = self._estimated
        new, publish = counts.releases - before.releases, self._publish
        if new <= 0:
            return None
        if PART * (counts.slots - before.slots) >= before.slots:
            return 0.0
        wait = 0.0 if new >= publish.releases else publish.seconds
        return max(0.0, at + max(wait, publish.pause) - now)

    def model(self, counts: Counts, most: int, now: float) -> float | None:
        """Return in how many seconds a model is due; None: not before there is something to tell.

        Releases that were refused count, too: their clients wait to hear that they were read.

        most: How many releases of one client have come since the last model.
        """
        before, at = self._moved
        if counts.offsets <= before.offsets:
            return None
        new = counts.releases - before.releases
        wait = self._rhythm.wait(before.slots, counts.slots, new, most, self._took)
        return max(0.0, at + (self._publish.seconds if wait is None else wait) - now)

    def moved(self, counts: Counts, now: float, took: float) -> None:
        """Note that a model was made, or could not be; took: how long that lasted, in seconds."""
        self._moved, self._took = (counts, now), took

    def estimated(self, counts: Counts, now: float) -> None:
        """Note that an estimate was made, or could not be."""
        self._estimated = counts, now
