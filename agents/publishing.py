"""The estimate step: merge the partitions, estimate, publish the estimate and the next model."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from agents.folding import Folding, Send
from agents.newest_model import Extent, NewestModel, Read
from agents.pace import Pace
from agents.progress import STALLED_SECONDS
from pipeline.errors import NumericError
from pipeline.messages.authentic import Authenticator
from pipeline.messages.envelope import json_headers, rfc3339
from pipeline.messages.estimate import EstimateMessage, write_estimate
from pipeline.messages.model import write_model
from pipeline.messages.topics import Topics
from pipeline.reducer import (
    Summed,
    combine,
    holds_releases,
    model_after,
    slots_seen,
    start_is_over,
)
from pipeline.release.task import Task
from state import Held, RedisStore

log = logging.getLogger("veilstream.publishing")
#: Seconds between two looks at whether the models topic still has the newest one.
LOOK_SECONDS = 10.0
#: So many of its last messages are looked at then: whoever fills the topic holds nobody up.
RECENT = 1_000


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
        self,
        task: Task,
        topics: Topics,
        store: RedisStore,
        folding: Folding,
        send: Send,
        read: Read,
        extent: Extent,
        now: Callable[[], float] = time.monotonic,
        trust: Authenticator | None = None,
    ) -> None:
        self._task, self._topics, self._store = task, topics, store
        self._folding, self._send, self._now, self._trust = folding, send, now, trust
        self._models = NewestModel(task, topics, store, send, read, extent, trust)
        self._pace = Pace()
        #: When it was last seen that the models topic has the newest one; None: not yet.
        self._looked: float | None = None
        #: What the last estimate stood for, and when it was made, in seconds since 1970.
        self._releases, self._at = -1, 0.0
        #: Partitions of other workers as they were last read, with the bytes of their heads.
        self._others: dict[int, Held] = {}
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
        """Publish at the study's rhythm until cancelled."""
        rhythm = self._task.study.stream.publish
        while True:
            await self._wait(min(rhythm.seconds, LOOK_SECONDS))
            if not self.owner:
                self._looked, self._failing = None, None
                continue
            self._begun = self._now()
            await self._look_at_models()
            await self.publish_if_due(time.time())
            self._begun = None
            await asyncio.sleep(rhythm.pause)

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
        """Publish if enough releases or enough time have passed; return whether it did."""
        rhythm = self._task.study.stream.publish
        partitions = self._partitions()
        # those of clients that were taken out count, too: an estimate stands for them as well
        heads = [state.head for state in partitions.values()]
        releases = sum(head.folded + head.erased for head in heads)
        new = releases - self._releases
        waited = now - self._at
        if new <= 0 or (new < rhythm.releases and waited < rhythm.seconds):
            return False
        if releases == 0:
            return False
        done = await self._publish(partitions, now)
        # after a failure, too: the next one waits for as many new releases as any other
        self._releases, self._at = releases, now
        if done:
            self._failing = None
        return done

    async def _publish(self, partitions: dict[int, Summed], now: float) -> bool:
        if self._store.newest_model() != self._models.held:
            # Redis may have lost it since, and clients that have it wait for a newer one
            await self._models.send_again()
        version, watermark, known = self._models.after(slots_seen(partitions.values()))
        # the estimate goes out in any case; the first model may have to wait for more releases, and
        # where all clients were taken out there is nothing to make a model of
        moves = holds_releases(partitions.values()) and (
            known or start_is_over(self._task, partitions.values())
        )
        try:
            estimate, message = combine(
                self._task,
                partitions,
                topic=self._topics.releases.name,
                model_version=version if moves else None,
                published_at=now,
                records_per_second=self._pace.rate(self._now(), slots_seen(partitions.values())),
            )
            model = model_after(
                self._task, partitions, (estimate.expansion, estimate.weights), version, watermark
            )
        except NumericError as error:
            log.warning("no estimate at this point: %s", error)
            since = self._now() if self._failing is None else self._failing[0]
            self._failing = since, str(error)
            return False
        study, written = self._task.study.name, self._models.signed(write_estimate(message))
        identity = f"{self._task.revision}/{message.state_version}"
        marks = json_headers("estimate/1", study, identity, rfc3339(now))
        if self._trust is not None:
            model = self._trust.ticketed(model)
        payload = (
            self._models.signed(write_model(self._task, model, rfc3339(now))) if moves else b""
        )
        if moves:
            # stored first: a crash before it is sent is mended by the next owner
            self._models.keep(version, payload)
        sends = [
            self._send(topic.name, study.encode(), written, marks)
            for topic in (self._topics.estimates, self._topics.latest)
        ]
        if moves:
            sends.append(self._models.send(now))
        await asyncio.gather(*sends)
        self.message = message
        self._folding.meters.published(message.event_time)
        return True

    def _partitions(self) -> dict[int, Summed]:
        """Return the sums of every partition: this worker's own, the others' as committed."""
        mine = self._folding.partitions
        every = range(self._topics.releases.partitions)
        self._others = self._store.summed([n for n in every if n not in mine], self._others)
        return {n: mine[n] if n in mine else self._others[n][1] for n in every}

    async def _wait(self, seconds: float) -> None:
        """Wait for a commit of this worker, or a while: other workers commit unseen."""
        try:
            # and not `wait_for`, which until Python 3.12 may lose a cancellation that comes with
            # the event: this worker would not end
            async with asyncio.timeout(seconds):
                await self._folding.moved.wait()
        except TimeoutError:
            return
        self._folding.moved.clear()
