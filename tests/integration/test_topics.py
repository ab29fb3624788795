"""Topics are made as the study says, and others under their names are refused."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from kafka.admin import ConfigResource, ConfigResourceType, KafkaAdminClient
from kafka.errors import InvalidTimestampError

from infra import topics
from infra.topics import are_there, check_copies, check_partitions, ensure_topics, judged
from pipeline.errors import ConfigError
from pipeline.messages.spend import ledger_topic
from pipeline.messages.topics import Topics, partition_of
from pipeline.settings import Settings
from pipeline.study_file.load import parse_study
from tests.stage import Stage, lent, send, study_text, until, write_csv

DAY = str(86_400_000)


@pytest.fixture
def stage(tmp_path: Path, kafka: str, redis_url: str) -> Iterator[Stage]:
    yield from lent(Stage(tmp_path, kafka, redis_url, study_text(partitions=3)))


@pytest.fixture
def admin(kafka: str) -> Iterator[KafkaAdminClient]:
    with KafkaAdminClient(bootstrap_servers=kafka) as found:
        yield found


DESIGNED = {
    "releases": (3, {"cleanup.policy": "delete", "retention.ms": DAY}),
    "models": (1, {"cleanup.policy": "compact"}),
    "estimates": (1, {"cleanup.policy": "delete", "retention.ms": DAY}),
    "latest": (1, {"cleanup.policy": "compact"}),
    "dlq": (1, {"cleanup.policy": "delete", "retention.ms": "-1"}),
    "study": (1, {"cleanup.policy": "compact"}),
}


def test_topics_are_made_as_designed(stage: Stage, admin: KafkaAdminClient) -> None:
    stage.ensure_topics()
    for kind, (partitions, expected) in DESIGNED.items():
        name = f"veil.{stage.task.study.name}.{kind}.v1"
        assert len(admin.describe_topics([name])[0]["partitions"]) == partitions, kind
        found = configuration(admin, name)
        assert {key: found[key] for key in expected} == expected, kind


def test_nobody_lists_the_topics_of_others(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cluster may have many thousands, which a start would wait for."""

    def listing(*_: object) -> None:
        raise AssertionError("all topics were asked for")

    def named(admin: KafkaAdminClient, topics: list[str] | None = None) -> object:
        assert topics is not None
        return described(admin, topics)

    described = KafkaAdminClient.describe_topics
    monkeypatch.setattr(KafkaAdminClient, "list_topics", listing)
    monkeypatch.setattr(KafkaAdminClient, "describe_topics", named)
    settings, releases = stage.settings, stage.topics.releases.name
    assert not are_there(settings, [releases])
    with pytest.raises(ConfigError, match=f"there is no topic {releases}"):
        check_partitions(settings, releases, 3)
    assert ensure_topics(settings, stage.topics.all()) == [t.name for t in stage.topics.all()]
    assert ensure_topics(settings, stage.topics.all()) == []
    assert are_there(settings, [releases])
    assert not are_there(settings, [releases, "veil.nobody.releases.v1"])
    check_partitions(settings, releases, 3)


def test_dead_letters_hold_the_largest_release_with_its_headers(
    stage: Stage, admin: KafkaAdminClient
) -> None:
    stage.ensure_topics()
    releases, letters = (
        int(configuration(admin, topic.name)["max.message.bytes"])
        for topic in (stage.topics.releases, stage.topics.dead_letters)
    )
    assert letters > releases


def test_a_study_that_forgets_by_seconds_takes_no_releases_from_the_future(
    tmp_path: Path, kafka: str, redis_url: str, admin: KafkaAdminClient
) -> None:
    forgetting = 'loss = "logistic"\nforgetting = { half_life = 3600, of = "seconds" }'
    text = study_text().replace('loss = "logistic"', forgetting)
    made = Stage(tmp_path, kafka, redis_url, text)
    try:
        made.ensure_topics()
        found = configuration(admin, made.topics.releases.name)
        assert found["message.timestamp.after.max.ms"] == "600000"
        now = int(1000 * time.time())
        send(kafka, made.topics.releases.name, [{"value": b"x", "timestamp_ms": now}])
        future = {"value": b"x", "timestamp_ms": now + 3_600_000}
        with pytest.raises(InvalidTimestampError):
            send(kafka, made.topics.releases.name, [future])
    finally:
        made.remove()


def test_more_copies_than_brokers_are_refused_by_name(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topics, "METADATA_SECONDS", 0.5)
    many = replace(stage.topics.releases, replication=3)
    with pytest.raises(ConfigError, match=r"stream\.replication = 3: Kafka has fewer brokers"):
        ensure_topics(stage.settings, [many])
    assert not are_there(stage.settings, [many.name])


