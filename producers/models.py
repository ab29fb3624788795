"""The newest model that a client knows."""

from __future__ import annotations

from kafka import TopicPartition
from kafka.errors import KafkaError

from infra.connection import log_reader
from pipeline.errors import BrokerError, PayloadError
from pipeline.local.model import Model
from pipeline.local.plan import Plan
from pipeline.messages.keys import partition_of
from pipeline.messages.model import read_model
from pipeline.messages.topics import Topics
from pipeline.settings import Settings

#: How long to wait for still newer models, in milliseconds, when one was there already. Kafka
#: answers a request with the first model that follows it, which may be long past when somebody
#: looks; the second answer holds all that have come since.
AGAIN_MS = 10


class ModelFeed:
    """Follows the models topic; a message that is no model of this study is passed over.

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
    """

    def __init__(self, plan: Plan, settings: Settings, topics: Topics, client: str) -> None:
        self._plan = plan
        self._partition = partition_of(client.encode(), topics.releases.partitions)
        self.newest: Model = plan.first_model
        self.ignored = 0
        place = TopicPartition(topics.models.name, 0)
        try:
            self._consumer = log_reader(settings, wait_ms=200)
            self._consumer.assign([place])
            self._consumer.seek_to_beginning(place)
            self._catch_up(place)
        except KafkaError as error:
            raise BrokerError(f"Kafka does not answer ({type(error).__name__})") from error

    def poll(self, seconds: float = 0.0) -> Model:
        """Take what has come, waiting at most `seconds`, and return the newest model.

        Raises
        ------
        BrokerError
            If Kafka fails in a way that a retry cannot mend.
        """
        payloads = self._read(int(seconds * 1000))
        if payloads and not seconds:
            payloads += self._read(AGAIN_MS)
        for payload in payloads:
            self._take(payload)
        return self.newest

    def close(self) -> None:
        """Close the connection."""
        self._consumer.close()

    def _catch_up(self, place: TopicPartition) -> None:
        """Read all that is there already: a client that starts late must not begin at zero."""
        end = self._consumer.end_offsets([place])[place]
        while self._consumer.position(place) < end:
            self.poll(0.2)

    def _read(self, wait_ms: int) -> list[bytes | None]:
        try:
            batches = self._consumer.poll(timeout_ms=wait_ms, max_records=1000)
        except KafkaError as error:
            raise BrokerError(
                f"the models topic cannot be read ({type(error).__name__})"
            ) from error
        return [record.value for records in batches.values() for record in records]

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
