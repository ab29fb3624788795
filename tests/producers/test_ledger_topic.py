"""A folder that is lost is not forgotten: accounts on the ledger topic, on a real Kafka."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
from kafka.admin import KafkaAdminClient

from infra.topics import ensure_topics
from pipeline.messages.spend import (
    SourceSpends,
    Spend,
    SpendsMessage,
    hashed,
    ledger_topic,
    read_spends,
    write_spends,
)
from pipeline.privacy.events import Gaussian, encode
from producers.prior_spend import LedgerTopic
from producers.report import ledger
from producers.store import ClientStore
from tests.producers.test_heritage import release, task_of
from tests.stage import PRIVATE, Stage, read_topic, send, study_text, write_csv

Build = Callable[..., Stage]


@pytest.fixture
def build(tmp_path: Path, kafka: str, redis_url: str) -> Iterator[Build]:
    """Return a function that makes stages in one folder, each with a study of its own."""
    made: list[Stage] = []

    def make(ledger: str = "") -> Stage:
        text = study_text(stream="max_in_flight_windows = 0", privacy=PRIVATE)
        made.append(Stage(tmp_path / "stage", kafka, redis_url, text, ledger=ledger))
        return made[-1]

    yield make
    for stage in made:
        stage.remove()


@pytest.fixture
def client() -> str:
    """Return a client's id."""
    return "site"


def produce(stage: Stage, client: str, source: Path, *options: object) -> tuple[int, str]:
    done = stage.run(
        "produce", stage.study, "--client", client, "--source", source, "--quiet", *options
    )
    return done.returncode, done.stderr


def accounts(stage: Stage, client: str) -> list[SpendsMessage]:
    return [
        read_spends(record.value)
        for record in read_topic(stage.settings.kafka, stage.settings.ledger_topic)
        if record.key == client.encode()
    ]


def tell(stage: Stage, client: str, *values: bytes | None) -> None:
    records = [{"key": client.encode(), "value": value} for value in values]
    send(stage.settings.kafka, stage.settings.ledger_topic, records)


def test_a_new_study_counts_what_a_lost_folder_had_spent(build: Build, client: str) -> None:
    """Each step is a start of the command; before, the new study had a fresh budget."""
    first, second = build(), build()
    source = write_csv(first.folder / "data.csv", 60)
    assert produce(first, client, source)[0] == 0
    [account] = accounts(first, client)
    assert account.sources[0].source == hashed(client, "csv:data.csv")
    assert account.sources[0].spends[0].study == first.task.study.name
    shutil.rmtree(first.settings.home / "clients")

    code, said = produce(second, client, source)
    assert code == 31, said
    assert "they count now" in said
    assert not second.releases()
    [facts] = ledger(second.database(client)).values()
    assert [spend["study"] for spend in facts["elsewhere"]] == [first.task.study.name]
    moved = source.rename(source.with_name("moved.csv"))
    code, said = produce(second, client, moved)
    assert code == 10
    assert "csv:data.csv" in said


@pytest.mark.slow
def test_a_renamed_source_of_a_lost_folder_asks(build: Build, client: str) -> None:
    first, second = build(), build()
    source = write_csv(first.folder / "data.csv", 20)
    assert produce(first, client, source)[0] == 0
    shutil.rmtree(first.settings.home / "clients")
    moved = source.rename(source.with_name("moved.csv"))
    code, said = produce(second, client, moved)
    assert code == 10
    assert "--source-name" in said
    assert "--other-data" in said
    assert produce(second, client, moved, "--source-name", "csv:data.csv")[0] == 31
    # one flag answers two questions: what it takes off this very source is said
    named = ("--source-name", "csv:data.csv", "--other-data")
    code, said = produce(build(), client, moved, *named)
    assert code == 0, said
    assert "WARNING: 1 spends of this client on source 'csv:data.csv'" in said
    other = write_csv(source.with_name("other.csv"), 20, 5)
    code, said = produce(build(), client, other, "--other-data")
    assert code == 0, said
    # what another folder had spent is still on the topic, beside what this one has
    newest = accounts(first, client)[-1]
    assert {entry.source for entry in newest.sources} == {
        hashed(client, "csv:data.csv"), hashed(client, "csv:other.csv"),
    }  # fmt: skip