def test_a_topic_is_made_as_soon_as_a_broker_that_was_away_counts_again(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kafka refuses any number of copies while it counts no broker, as after a pause."""
    copies, make = iter((3, 3)), KafkaAdminClient.create_topics

    def made(admin: KafkaAdminClient, wanted: dict[str, dict[str, int]], **how: object) -> object:
        asked = {
            name: options | {"replication_factor": next(copies, options["replication_factor"])}
            for name, options in wanted.items()
        }
        return make(admin, asked, **how)

    monkeypatch.setattr(KafkaAdminClient, "create_topics", made)
    ensure_topics(stage.settings, [stage.topics.releases])
    assert next(copies, None) is None
    assert are_there(stage.settings, [stage.topics.releases.name])


def test_a_topic_with_fewer_partitions_is_refused(stage: Stage, admin: KafkaAdminClient) -> None:
    name = stage.topics.releases.name
    admin.create_topics({name: {"num_partitions": 2, "replication_factor": 1}})
    with pytest.raises(ConfigError, match=r"has 2 partitions, the study says 3"):
        stage.ensure_topics()


@pytest.mark.slow
def test_partitions_that_are_added_to_a_running_study_take_nothing(
    stage: Stage, admin: KafkaAdminClient
) -> None:
    clients = [f"site-{number}" for number in range(3)]
    stage.ensure_topics()
    for round_, grown in enumerate((0, 7)):
        if grown:
            stage.stop("w0")
            for topic in stage.topics.all():
                admin.create_partitions({topic.name: topic.partitions + grown})
        stage.worker()
        for seed, client in enumerate(clients):
            path = write_csv(stage.folder / f"{client}.csv", 40 * (round_ + 1), seed)
            done = stage.ran("produce", stage.study, "--client", client, "--source", path)
            assert ("the first 3 are used" in done.stderr) == bool(grown)
        stage.final_estimate()
    ends = Counter(record.partition for record in stage.releases())
    assert set(ends) == {partition_of(client.encode(), 3) for client in clients}
    assert stage.dead_letters() == []
    assert sum(stage.watermarks()) == ends.total() > len(clients)
    assert stage.run("topics", stage.study).returncode == 0


def test_a_topic_with_another_clean_up_policy_is_refused(
    stage: Stage, admin: KafkaAdminClient
) -> None:
    name = stage.topics.models.name
    admin.create_topics({name: {"num_partitions": 1, "replication_factor": 1}})
    with pytest.raises(ConfigError, match=r"cleanup.policy delete, the study needs compact"):
        stage.ensure_topics()


@pytest.mark.parametrize("kind", ["releases", pytest.param("models", marks=pytest.mark.slow)])
def test_a_topic_without_room_for_a_message_is_refused_before_anything_is_spent(
    stage: Stage, admin: KafkaAdminClient, kind: str
) -> None:
    stage.ensure_topics()
    topic = getattr(stage.topics, kind)
    least = 16384 + 4096
    for room in (least - 1, least):
        config = {"max.message.bytes": str(room)}
        admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic.name, configs=config)])
        until(
            lambda room=room: configuration(admin, topic.name)["max.message.bytes"] == str(room),
            "the topic takes so much",
        )
        if room < least:
            stage.produce("north", write_csv(stage.folder / "north.csv", 60))
            assert stage.code("north") == 10
            assert f"max.message.bytes = {room}, the study needs {least}" in stage.said("north")
            done = stage.run("worker", stage.study)
            assert done.returncode == 10, done.stderr
            assert "max.message.bytes" in done.stderr
            assert not stage.database("north").exists()
    stage.produced("north", stage.folder / "north.csv")
    assert len(stage.releases()) == 3
    # one release that is larger than what is sent together otherwise
    with pytest.raises(ConfigError, match=r"max\.message\.bytes = .*, the study needs 54096"):
        ensure_topics(stage.settings, [replace(topic, largest=50_000)])


def configuration(admin: KafkaAdminClient, topic: str) -> dict[str, str]:
    resource = ConfigResource(ConfigResourceType.TOPIC, topic)
    answer = next(iter(admin.describe_configs([resource], config_filter="all").values()))
    return {key: entry["value"] for key, entry in answer[topic].items()}


def test_a_release_carries_no_time_finer_than_a_second(stage: Stage) -> None:
    """The second in which a window closed is public, the millisecond of its last record is not."""
    stage.produced("north", write_csv(stage.folder / "north.csv", 60))
    found = stage.releases()
    assert len(found) == 3
    assert [record.timestamp % 1000 for record in found] == [0, 0, 0]


def test_one_copy_is_a_warning_and_fewer_copies_than_promised_are_refused(stage: Stage) -> None:
    stage.ensure_topics()
    topics = stage.topics.all()
    [warning] = check_copies(stage.settings, topics)
    assert "have one copy" in warning
    assert "stream.replication = 3" in warning
    with pytest.raises(ConfigError, match=r"has 1 copies, and stream\.replication promises 3"):
        check_copies(stage.settings, [replace(topic, replication=3) for topic in topics])
    assert "one copy" in stage.run("topics", stage.study).stderr


def test_a_topic_that_takes_no_message_is_refused(stage: Stage) -> None:
    strict = replace(stage.topics.models, config={"min.insync.replicas": "2"})
    ensure_topics(stage.settings, [strict])
    with pytest.raises(ConfigError, match="Kafka takes no message"):
        check_copies(stage.settings, [strict])


@pytest.mark.parametrize(
    ("copies", "least", "kinds"),
    [(1, 1, ["one"]), (3, 1, ["least"]), (2, 2, [])],
)
def test_what_is_acknowledged_by_one_copy_is_a_warning(
    stage: Stage, copies: int, least: int, kinds: list[str]
) -> None:
    assert list(judged(stage.topics.models, copies, least)) == kinds


@pytest.mark.parametrize(("copies", "least"), [(1, None), (2, "1"), (3, "2"), (4, "3")])
def test_topics_with_copies_are_made_to_survive_a_broker(copies: int, least: str | None) -> None:
    study = parse_study(study_text(stream=f"replication = {copies}"))
    for topic in [*Topics.of(study).all(), ledger_topic(study, Settings())]:
        assert topic.config.get("min.insync.replicas") == least


def test_the_topic_of_all_ledgers_is_compacted_long_before_a_start_takes_long(
    stage: Stage,
) -> None:
    """Each group of releases has a claim, of all clients and studies."""
    topic = ledger_topic(stage.task.study, stage.settings)
    assert int(topic.config["segment.bytes"]) < 2**25
    own = replace(topic, name=f"{stage.topics.models.name}.ledger")
    assert ensure_topics(stage.settings, [own]) == [own.name]
