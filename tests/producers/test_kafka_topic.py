"""A topic as a source: nothing lost and nothing twice, on a real Kafka."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaAdminClient, KafkaProducer, TopicPartition
from kafka.admin import NewTopic

from infra.preflight import check_servers
from pipeline.errors import BrokerError, ConfigError, DataError
from pipeline.settings import Settings
from producers.rollback import owe
from producers.sources import kind_of, known_as, open_source
from producers.sources.kafka import KafkaTopic, topic_spec
from producers.sources.text import RECORD_LIMIT
from producers.start import Job, run_client
from tests.compliance.sources import CANARY, CHECKS, Case, drain
from tests.stage import OPEN, PATIENCE, Stage, send, study_text, until

pytestmark = pytest.mark.kafka
#: Of the first record, in milliseconds: Kafka deletes those that are a week old.
EARLIER = int(time.time() * 1000) - 600_000


class Topics:
    """Topics of one test."""

    def __init__(self, kafka: str) -> None:
        self.kafka, self.settings = kafka, Settings(kafka=kafka)
        self.admin = KafkaAdminClient(bootstrap_servers=kafka)
        self.names: list[str] = []

    def make(self, partitions: int = 1, name: str | None = None, **configs: str) -> str:
        name = name or f"source-{uuid.uuid4().hex[:12]}"
        self.admin.create_topics([NewTopic(name, partitions, 1, topic_configs=configs)])
        self.names.append(name)
        self._settle(name, partitions)
        return name

    def remove(self, name: str) -> None:
        self.admin.delete_topics([name])
        self._settle(name, 0)

    def open(self, name: str, position: bytes | None = None, *, follow: bool = False) -> KafkaTopic:
        found = open_source(
            f"kafka://{name}", position, folder=Path(), follow=follow, settings=self.settings
        )
        assert isinstance(found, KafkaTopic)
        return found

    def _settle(self, name: str, partitions: int) -> None:
        until(lambda: (name in self.admin.list_topics()) == bool(partitions), name)


@pytest.fixture
def topics(kafka: str) -> Iterator[Topics]:
    made = Topics(kafka)
    yield made
    # one that was made anew is named twice, and a broker may list it a moment after it is gone
    for name in dict.fromkeys(made.names):
        if name in made.admin.list_topics():
            made.admin.delete_topics([name])
    made.admin.close()


def told(**fields: object) -> bytes:
    return json.dumps(fields).encode()


def fill(topics: Topics, name: str, count: int, partitions: int, start: int = 0) -> None:
    send(
        topics.kafka,
        name,
        (
            {
                "value": told(x=number),
                "partition": number % partitions,
                "timestamp_ms": EARLIER + number,
            }
            for number in range(start, start + count)
        ),
    )


@pytest.mark.parametrize("check", CHECKS, ids=[check.__name__ for check in CHECKS])
@pytest.mark.takes("each check opens the topic for each of its records")
def test_a_topic_keeps_what_every_source_must(
    check: Callable[[Case], None], topics: Topics
) -> None:
    name = topics.make(partitions=2)
    values = [told(x=1), CANARY.encode(), None, told(x=2), b"[1]", b"\xff", told(x=3, y=CANARY)]
    send(
        topics.kafka,
        name,
        [
            {"value": value, "key": b"k", "partition": number % 2, "timestamp_ms": EARLIER + number}
            for number, value in enumerate(values)
        ],
    )
    check(Case(lambda position: topics.open(name, position), bad=4))


@pytest.mark.parametrize(
    ("codec", "kept"),
    [(codec, "producer") for codec in ("gzip", "snappy", "lz4", "zstd")] + [("gzip", "lz4")],
)
def test_records_are_read_however_they_are_packed(topics: Topics, codec: str, kept: str) -> None:
    """By the one who sends them, and by Kafka, which packs them anew."""
    name = topics.make(**{"compression.type": kept})
    producer = KafkaProducer(
        bootstrap_servers=topics.kafka, compression_type=codec, linger_ms=200, batch_size=1 << 20
    )
    # more than a megabyte in one batch, once it is unpacked
    for number in range(40):
        producer.send(name, value=told(x=number, y="a" * 50_000))
    producer.close()
    source = topics.open(name)
    assert [slot.record["x"] for slot in drain(source)] == list(range(40))


def test_partitions_are_joined_by_time_whatever_the_broker_answers_first(topics: Topics) -> None:
    name = topics.make(partitions=3)
    fill(topics, name, 40, 3)
    assert [slot.record["x"] for slot in drain(topics.open(name))] == list(range(40))


@pytest.mark.slow
def test_a_partition_that_had_to_wait_for_a_short_one_is_read_to_its_end(
    topics: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("producers.sources.kafka._AHEAD", 500)
    name = topics.make(partitions=2)
    producer = KafkaProducer(bootstrap_servers=topics.kafka)
    # more than one answer of Kafka hands out, and beside it a few of another partition
    for number in range(5000):
        at = {"partition": int(number % 500 == 7), "timestamp_ms": EARLIER + number}
        producer.send(name, told(x=number), **at)
    producer.close()
    source, found = topics.open(name), list[Any]()
    until(lambda: found.extend(source.read(1000, 0.2)) or source.ended, "it is read to its end")
    source.close()
    assert [slot.record["x"] for slot in found] == list(range(5000))


def test_it_ends_where_the_topic_ended_at_the_start_and_follows_when_asked(topics: Topics) -> None:
    name = topics.make()
    fill(topics, name, 3, 1)
    bounded, following = topics.open(name), topics.open(name, follow=True)
    fill(topics, name, 2, 1, start=3)
    assert len(drain(bounded)) == 3
    found: list[Any] = []
    while len(found) < 5:
        found += following.read(10, 1.0)
    assert [slot.record["x"] for slot in found] == [0, 1, 2, 3, 4]
    assert not following.ended
    assert following.progress is None
    assert following.read(10, 0.0) == []
    following.close()


def test_transactions_that_were_aborted_are_not_read(topics: Topics) -> None:
    name = topics.make()
    producer = KafkaProducer(
        bootstrap_servers=topics.kafka, transactional_id=f"t-{uuid.uuid4().hex}"
    )
    producer.init_transactions()
    for number, end in enumerate(("commit", "abort", "commit")):
        producer.begin_transaction()
        producer.send(name, told(x=number)).get(timeout=PATIENCE)
        getattr(producer, f"{end}_transaction")()
    producer.close()
    slots = drain(topics.open(name))
    assert [slot.record["x"] for slot in slots] == [0, 2]
    assert drain(topics.open(name, slots[0].position)) == slots[1:]


def test_fields_are_found_by_their_paths(topics: Topics) -> None:
    name = topics.make()
    deep = {"id": 7, "body": {"amount": {"value": 2.5}, "kind": None}}
    send(topics.kafka, name, [{"value": json.dumps(value).encode()} for value in (deep, {"id": 8})])
    source = open_source(
        f"kafka://{name}?field=amount:body.amount.value&field=kind:body.kind&field=n:id",
        None, folder=Path(), settings=topics.settings,
    )  # fmt: skip
    found = [slot.record for slot in drain(source)]  # type: ignore[arg-type]
    assert found == [{"amount": 2.5, "kind": None, "n": 7}, {"n": 8}]


def test_a_message_of_ten_megabytes_is_one_empty_slot(topics: Topics) -> None:
    name = topics.make(**{"max.message.bytes": str(16 * 2**20)})
    big = told(x="a" * (10 * RECORD_LIMIT))
    send(topics.kafka, name, [{"value": told(x=1)}, {"value": big}, {"value": told(x=2)}])
    slots = drain(topics.open(name))
    assert [slot.record and slot.record["x"] for slot in slots] == [1, None, 2]
    assert slots[1].fault == "partition 0, offset 1: the message is too long"


def test_records_that_kafka_deleted_unread_are_told_and_passed_over_only_when_asked(
    topics: Topics,
) -> None:
    name = topics.make()
    fill(topics, name, 10, 1)
    position = drain(topics.open(name))[3].position
    topics.admin.delete_records(_partition(name, 7))
    with pytest.raises(DataError, match=r"up to 3 records of partition 0 .* lost=skip"):
        topics.open(name, position)
    skipping = open_source(
        f"kafka://{name}?lost=skip", position, folder=Path(), settings=topics.settings
    )
    assert [slot.record["x"] for slot in drain(skipping)] == [7, 8, 9]  # type: ignore[arg-type]


@pytest.mark.parametrize("records", [pytest.param(2, marks=pytest.mark.slow), 20])
def test_a_topic_that_was_made_anew_is_not_the_one_that_was_read(
    topics: Topics, records: int
) -> None:
    name = topics.make()
    fill(topics, name, 10, 1)
    position = drain(topics.open(name))[6].position
    topics.remove(name)
    topics.make(name=name)
    fill(topics, name, records, 1, start=500)
    with pytest.raises(DataError, match="made anew"):
        drain(topics.open(name, position))


@pytest.mark.slow
def test_new_records_of_a_topic_made_anew_have_a_client_of_their_own(
    topics: Topics, tmp_path: Path, redis_url: str
) -> None:
    text = study_text(records=10, privacy=OPEN, stream="max_in_flight_windows = 0")
    name = topics.make()

    def run(stage: Stage, client: str, **options: Any) -> None:
        fields = ({"heat": n, "load": 0, "failed": "yes"} for n in range(20))
        send(topics.kafka, name, ({"value": json.dumps(each).encode()} for each in fields))
        job = Job(f"{client}-{name}", f"kafka://{name}", **options)
        run_client(stage.task, stage.settings, job, report=lambda _: None)

    with Stage(tmp_path, topics.kafka, redis_url, text) as stage:
        run(stage, "one")
        topics.remove(name)
        topics.make(name=name)
        with pytest.raises(DataError, match=r"client of another id read it, .* --other-data"):
            run(stage, "one")
        run(stage, "two", other_data=True)
        assert len(stage.releases()) == 2 + 4


def test_a_topic_that_is_not_there_is_not_made(topics: Topics) -> None:
    name = f"no-such-{uuid.uuid4().hex[:8]}"
    with pytest.raises(DataError, match="is not there"):
        topics.open(name)
    assert name not in topics.admin.list_topics()


def test_a_position_of_another_source_is_refused(topics: Topics) -> None:
    one, other = topics.make(), topics.make()
    fill(topics, one, 2, 1)
    position = drain(topics.open(one))[0].position
    for wrong in (position, b"{}", b"\xff"):
        with pytest.raises(DataError, match="not one of this topic"):
            topics.open(other, wrong)


def test_the_source_may_be_on_another_kafka_and_its_faults_name_its_settings(kafka: str) -> None:
    elsewhere = Settings(kafka=kafka, source_kafka="localhost:1", source_kafka_username="u")
    assert elsewhere.of_source().kafka == "localhost:1"
    assert elsewhere.of_source().kafka_username == "u"
    assert Settings(kafka=kafka, source_kafka_username="u").of_source().kafka_username == ""
    check_servers(Settings(kafka=kafka))
    with pytest.raises(BrokerError, match="VEILSTREAM_SOURCE_KAFKA"):
        open_source("kafka://any", None, folder=Path(), settings=elsewhere)


@pytest.mark.parametrize(
    "spec",
    [
        "kafka://",
        "kafka://a/b",
        "kafka://a?group=g",
        "kafka://a?field=x",
        "kafka://a?field=x:a..b",
        "kafka://a?field=x:a&field=x:b",
        "kafka://a?lost=keep",
        "kafka://a#b",
    ],
)
def test_what_names_no_topic_is_refused_with_the_form_that_does(spec: str) -> None:
    with pytest.raises(DataError, match=r"kafka://TOPIC"):
        topic_spec(spec)


def test_a_topic_is_known_by_its_name_and_only_clients_read_it() -> None:
    spec = "kafka://payments?field=a:b"
    assert known_as(spec) == ("kafka:payments", "kafka://payments", "")
    assert kind_of(spec) == "topic"
    with pytest.raises(DataError, match="veilstream produce"):
        open_source(spec, None, folder=Path())
    with pytest.raises(DataError, match="but not 'b', 'at': the data owner must add field=NAME:"):
        open_source(spec, None, folder=Path(), settings=Settings(), columns=["a", "b", "at"])
    for wrong in ({"source_kafka": "nowhere"}, {"source_kafka_security": "TLS"}):
        with pytest.raises(ConfigError, match="VEILSTREAM_SOURCE_KAFKA"):
            Settings(**wrong).check()


@pytest.mark.parametrize(("partitions", "repeats"), [(1, True), (2, False)])
def test_only_one_partition_has_an_order_in_which_lost_records_can_be_counted(
    topics: Topics, partitions: int, repeats: bool
) -> None:
    name = topics.make(partitions=partitions)
    source = topics.open(name)
    assert source.repeats is repeats
    source.close()
    if not repeats:
        unused: Any = None
        with pytest.raises(ConfigError, match=r"--skip-lost: .* several partitions"):
            owe(unused, unused, source, name, unused, 0.0, unused)


@pytest.mark.redis
def test_another_client_on_the_same_topic_is_refused(
    tmp_path: Path, topics: Topics, redis_url: str
) -> None:
    name, value = topics.make(partitions=2), told(heat=50, load=0.5, failed="yes")
    send(topics.kafka, name, ({"value": value, "partition": at % 2} for at in range(40)))
    with Stage(tmp_path, topics.kafka, redis_url, study_text(privacy=OPEN, records=10)) as stage:
        stage.ensure_topics()
        words = "produce", stage.study, "--source", f"kafka://{name}", "--client"
        assert stage.run(*words, "c").returncode == 0
        again = stage.run(*words, "d")
        assert again.returncode == 10
        assert "the same topic" in again.stderr


def _partition(name: str, before: int) -> dict[Any, int]:
    return {TopicPartition(name, 0): before}


def test_a_topic_made_anew_with_the_same_times_is_known_by_its_records(topics: Topics) -> None:
    name = topics.make()
    fill(topics, name, 10, 1)
    position = drain(topics.open(name))[6].position
    assert [slot.record["x"] for slot in drain(topics.open(name, position))] == [7, 8, 9]
    topics.remove(name)
    topics.make(name=name)
    others = ({"value": told(x=100 + at), "timestamp_ms": EARLIER + at} for at in range(10))
    send(topics.kafka, name, others)
    with pytest.raises(DataError, match="made anew"):
        drain(topics.open(name, position))