def test_clients_of_another_ledger_topic_are_others(build: Build, client: str) -> None:
    first, second = build(), build(f"veil.ledger.{uuid.uuid4().hex}")
    source = write_csv(first.folder / "data.csv", 20)
    assert produce(first, client, source)[0] == 0
    shutil.rmtree(first.settings.home / "clients")
    assert produce(second, client, source)[0] == 0
    assert len(accounts(first, client)) == len(accounts(second, client)) == 1


@pytest.fixture
def stage(build: Build) -> Stage:
    made = build()
    made.ensure_topics()
    ensure_topics(made.settings, [ledger_topic(made.task.study, made.settings)])
    return made


@contextmanager
def topic_of(stage: Stage, store: ClientStore, said: list[str]) -> Iterator[LedgerTopic]:
    topic = LedgerTopic(stage.settings, store.client, store.heritage, said.append)
    topic.read(b"claims")
    yield topic
    topic.close()


def claim(client: str, source: str, **fields: object) -> SpendsMessage:
    spend = Spend(
        "0" * 16, "claimed", "discrete-gaussian", 1.0, 1e-5, 1, "zero-out", False, 20, 1,
        Gaussian(0.5),
    )  # fmt: skip
    spends = [msgspec.structs.replace(spend, **fields)]
    entry = SourceSpends(hashed(client, source), 1.0, 1e-5, 1, "zero-out", spends)
    return SpendsMessage(client, "0" * 16, [entry])


def test_messages_that_are_no_account_are_passed_over(stage: Stage, client: str) -> None:
    good = write_spends(claim(client, "csv:a.csv"))
    lower = write_spends(claim(client, "csv:a.csv", event=Gaussian(1e-6)))
    said: list[str] = []
    with (
        ClientStore(stage.database(client), client) as store,
        topic_of(stage, store, said) as topic,
    ):
        payloads = [b"", b"\xff", b"{}", good.replace(b"zero-out", b"zero-ou"), good, lower,
                    write_spends(claim("other", "csv:a.csv")), None]  # fmt: skip
        tell(stage, client, *payloads)
        topic.read(b"claims")
        topic.take_over("csv:a.csv", begun=False, other_data=False)
        assert any("5 messages" in line and "passed over" in line for line in said)
        rows = stage.query(client, "SELECT study, event FROM inherited")
    assert rows == [("claimed", encode(Gaussian(0.5)))]


def test_whom_another_one_stops_by_an_account_of_no_version_is_told_the_way_on(
    build: Build, client: str
) -> None:
    stage = build()
    source = write_csv(stage.folder / "data.csv", 20)
    ensure_topics(stage.settings, [ledger_topic(stage.task.study, stage.settings)])
    value = b'{"type":"spends/9"}'
    tell(stage, client, value)
    code, said = produce(stage, client, source)
    assert code == 10
    assert f"somebody else has written to {stage.settings.ledger_topic}:" in said
    assert "delete the topic" in said
    with KafkaAdminClient(bootstrap_servers=stage.settings.kafka) as admin:
        admin.delete_topics([stage.settings.ledger_topic])
    code, said = produce(stage, client, source)
    assert code == 0, said


def test_an_account_is_told_once_and_again_when_the_topic_lacks_it(
    stage: Stage, client: str
) -> None:
    with ClientStore(stage.database(client), client) as store:
        store.open_stream(task_of("one"), "csv:data.csv")
        release(store, task_of("one"))
        for _ in range(2):
            with topic_of(stage, store, []) as topic:
                topic.take_over("csv:data.csv", begun=True, other_data=False)
                topic.publish()
                release(store, task_of("one"), store.peek("one").next_seq)
                topic.publish()
        assert len(accounts(stage, client)) == 1
        # somebody else's word in its place
        forged = write_spends(claim(client, "csv:other.csv"))
        tell(stage, client, forged)
        with topic_of(stage, store, []) as topic:
            topic.take_over("csv:data.csv", begun=True, other_data=False)
            topic.publish()
        newest = accounts(stage, client)[-1]
    assert [entry.source for entry in newest.sources] == sorted(
        hashed(client, name) for name in ("csv:data.csv", "csv:other.csv")
    )
