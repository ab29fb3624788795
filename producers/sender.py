"""The outbox to Kafka: stored bytes, in order, again and again until acknowledged."""

from __future__ import annotations

import time
from collections import deque
from contextlib import suppress
from typing import Any

from kafka.errors import KafkaError

from infra.kafka import close_producer, record_producer, told
from pipeline.errors import VeilstreamError
from pipeline.messages.envelope import header, milliseconds
from pipeline.messages.topics import Topics, partition_of
from pipeline.settings import Settings
from producers.membership import Membership
from producers.rollback import Claims
from producers.store import ClientStore, Outgoing

#: How long Kafka may refuse a release before the client stops; the outbox keeps it.
PATIENCE_SECONDS = 60
#: Releases handed to kafka-python and not yet acknowledged.
IN_FLIGHT = 500


class Sender:
    """Sends the outbox of one study.

    membership: Puts the MAC on releases, where they have one.
    claims: Where releases are claimed before they leave.
    sent: As `Stream.sent`, where the topic still has that release.

    Raises BrokerError if Kafka does not answer at the start.
    """

    def __init__(
        self, store: ClientStore, study: str, settings: Settings, topics: Topics,
        claims: Claims, membership: Membership | None = None, *,
        sent: tuple[int, int] | None = None,
    ) -> None:  # fmt: skip
        self._store, self._study, self._topic = store, study, topics.releases.name
        self._settings, self._membership, self._claims = settings, membership, claims
        self._key = store.client.encode()
        # of a topic that was given more partitions, those count that the study says
        self._partition = partition_of(self._key, topics.releases.partitions)
        #: Numbers of releases on their way, each with its future.
        self._pending: deque[tuple[int, Any]] = deque()
        self._handed = -1
        #: Offsets of acknowledged releases that the newest model had not seen; and of the last.
        self._unseen = deque[int]()
        self._last = -1
        if sent is not None:
            self._acknowledged(sent[1])
        try:
            name = f"veilstream-{store.client}"
            self._producer = record_producer(settings, PATIENCE_SECONDS, name=name)
        except KafkaError as error:
            raise self._refused(error) from error

    def pump(self) -> None:
        """Hand stored releases to Kafka and note those that it has acknowledged.

        BrokerError if Kafka has refused one for too long; the outbox still holds it. LedgerBehind
        if another copy of this client runs.
        """
        self._collect()
        room = IN_FLIGHT - len(self._pending)
        if room <= 0:
            return
        items = self._store.unsent(self._study, self._handed, room)
        if items or self._claims.due:
            last = items[-1].seq if items else -1
            end = self._claims.may_leave(self._claim, self._study, last)
            items = [item for item in items if item.seq < end]
        for item in items:
            at = _time_of(item)
            try:
                future = self._producer.send(
                    self._topic,
                    key=self._key,
                    partition=self._partition,
                    value=self._leaving(item.payload, at),
                    headers=item.headers,
                    timestamp_ms=at,
                )
            except KafkaError as error:
                raise self._refused(error) from error
            self._pending.append((item.seq, future))
            self._handed = item.seq

    @property
    def claiming(self) -> bool:
        """Whether stored releases wait for their claim, which takes milliseconds."""
        return self._claims.waiting

    def wait(self, seconds: float) -> bool:
        """Wait for the next acknowledgement; return whether one was missing.

        seconds: How long at most.
        """
        if self._claims.waiting:
            self._claims.wait(seconds)
            return True
        if not self._pending:
            return False
        # what failed, the next pump tells
        with suppress(KafkaError):
            self._pending[0][1].get(timeout=seconds)
        return True

    def unseen(self, offset: int | None) -> tuple[int, int]:
        """Return how many acknowledged releases a model had not seen: this client's, and all.

        Of all clients those count that are in this one's partition, up to its own newest.

        offset: How far the model had read that partition; None: it does not say, and is taken to
            have read all.
        """
        seen = self._last + 1 if offset is None else offset
        while self._unseen and self._unseen[0] < seen:
            self._unseen.popleft()
        return len(self._unseen), max(0, self._last + 1 - seen)

    def _acknowledged(self, offset: int) -> None:
        if offset <= self._last:
            # the topic was made anew, and no model will have seen what is gone
            self._unseen.clear()
        self._unseen.append(offset)
        self._last = offset

    def drain(self) -> None:
        """Send everything and wait until it is acknowledged; BrokerError as `pump`."""
        while True:
            self.pump()
            if self.claiming:
                self.wait(PATIENCE_SECONDS)
                continue
            if not self._pending:
                return
            try:
                self._producer.flush(timeout=PATIENCE_SECONDS)
            except KafkaError as error:
                raise self._refused(error) from error

    def close(self) -> None:
        """Close the connection; what is not acknowledged stays in the outbox."""
        close_producer(self._producer)

    def _claim(self, key: bytes, claim: bytes) -> Any:
        """Send what is claimed before releases leave, which holds nothing of any record."""
        return self._producer.send(self._settings.ledger_topic, key=key, value=claim, partition=0)

    def _leaving(self, payload: bytes, at: int) -> bytes:
        """Return a release with its MAC, under the key of the day; sent again, it is the same.

        at: Time of its record, milliseconds since 1970.
        """
        return payload if self._membership is None else self._membership.stamp(payload, at)

    def _refused(self, error: BaseException | None) -> VeilstreamError:
        otherwise = (
            f"Kafka does not take releases ({type(error).__name__}); if {self._topic} is gone, the "
            "operator must see to it (docs/guides/lost-log.md)"
        )
        what = f"topic {self._topic}"
        fault = told(self._settings, error, otherwise, what=what, operation="Write")
        return type(fault)(
            f"{fault}. Releases are kept and will be sent unchanged when this client starts again"
        )

    def _collect(self) -> None:
        done: list[int] = []
        place = None
        while self._pending and self._pending[0][1].is_done:
            seq, future = self._pending.popleft()
            if future.failed():
                raise self._refused(future.exception)
            done.append(seq)
            self._acknowledged(future.value.offset)
            place = future.value.partition, future.value.offset
        if done:
            self._store.sent(self._study, done, place)


def _time_of(item: Outgoing) -> int:
    """Return the time that the release itself states, which is no finer than it should be.

    Kafka refuses the future: what was made while the clock was ahead is of the second it is sent.
    """
    stated, now = header(item.headers, "ce_time"), int(time.time()) * 1000
    return now if stated is None else min(milliseconds(stated.decode()), now)
