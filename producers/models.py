"""The newest model that a client knows, and whether its study is still the running one."""

from __future__ import annotations

from typing import Any

from kafka import TopicPartition
from kafka.errors import KafkaError

from infra.connection import log_reader
from infra.study_record import other_revision
from pipeline.errors import BrokerError, ConfigError, PayloadError
from pipeline.local.model import Model
from pipeline.local.plan import Plan
from pipeline.messages.keys import partition_of
from pipeline.messages.model import read_model
from pipeline.messages.study import Known
from pipeline.messages.topics import Topics
from pipeline.settings import Settings

#: How long to wait for still newer models, in milliseconds, when one was there already. Kafka
#: answers a request with the first model that follows it, which may be long past when somebody
#: looks; the second answer holds all that have come since.
AGAIN_MS = 10


class ModelFeed:
    """Follows the models topic and the study's; a message that is of neither is passed over.

    Parameters
    ----------
    plan, settings, topics
        The study and where Kafka is.
    client
        Whose models: those of one partition can have a point of their own.

    Raises
    ------
    BrokerError
        If Kafka does not answer.
    ConfigError
        If the study's record names another revision.
    """

    def __init__(self, plan: Plan, settings: Settings, topics: Topics, client: str) -> None:
        self._plan = plan
        self._partition = partition_of(client.encode(), topics.releases.partitions)
        self.newest: Model = plan.first_model
        self.ignored = 0
        self._known, self._study = Known(plan.study.name), topics.study.name
        places = [TopicPartition(topic.name, 0) for topic in (topics.models, topics.study)]
        try:
            self._consumer = log_reader(settings, wait_ms=200)
            self._consumer.assign(places)
            self._consumer.seek_to_beginning(*places)
            self._catch_up(places)
        except KafkaError as error:
            raise BrokerError(f"Kafka does not answer ({type(error).__name__})") from error
        except ConfigError:
            self._consumer.close()
            raise

    def poll(self, seconds: float = 0.0) -> Model:
        """Take what has come, waiting at most `seconds`, and return the newest model.

        Raises
        ------
        BrokerError
            If Kafka fails in a way that a retry cannot mend.
        ConfigError
            If the study's record names another revision.
        """
        records = self._read(int(seconds * 1000))
        if records and not seconds:
            records += self._read(AGAIN_MS)
        self._take_all(records)
        if records:
            self._check_revision()
        return self.newest

    def close(self) -> None:
        """Close the connection."""
        self._consumer.close()

    @property
    def unreadable(self) -> int:
        """How many records of the study's topic were none of this study."""
        return self._known.ignored

    def _catch_up(self, places: list[TopicPartition]) -> None:
        """Read all that is there already: a client that starts late must not begin at zero."""
        ends = self._consumer.end_offsets(places)
        while any(self._consumer.position(place) < end for place, end in ends.items()):
            self._take_all(self._read(200))
        self._check_revision()

    def _check_revision(self) -> None:
        running = self._known.revision
        if running is not None and running != self._plan.revision:
            raise other_revision(self._plan, running)

    def _read(self, wait_ms: int) -> list[Any]:
        try:
            batches = self._consumer.poll(timeout_ms=wait_ms, max_records=1000)
        except KafkaError as error:
            raise BrokerError(
                f"the models topic cannot be read ({type(error).__name__})"
            ) from error
        return [record for records in batches.values() for record in records]

    def _take_all(self, records: list[Any]) -> None:
        for record in records:
            if record.topic == self._study:
                self._known.take(record.value)
            else:
                self._take(record.value)

    def _take(self, payload: bytes | None) -> None:
        if payload is None:
            return
        try:
            model = read_model(self._plan, payload)
        except PayloadError:
            self.ignored += 1
            return
        if model.version > self.newest.version:
            self.newest = model.at(self._partition)
