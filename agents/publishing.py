"""The estimate step: merge the partitions, estimate, publish the estimate and the next model."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence

from agents.folding import Folding, Send
from agents.pace import Pace
from agents.progress import STALLED_SECONDS
from pipeline.errors import NumericError, PayloadError, StateError
from pipeline.messages.authentic import Authenticator
from pipeline.messages.envelope import json_headers, rfc3339
from pipeline.messages.estimate import EstimateMessage, write_estimate
from pipeline.messages.model import read_model, write_model
from pipeline.messages.newest import Newest, is_possible
from pipeline.messages.topics import Topics
from pipeline.reducer import (
    Summed,
    combine,
    holds_releases,
    model_after,
    slots_seen,
    start_is_over,
)
from pipeline.release.model import Model
from pipeline.release.task import Task
from state import Held, RedisStore
from state.keys import model as model_key

log = logging.getLogger("veilstream.publishing")
#: Reads a topic of one partition: name to offsets and values.
Read = Callable[[str], Awaitable[Sequence[tuple[int, bytes | None]]]]
#: How far a topic of so many partitions reaches: the sum of their next offsets.
Ends = Callable[[str, int], Awaitable[int]]


class Publishing:
    """Publishes estimates and models of one study; the owner of partition 0 does it alone.

    task, topics, store, folding: The study, its topics, its snapshots, and this worker's
        partitions.
    send: As in `agents.folding`.
    read: Returns all messages that a small topic holds.
    ends: Tells how long the releases topic is.
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
        ends: Ends,
        now: Callable[[], float] = time.monotonic,
        trust: Authenticator | None = None,
    ) -> None:
        self._task, self._topics, self._store = task, topics, store
        self._folding, self._send, self._read, self._ends = folding, send, read, ends
        self._now, self._trust = now, trust
        self._resent, self._pace = False, Pace()
        #: What the last estimate stood for, and when it was made, in seconds since 1970.
        self._releases, self._at = -1, 0.0
        #: The newest model as this worker left it in Redis.
        self._held: tuple[int, bytes] | None = None
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
            return [f"an estimate has been on its way for {now - self._begun:.0f} s"]
        if self._failing is not None and now - self._failing[0] >= STALLED_SECONDS:
            since, why = self._failing
            return [f"there has been no estimate for {now - since:.0f} s: {why}"]
        return []

    async def run(self) -> None:
        """Publish at the study's rhythm until cancelled."""
        rhythm = self._task.study.stream.publish
        while True:
            await self._wait(rhythm.seconds)
            if not self.owner:
                self._resent, self._failing = False, None
                continue
            self._begun = self._now()
            if not self._resent:
                await self._send_again()
            await self.publish_if_due(time.time())
            self._begun = None
            await asyncio.sleep(rhythm.pause)

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
        if self._store.newest_model() != self._held:
            # Redis may have lost it since, and clients that have it wait for a newer one
            await self._send_again()
        version, watermark, known = self._next(partitions)
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
        study, written = self._task.study.name, self._signed(write_estimate(message))
        identity = f"{self._task.revision}/{message.state_version}"
        marks = json_headers("estimate/1", study, identity, rfc3339(now))
        if self._trust is not None:
            model = self._trust.ticketed(model)
        payload = self._signed(write_model(self._task, model, rfc3339(now))) if moves else b""
        if moves:
            # stored first: a crash before it is sent is mended by the next owner, see _send_again
            self._store.store_model(version, payload)
            self._held = version, payload
        sends = [
            self._send(topic.name, study.encode(), written, marks)
            for topic in (self._topics.estimates, self._topics.latest)
        ]
        if moves:
            sends.append(self._send_model(version, payload, now))
        await asyncio.gather(*sends)
        self.message = message
        self._folding.meters.published(message.event_time)
        return True

    def _next(self, partitions: dict[int, Summed]) -> tuple[int, int, bool]:
        """Return version and watermark of the next model; whether clients can read the held one.

        Neither number goes back if Redis was lost.
        """
        watermark, held = slots_seen(partitions.values()), self._held
        if held is None:
            return 1, watermark, False
        try:
            before = self._read_model(held[1]).watermark
        except PayloadError:
            # of an earlier revision of the study, whose buckets are gone with its state
            return 1 + held[0], watermark, False
        return 1 + held[0], max(watermark, before), True

    async def _send_again(self) -> None:
        """Bring Redis and the models topic to the same newest model.

        The last owner may have died between storing a model and sending it. Redis may have lost
        its last second, or everything; clients take newer versions only, so none may be given
        twice. The topic is believed as far as clients believe it, and no release is asked: a client
        can claim any version.

        StateError if Redis holds a model that nobody can have published.
        """
        held = self._store.newest_model()
        if held is not None and not is_possible(held[0], time.time()):
            raise StateError(
                f"Redis holds a model of study {self._task.study.name!r} with version {held[0]}, "
                "which no worker can have come to: somebody else wrote it. The operator must see "
                f"to who may, remove the key {model_key(self._task.study.name)!r} and start the "
                "worker again"
            )
        if held is not None and self._trust is not None:
            self._check_held(held[1])
        messages = await self._read(self._topics.models.name)
        releases = self._topics.releases
        length = await self._ends(releases.name, releases.partitions)
        sent = self._newest_of(messages, length, known=held is not None)
        if sent is not None and (held is None or sent[0] > held[0]):
            self._store.store_model(*sent)
            held = sent
        elif held is not None:
            await self._send_model(*held, time.time())
        self._held, self._resent = held, True

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
                    "%s has a model of version %d, which no worker can have come to: somebody else "
                    "writes to the topic; the operator must see to who may",
                    self._topics.models.name, model.version,
                )  # fmt: skip
        return newest if believed.explained or not known else None

    def _signed(self, payload: bytes) -> bytes:
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
                    f"Redis holds a model of study {self._task.study.name!r} that its key has not "
                    "signed: somebody else wrote it. The operator must see to who may write to "
                    "Redis, and run `veilstream study recover` with all workers stopped"
                ) from error

    async def _send_model(self, version: int, payload: bytes, now: float) -> None:
        study = self._task.study.name
        await self._send(
            self._topics.models.name,
            study.encode(),
            payload,
            json_headers("model/2", study, f"{self._task.revision}/model/{version}", rfc3339(now)),
        )

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
