"""What a real Kafka refuses names the setting, or the topic and the operation, within seconds."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from kafka.admin import (
    ACL,
    ACLOperation,
    ACLPermissionType,
    KafkaAdminClient,
    ResourcePattern,
    ResourceType,
)

from agents.history import History
from agents.link import Link
from infra.kafka import log_reader
from infra.local.processes import HOST, free_port
from infra.topics import check_broker, check_partitions, ensure_topics
from pipeline.api.feed import Feed
from pipeline.errors import BrokerError, ConfigError, VeilstreamError
from pipeline.messages.envelope import Headers, rfc3339
from pipeline.messages.topics import Topics
from pipeline.methods import task_of
from pipeline.settings import Settings
from pipeline.study_file.load import parse_study
from producers.models import ModelFeed
from producers.sender import Sender
from producers.store import ClientStore, Outgoing, Tally
from tests.builders import UNCLAIMED, study_text
from tests.secured import LATE_PASSWORD, READER, WORKER, Secured
from tests.stage import Stage
from tests.stage import study_text as live_study

TASK = task_of(parse_study(study_text(p=1, records=8, name="secured")))
TOPICS = Topics.of(TASK.study)
#: A wrong setting took 8 to 30 seconds to come to light; a loaded machine may need some of this.
QUICK_SECONDS = 4.0


@pytest.fixture(scope="module", autouse=True)
def _topics(secured: Secured) -> None:
    ensure_topics(secured.plain, TOPICS.all())


@contextmanager
def quickly() -> Iterator[None]:
    """Fail if one start takes long: several together do on a busy machine."""
    begun = time.monotonic()
    yield
    assert time.monotonic() - begun < QUICK_SECONDS


def refusal(settings: Settings) -> VeilstreamError:
    """Return what both ways to Kafka say, which must be the same."""
    said = []
    for start in (check_broker, _read_history):
        with quickly(), pytest.raises(VeilstreamError) as told:
            start(settings)
        said.append(told.value)
    with quickly(), pytest.raises(type(said[0])):
        log_reader(settings, wait_ms=10)
    assert str(said[0]) == str(said[1])
    return said[0]


def _read_history(settings: Settings) -> None:
    with History(settings, TOPICS.releases.name, TOPICS.releases.partitions):
        pass


def test_each_listener_answers_those_who_talk_to_it_as_it_wants(secured: Secured) -> None:
    for settings in (secured.plain, secured.users, secured.tls, secured.mutual):
        check_broker(settings)
        _read_history(settings)


WRONG = {
    "password": ("users", {"kafka_password": "wrong"}, "VEILSTREAM_KAFKA_PASSWORD"),
    "user": ("users", {"kafka_username": "nobody"}, "VEILSTREAM_KAFKA_USERNAME"),
    "mechanism": ("users", {"kafka_sasl": "SCRAM-SHA-512"}, "KAFKA_SASL must be one of PLAIN"),
    "no user": ("users", {"kafka_security": "PLAINTEXT"}, "SECURITY must be SASL_PLAINTEXT"),
    "a user too many": (
        "plain",
        {"kafka_security": "SASL_PLAINTEXT"},
        "SECURITY must be PLAINTEXT",
    ),
    "authority": ("tls", {"kafka_ca": ""}, "VEILSTREAM_KAFKA_CA must name"),
    "host": ("tls", {"kafka": "localhost"}, "VEILSTREAM_KAFKA the server as the certificate does"),
    "no TLS": ("tls", {"kafka_security": "PLAINTEXT"}, "SECURITY must be SSL or SASL_SSL"),
    "TLS": ("plain", {"kafka_security": "SSL"}, "must be PLAINTEXT or SASL_PLAINTEXT"),
    "certificate": ("mutual", {"kafka_certificate": ""}, "VEILSTREAM_KAFKA_CERTIFICATE"),
}


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[pytest.mark.slow] * (n in ("user", "mechanism"))) for n in WRONG],
)
def test_a_wrong_setting_is_named_at_once(secured: Secured, name: str) -> None:
    listener, change, words = WRONG[name]
    right: Settings = getattr(secured, listener)
    if "kafka" in change:
        change = {"kafka": f"{change['kafka']}:{right.kafka.rsplit(':', 1)[1]}"}
    fault = refusal(replace(right, **change))
    assert fault.exit_code == 10
    assert words in str(fault)
    assert "wrong" not in str(fault)


def test_another_authority_is_not_trusted(secured: Secured) -> None:
    fault = refusal(replace(secured.tls, kafka_ca=secured.other_authority))
    assert isinstance(fault, ConfigError)


@pytest.mark.parametrize(
    ("change", "names"),
    [
        ({"kafka_ca": "{folder}/none.pem"}, "VEILSTREAM_KAFKA_CA"),
        ({"kafka_ca": "{folder}/empty.pem"}, "VEILSTREAM_KAFKA_CA"),
        ({"kafka_certificate": "{folder}/none.pem"}, "VEILSTREAM_KAFKA_CERTIFICATE"),
        ({"kafka_certificate": "{folder}/empty.pem"}, "VEILSTREAM_KAFKA_CERTIFICATE"),
    ],
)
def test_a_file_that_is_missing_or_no_pem_is_named(
    secured: Secured, tmp_path: Path, change: dict[str, str], names: str
) -> None:
    (tmp_path / "empty.pem").write_text("nothing")
    given = {key: value.format(folder=tmp_path) for key, value in change.items()}
    fault = refusal(replace(secured.tls, **given))
    assert isinstance(fault, ConfigError)
    assert names in str(fault)
    assert str(tmp_path) in str(fault)


def test_nobody_there_a_name_that_is_not_known_and_silence_may_pass() -> None:
    for address, words in (
        (f"{HOST}:{free_port()}", "nothing listens there"),
        ("no-such-host.invalid:9092", "VEILSTREAM_KAFKA must name a host"),
    ):
        fault = refusal(Settings(kafka=address))
        assert isinstance(fault, BrokerError)
        assert words in str(fault)


def test_something_else_than_kafka_may_be_a_kafka_that_starts() -> None:
    with socket.create_server((HOST, 0)) as server:
        server.settimeout(0.01)
        found: list[VeilstreamError] = []

        async def refuse(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.close()

        async def ask() -> None:
            closing = await asyncio.start_server(refuse, sock=server)
            settings = Settings(kafka=f"{HOST}:{server.getsockname()[1]}")
            async with closing:
                try:
                    await asyncio.to_thread(check_broker, settings)
                except VeilstreamError as fault:
                    found.append(fault)

        asyncio.run(ask())
    assert isinstance(found[0], BrokerError)
    assert "closes the connection" in str(found[0])


@pytest.fixture(scope="module")
def reader(secured: Secured) -> Settings:
    """Return the settings of a user who may see the study's topics, and write dead letters."""
    permitted = [(topic.name, ACLOperation.DESCRIBE) for topic in TOPICS.all()]
    permit(secured, READER, [*permitted, (TOPICS.dead_letters.name, ACLOperation.WRITE)])
    return replace(secured.users, kafka_username=READER, kafka_password=LATE_PASSWORD)


