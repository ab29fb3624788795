"""The newest model that a client knows, and whether its study is still the running one."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from kafka import KafkaConsumer, TopicPartition
from kafka.errors import KafkaError

from infra.kafka import asking, log_reader
from infra.preflight import Silence
from infra.topics import other_revision
from pipeline.errors import PayloadError, VeilstreamError
from pipeline.messages.admission import Known
from pipeline.messages.model import Newest, read_model
from pipeline.messages.topics import Topics, partition_of
from pipeline.release.model import Model
from pipeline.release.task import Task
from pipeline.settings import Settings
from pipeline.words import counted
from producers.membership import Membership

#: After so many seconds without a message the last of each topic is read again: one that was made
#: anew, and has come to where this client stood, holds another there.
LAST_SECONDS = 10.0


class ModelFeed:
    """Follows the models topic and the study's; a message that is of neither is passed over.

    So is a model that no worker can have published: releases at it could be unreadable, or worth
    nothing, and cost budget.

    task, settings, topics: The study and where Kafka is.
    client: Whose models: those of one partition can have a point of their own.
    say: Told, once, of a model that nobody can have published.
    membership: Whose signatures are believed, where the study signs.

    newest: The newest believable one.
    written: Time of the newest record that was read, in seconds since 1970; 0 before the first.
    refused: Models that are not believed.

    Raises BrokerError if Kafka does not answer; ConfigError if the study's record names another
    revision.
    """

    def __init__(
        self, task: Task, settings: Settings, topics: Topics, client: str,
        say: Callable[[str], None] = lambda _: None, membership: Membership | None = None,
    ) -> None:  # fmt: skip
        self._task = task
        self._partition = partition_of(client.encode(), topics.releases.partitions)
        self.newest: Model = task.first_model
        self.refused = 0
        self.written = 0.0
        self._settings, self._say, self._name = settings, say, topics.models.name
        self._asker: KafkaConsumer | None = None
        self._releases = [
            TopicPartition(topics.releases.name, n) for n in range(topics.releases.partitions)
        ]
        self._believed = Newest(task, self._ends, time.time)
        self._membership, self._clients = membership, topics.clients.name
        self._known, self._study = Known(task.study.name), topics.study.name
        self._silence = Silence(settings)
        #: The last record that was read of each topic, and when any was.
        self._last: dict[str, tuple[int, bytes | None]] = {}
        self._heard = time.monotonic()
        self._places = [
            TopicPartition(topic.name, 0)
            for topic in (topics.models, topics.study, topics.clients)
            if topic is not topics.clients or membership is not None
        ]
        with asking(settings, f"topic {self._name}", "Read"):
            self._consumer = log_reader(settings, wait_ms=200)
        try:
            with asking(settings, f"topic {self._name}", "Read"):
                self._consumer.assign(self._places)
                self._consumer.seek_to_beginning(*self._places)
                self._catch_up()
            if self._known.ignored:
                unread = counted(self._known.ignored, "record")
                say(f"WARNING: {unread} of {self._study} cannot be read")
        except VeilstreamError:
            self.close()
            raise

    def poll(self, seconds: float = 0.0) -> Model:
        """Take what has come, waiting at most `seconds`, and return the newest model.

        Raises BrokerError if Kafka fails in a way that a retry cannot mend, or is gone; ConfigError
        if the study's record names another revision.
        """
        records = self._read(int(seconds * 1000))
        if not records and time.monotonic() - self._heard > LAST_SECONDS:
            self._look_back()
        self._take_all(records)
        if records:
            self._check_revision()
        return self.newest

    @property
    def read_to(self) -> int | None:
        """How far the newest model had read this client's partition of the releases topic.

        That is the next offset: 0 at the public start; None where the model does not say.
        """
        offsets = self.newest.offsets
        if offsets:
            return offsets[self._partition]
        return None if self.newest.version else 0

    def close(self) -> None:
        """Close the connection."""
        for consumer in (self._consumer, self._asker):
            with suppress(KafkaError):
                if consumer is not None:
                    consumer.close()

    def _catch_up(self) -> None:
        """Read all that is there already: a client that starts late must not begin at zero."""
        ends = self._consumer.end_offsets(self._places)
        while any(self._consumer.position(place) < end for place, end in ends.items()):
            self._take_all(self._read(200))
        self._check_revision()

    def _look_back(self) -> None:
        self._heard = time.monotonic()
        with asking(self._settings, f"topic {self._name}", "Read"):
            for place in self._places:
                if stands_at := self._consumer.position(place):
                    self._consumer.seek(place, stands_at - 1)

    def _check_revision(self) -> None:
        running = self._known.revision
        if running is not None and running != self._task.revision:
            raise other_revision(self._task, running)

    def _ends(self) -> int:
        with asking(self._settings, f"topic {self._releases[0].topic}", "Describe"):
            # a connection of its own: the other's answers wait behind what is not there yet
            self._asker = self._asker or log_reader(self._settings, wait_ms=0)
            return sum(self._asker.end_offsets(self._releases).values())

    def _read(self, wait_ms: int) -> list[tuple[str, Any]]:
        with asking(self._settings, f"topic {self._name}", "Read"):
            batches = self._consumer.poll(timeout_ms=wait_ms, max_records=1000)
        self._silence.after(batches)
        records = [(place.topic, record) for place, found in batches.items() for record in found]
        if records:
            self._heard = time.monotonic()
        return records

    def _take_all(self, records: list[tuple[str, Any]]) -> None:
        for topic, record in records:
            self.written = max(self.written, record.timestamp / 1000)
            here = record.offset, record.value
            if self._last.get(topic) == here:
                continue
            self._last[topic] = here
            if topic == self._study:
                self._known.take(record.value)
            elif self._membership is not None and topic == self._clients:
                self._membership.take(record.key, record.value)
            else:
                self._take(record.offset, record.value)

    def _take(self, offset: int, payload: bytes | None) -> None:
        if payload is None:
            return
        try:
            if self._membership is not None:
                self._membership.check(payload)
            model = read_model(self._task, payload)
        except PayloadError:
            return
        outcome = self._believed.take(offset, model)
        held = self.newest.version
        if outcome == "taken":
            self.newest = model.at(self._partition)
        # one that was possible gives way to an older one that the logs explain
        if outcome == "refused" or (outcome == "taken" and model.version < held):
            self._refuse(max(model.version, held))

    def _refuse(self, version: int) -> None:
        self.refused += 1
        if self.refused == 1:
            self._say(
                f"WARNING: {self._name} has a model of version {version} that no worker of this "
                "study can have published: somebody else writes to the topic, or topics were "
                f"made anew. This client ignores it and stays at version {self.newest.version}. "
                "The operator must check who may write there; where topics were made anew, start "
                "this client again"
            )