def test_a_worker_learns_which_topic_it_may_not_write(reader: Settings) -> None:
    async def run() -> None:
        link = Link(reader)
        try:
            await link.start()
            await link.send(TOPICS.estimates.name, b"k", b"v", ())
        finally:
            await link.stop()

    words = f"permit User:{READER} Write on topic {TOPICS.estimates.name}"
    with quickly(), pytest.raises(ConfigError, match=words):
        asyncio.run(run())


def test_nobody_waits_for_a_topic_that_may_not_be_read(secured: Secured, reader: Settings) -> None:
    owner = Link(secured.plain)

    async def fill() -> None:
        await owner.start()
        for topic in (TOPICS.models, TOPICS.estimates):
            await owner.send(topic.name, b"k", b"v", ())
        await owner.stop()

    async def read() -> None:
        await Link(reader).read(TOPICS.models.name)

    asyncio.run(fill())
    words = f"permit User:{READER} Read on topic {TOPICS.models.name}"
    with quickly(), pytest.raises(ConfigError, match=words):
        asyncio.run(read())
    with quickly(), pytest.raises(ConfigError, match=words):
        ModelFeed(TASK, reader, TOPICS, "north")
    feed = Feed(TASK.study, reader, beginning=True)
    with quickly(), pytest.raises(ConfigError, match=f"Read on topic {TOPICS.estimates.name}"):
        feed.poll(5.0)
    feed.close()


def test_a_client_learns_which_topic_it_may_not_write(reader: Settings, tmp_path: Path) -> None:
    with ClientStore(tmp_path / "north.db", "north") as store:
        one_release(store)
        sender = Sender(store, TASK.study.name, reader, TOPICS, UNCLAIMED)
        words = f"Write on topic {TOPICS.releases.name}"
        with quickly(), pytest.raises(ConfigError, match=words):
            sender.drain()
        sender.close()


def test_a_topic_that_may_not_be_made_is_named(reader: Settings) -> None:
    others = Topics.of(task_of(parse_study(study_text(p=1, name="unseen"))).study)
    with quickly(), pytest.raises(ConfigError, match=r"Describe or Create on topic veil\.unseen"):
        ensure_topics(reader, others.all())
    with quickly(), pytest.raises(ConfigError, match="this user may not see it"):
        check_partitions(reader, others.releases.name, 1)


def test_a_clock_that_is_ahead_is_named_and_what_was_made_then_leaves_once_it_is_right(
    secured: Secured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its stated time stays as it is: Kafka would have refused that for another day."""
    tomorrow = rfc3339(int(time.time()) + 86_400)
    with ClientStore(tmp_path / "north.db", "north") as store:
        one_release(store, headers=[("ce_time", tomorrow.encode())])
        with monkeypatch.context() as wrong:
            wrong.setattr(
                "producers.sender.time", SimpleNamespace(time=lambda: time.time() + 86_400)
            )
            sender = Sender(store, TASK.study.name, secured.plain, TOPICS, UNCLAIMED)
            with pytest.raises(ConfigError, match=r"clock of this machine says .*set it right"):
                sender.drain()
            sender.close()
        assert store.waiting(TASK.study.name) == 1
        sender = Sender(store, TASK.study.name, secured.plain, TOPICS, UNCLAIMED)
        sender.drain()
        sender.close()
        assert store.waiting(TASK.study.name) == 0


def permit(secured: Secured, user: str, rights: list[tuple[str, ACLOperation]]) -> None:
    """Add rights on topics to Kafka's access control list."""
    added = [
        ACL(
            *(f"User:{user}", "*", operation, ACLPermissionType.ALLOW),
            ResourcePattern(ResourceType.TOPIC, topic),
        )
        for topic, operation in rights
    ]
    with KafkaAdminClient(bootstrap_servers=secured.plain.kafka) as admin:
        admin.create_acls(added)


def test_a_worker_that_may_not_be_in_its_group_ends(
    secured: Secured, redis_url: str, tmp_path: Path
) -> None:
    """It waited for ever. A whole worker has to start: only its own consumer joins the group."""
    needed = (ACLOperation.READ, ACLOperation.WRITE, ACLOperation.DESCRIBE_CONFIGS)
    with Stage(tmp_path, secured.plain.kafka, redis_url, live_study()) as stage:
        stage.ensure_topics()
        permit(secured, WORKER, [(t.name, right) for t in stage.topics.all() for right in needed])
        stage.environment |= {
            "VEILSTREAM_KAFKA": secured.users.kafka,
            "VEILSTREAM_KAFKA_SECURITY": "SASL_PLAINTEXT",
            "VEILSTREAM_KAFKA_SASL": "PLAIN",
            "VEILSTREAM_KAFKA_USERNAME": WORKER,
            "VEILSTREAM_KAFKA_PASSWORD": LATE_PASSWORD,
        }
        stage.worker()
        assert stage.code("w0") == 10
        group = f"veilstream-{stage.task.study.name}"
        assert f"does not permit User:{WORKER} Read on group {group}" in stage.said("w0")
        assert "Traceback" not in stage.said("w0")


def one_release(store: ClientStore, seq: int = 0, headers: Headers | None = None) -> None:
    """Put a release into an outbox."""
    store.open_stream(TASK, "records")
    store.release(
        TASK, "records", [Outgoing(seq, b"bytes", headers or [])],
        position=b"", tally=Tally(records=1, rejected={}, clipped=0), now=1e9,
    )  # fmt: skip
