"""An authenticated study on a real Kafka and Redis, and strangers who write to its topics."""

from __future__ import annotations

import hashlib
import json
import re
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kafka import TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType, KafkaAdminClient

from agents.history import refold
from infra.admissions import Roll
from infra.local import LocalRuntime
from pipeline.messages.admission import Admission, write_signed
from pipeline.messages.model import write_model
from pipeline.messages.topics import Topic, partition_of
from pipeline.privacy.randomness import SecureStream
from pipeline.release.layout import CHAIN
from pipeline.release.model import VERSION_LIMIT, Model
from pipeline.stream.release import release_of
from pipeline.trust import Pair, signed
from producers.membership import OLDER_KEY, Membership
from state.codec import model_key
from tests.stage import Stage, lent, send, study_text, write_csv
from tests.trusted import TRUST

#: A worker looks at its topics every ten seconds: here every second.
LOOKS = """\
from agents import announcing, folding, publishing
announcing.LOOK_SECONDS = publishing.LOOK_SECONDS = folding.WATCH_SECONDS = 1.0
"""


@pytest.fixture
def stage(kafka: str, redis_url: str, tmp_path: Path) -> Iterator[Stage]:
    made = Stage(tmp_path, kafka, redis_url, study_text() + TRUST)
    made.before = LOOKS
    yield from lent(made)


def opened(stage: Stage, *clients: str) -> None:
    """Make the study's key, enrol and admit clients."""
    done = stage.ran("study", "keys", stage.study)
    assert len(done.stdout.strip()) == 128
    for client in clients:
        assert admitted(stage, client).returncode == 0


def status(stage: Stage, client: str) -> dict[str, Any]:
    done = stage.ran("client", "status", stage.study, client, "--json")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def admitted(stage: Stage, client: str) -> Any:
    done = stage.ran("client", "enrol", "--client", client)
    file = stage.folder / f"{client}.json"
    file.write_text(done.stdout)
    return stage.run("client", "admit", stage.study, file)


def test_a_rotation_says_when_it_is_done(stage: Stage) -> None:
    opened(stage, "north")
    said = stage.run("study", "keys", stage.study, "--rotate").stderr
    assert "trust.key in study files may stay" in said
    assert "up to generation 1" in stage.run("client", "list", stage.study).stderr
    stage.worker()
    stage.until(
        lambda: "up to generation 2" in stage.run("client", "list", stage.study).stderr,
        "the worker has said the new key",
    )
    # a client whose study file has the first key goes on
    first = Roll(stage.task.study, None)
    for record in stage.read(stage.topics.clients.name):
        first.take(record.key, record.value)
    assert first.keys is not None
    with stage.study.open("a") as file:
        file.write(f'key = "{first.keys.chain[0].key}"\n')
    assert stage.run("study", "keys", stage.study).stdout.strip() == first.keys.chain[1].key
    stage.produced("north", write_csv(stage.folder / "north.csv", 20))


def test_admitted_clients_are_folded_and_strangers_become_dead_letters(stage: Stage) -> None:
    opened(stage, "south")
    # one that has not run yet sees how it stands
    assert stage.run("client", "enrol", "--client", "north").returncode == 0
    found = status(stage, "north")
    assert (found["standing"], found["has_run"]) == ("unknown", False)
    assert admitted(stage, "north").returncode == 0
    found = status(stage, "north")
    assert (found["admitted"], found["has_run"], found["releases"]["made"]) == (True, False, 0)
    said = stage.run("client", "status", stage.study, "north").stdout
    assert said.startswith("admitted\nit has not run")
    assert not stage.database("north").exists()
    assert stage.run("client", "status", stage.study, "nobody").returncode == 10
    stage.worker()
    for client, seed in (("north", 1), ("south", 2)):
        stage.produce(client, write_csv(stage.folder / f"{client}.csv", 200, seed))
    stage.ended("north", "south")
    before = stage.final_estimate()
    assert (before.releases, before.clients) == (20, 2)
    forged = forge(stage)
    # nothing counted: there is no new estimate, and the client itself can tell
    stage.caught_up()
    found = status(stage, "north")
    assert found["releases"] == {
        "made": 10, "acknowledged": 10, "counted": 10, "not_in_the_log": 0
    }  # fmt: skip
    assert found["not_counted"] == {"made by somebody else under this name": 31}
    assert found["admitted"] is True
    assert sum(state.head.dead_letters for state in stage.partitions()) == forged
    assert sum(state.head.folded for state in stage.partitions()) == 20
    assert stage.estimates()[-1] == before
    letters = stage.dead_letters()
    reasons = [dict(letter.headers)["veil_dlq_reason"] for letter in letters]
    assert set(reasons) == {b"undecodable", b"not-admitted", b"forged"}
    assert len(letters) == forged
    # the locked out client of before: it goes on, and is not told that somebody else was here
    source = stage.folder / "north.csv"
    source.write_text(source.read_text() + write_csv(stage.folder / "x", 100, 3).read_text()[17:])
    stage.produced("north", source)
    assert stage.final_estimate().releases == 25
    assert stage.verified()
    stage.ran("replay", stage.study, "--check")


def numbered_anew(release: bytes, seq: int, slots: int) -> bytes:
    """Give a release of form 3 another number, and as many slots before it as go with that."""
    place, held = len(release) - 16 - CHAIN.itemsize, struct.pack("<q", seq * slots)
    return release[:80] + struct.pack("<q", seq) + release[88:place] + held + release[place + 8 :]


def forge(stage: Stage) -> int:
    """Send what somebody who reads and writes the topics can make; return how many."""
    task, far = stage.task, 2**37
    model = Model(far, task.first_model.lattice + 4096, (1024, 1024))
    # a true release with the next numbers: it names the client and its ledger
    true = next(r.value for r in stage.releases() if r.key == b"north" and r.value[:1] == b"V")
    numbered = [numbered_anew(true, seq, task.slots) for seq in range(10, 41)]
    strange = [
        release_of(task, [], model, SecureStream(), client="nobody", ledger="l", seq=i)
        for i in range(80)
    ]
    # once as an open study has them, once as an authenticated one, but for a key
    marked = [value[:6] + b"\1\0" + value[8:-16] + bytes(range(16)) for value in strange]
    everything = [
        *(("north", value) for value in numbered),
        *(("nobody", value) for value in (*strange, *marked)),
    ]
    send(
        stage.settings.kafka, stage.topics.releases.name,
        [{"key": key.encode(), "value": value} for key, value in everything],
    )  # fmt: skip
    best = Model(VERSION_LIMIT, task.first_model.lattice + 2**24, (1024, 1024))
    payload = write_model(task, best, "2026-01-01T00:00:00Z")
    record = {"key": task.study.name.encode(), "value": payload}
    send(stage.settings.kafka, stage.topics.models.name, [record])
    return len(everything)


@pytest.mark.takes("two workers, one of them killed, three producers, a verification and a replay")
def test_a_rate_holds_over_kills_and_everybody_counts_the_same(
    kafka: str, redis_url: str, tmp_path: Path
) -> None:
    rate = "rate = { releases = 3, of = 40 }\n"
    text = study_text(partitions=1, stream="max_in_flight_windows = 0") + TRUST + rate
    with Stage(tmp_path, kafka, redis_url, text) as stage:
        opened(stage, "north", "south")
        stage.worker()
        source = write_csv(stage.folder / "north.csv", 100)
        stage.produced("north", source)
        stage.caught_up()
        stage.kill("w0")
        # what this worker has counted, the next one knows
        source.write_text(source.read_text() + source.read_text().partition("\n")[2])
        stage.produce("north", source)
        stage.produce("south", write_csv(stage.folder / "south.csv", 40, 2))
        assert (stage.code("north"), stage.code("south")) == (0, 0), stage.said("north")
        stage.worker()
        stage.caught_up()
        [state] = stage.partitions()
        assert (state.head.folded, state.head.dead_letters, state.head.missing) == (5, 7, 0)
        reasons = [dict(letter.headers)["veil_dlq_reason"] for letter in stage.dead_letters()]
        assert reasons == [b"rate"] * 7
        assert stage.verified()
        found = status(stage, "north")
        assert (found["releases"]["counted"], found["releases"]["not_in_the_log"]) == (3, 0)
        assert list(found["not_counted"].values()) == [7]
        assert stage.run("replay", stage.study, "--check").returncode == 0
        stage.remove()


@pytest.mark.slow
def test_a_client_at_its_share_waits_for_others_and_loses_nothing(
    kafka: str, redis_url: str, tmp_path: Path
) -> None:
    limit = "largest_share = { share = 0.75, after = 4 }\n"
    text = study_text(partitions=1, stream="max_in_flight_windows = 0") + TRUST + limit
    with Stage(tmp_path, kafka, redis_url, text) as stage:
        opened(stage, "north", "south")
        stage.worker()
        stage.produce("north", write_csv(stage.folder / "north.csv", 120))
        stage.until(lambda: len(stage.releases()) == 2 + 3, "three releases of the first client")
        stage.produce("south", write_csv(stage.folder / "south.csv", 80, 2))
        assert (stage.code("south"), stage.code("north")) == (0, 0), stage.said("north")
        senders = [r.key for r in stage.releases() if r.value[:1] == b"V"]
        assert senders.count(b"north") == 6
        # the fourth of the one may come once the other has made three, and no sooner
        assert senders[:6].count(b"north") == 3
        final = stage.final_estimate()
        assert (final.releases, final.diagnostics.dead_letters) == (10, 0)
        assert final.diagnostics.largest_client_share == 0.6
        assert stage.verified()
        assert stage.run("replay", stage.study, "--check").returncode == 0
        stage.remove()


def test_a_revoked_client_stops_and_what_it_sent_before_stays(stage: Stage) -> None:
    opened(stage, "north")
    stage.worker()
    source = write_csv(stage.folder / "north.csv", 100)
    stage.produced("north", source)
    # an estimate comes behind the commit of what it holds
    stage.final_estimate()
    # no worker has said the new key when it is first used
    assert stage.run("study", "keys", stage.study, "--rotate").returncode == 0
    done = stage.ran("client", "revoke", stage.study, "north")
    assert re.search(r"revoked from \d+/\d+ of the releases topic", done.stderr)
    source.write_text(source.read_text() + source.read_text().partition("\n")[2])
    stage.produce("north", source)
    assert stage.code("north") == 10
    assert "revoked" in stage.said("north")
    listed = json.loads(stage.run("client", "list", stage.study, "--json").stdout)
    assert [bool(entry["key"]) for entry in listed["north"]["entries"]] == [True, False]
    # what estimates of many sites call it
    assert listed["north"]["digest"] == hashlib.blake2b(b"north", digest_size=16).hexdigest()
    assert f"digest {listed['north']['digest']}" in stage.run("client", "list", stage.study).stdout
    stage.caught_up()
    assert stage.estimates()[-1].releases == 5
    assert stage.verified()
    found = status(stage, "north")
    assert (found["admitted"], found["standing"]) == (False, "revoked")
    said = stage.run("client", "status", stage.study, "north").stdout
    assert "What counted before goes on to count" in said
    assert "counted: 5" in said
    # compaction keeps the last record of a key: an old one, written again, must not stay the last
    topic = stage.topics.clients.name
    old, new = (r.value for r in stage.read(topic) if r.key == b"north")
    send(stage.settings.kafka, topic, [{"key": b"north", "value": old}])
    stage.until(lambda: stage.read(topic)[-1].value == new, "the worker says the newest word again")
    # it says so behind the write
    stage.until(
        lambda: "newest word about 1 clients" in stage.said("w0"), "the worker says that it did"
    )


def test_a_client_whose_key_is_not_right_spends_nothing(stage: Stage) -> None:
    opened(stage, "north", "south")
    keys = stage.settings.home / "clients"
    north, own = keys / "north.key", (keys / "north.key").read_bytes()
    assert stage.run("client", "enrol", "--client", "east").returncode == 0
    source = write_csv(stage.folder / "data.csv", 100)

    def refused(client: str, words: str) -> None:
        stage.produce(client, source)
        assert stage.code(client) == 10, stage.said(client)
        assert words in stage.said(client)
        # a first start that is refused leaves none
        assert not stage.database(client).exists()

    refused("east", "is not admitted")
    for key, words in (
        ((keys / "south.key").read_bytes(), "is the key of client 'south'"),
        (own[:-40], "not a complete key file"),
    ):
        north.write_bytes(key)
        refused("north", words)
    north.write_bytes(own)
    north.chmod(0o644)
    refused("north", "chmod 600")
    assert all((record.value or b"")[:1] == b"{" for record in stage.releases())


@pytest.mark.slow
def test_a_client_that_has_lost_key_and_database_is_over_before_it_spends(stage: Stage) -> None:
    opened(stage, "north")
    stage.worker()
    source = write_csv(stage.folder / "north.csv", 200)
    stage.produced("north", source)
    before = stage.final_estimate()
    for path in stage.database("north").parent.glob("north*"):
        path.rename(stage.folder / f"lost-{path.name}")
    done = admitted(stage, "north")
    assert done.returncode == 0
    assert "admitted under another key before" in done.stderr
    stage.produce("north", source, "--epsilon-limit", "20")
    assert stage.code("north") == 44, stage.said("north")
    assert "put the key and the database back" in stage.said("north")
    assert stage.query("north", "SELECT count(*) FROM ledger") == [(0,)]
    assert stage.estimates()[-1] == before
    found = status(stage, "north")
    assert found["releases"]["counted"] == 0
    assert found["not_counted"] == {OLDER_KEY: 10}


@pytest.mark.slow
def test_a_client_whose_key_was_stolen_goes_on_behind_what_the_thief_has_sent(stage: Stage) -> None:
    opened(stage, "north")
    stage.worker()
    source = write_csv(stage.folder / "north.csv", 100)
    stage.produced("north", source)
    task, stamp = stage.task, Membership(stage.task.study, stage.settings, "north", print).stamp
    [(ledger,)] = stage.query("north", "SELECT ledger FROM identity")

    def steal(*numbers: int) -> None:
        stolen = [
            release_of(
                task, [], task.first_model, SecureStream(), client="north", ledger=ledger, seq=seq
            )
            for seq in numbers
        ]
        at = int(time.time() * 1000)
        records = [
            {"key": b"north", "value": stamp(payload, at), "timestamp_ms": at} for payload in stolen
        ]
        for record in records:
            record["partition"] = partition_of(b"north", 2)
        send(stage.settings.kafka, stage.topics.releases.name, records)

    steal(5, 6, 7)
    # as the page says
    assert stage.run("client", "revoke", stage.study, "north").returncode == 0
    steal(8, 9)
    done = stage.run("client", "enrol", "--client", "north", "--stolen")
    (stage.folder / "new.json").write_text(done.stdout)
    stage.ran("client", "admit", stage.study, stage.folder / "new.json")
    steal(10)
    write_csv(source, 300)
    stage.produce("north", source)
    assert stage.code("north") == 44
    assert "has 5 releases" in stage.said("north")
    assert "the releases topic has 8" in stage.said("north")
    stage.produced("north", source, "--skip-lost", "--epsilon-limit", "20")
    stage.caught_up()
    [state] = [state for state in stage.partitions() if state.clients]
    # 300 records are 15 windows, of which the thief's three hold none that are released again
    assert (state.head.folded, state.head.duplicates, state.head.missing) == (15, 0, 0)
    assert state.head.dead_letters == 3
    found = status(stage, "north")
    assert found["releases"] == {
        "made": 15, "acknowledged": 15, "counted": 15, "not_in_the_log": 0
    }  # fmt: skip


@pytest.mark.slow
def test_a_new_key_while_the_worker_is_down_loses_nothing(stage: Stage) -> None:
    opened(stage, "north")
    stage.worker()
    source = write_csv(stage.folder / "north.csv", 100)
    stage.produced("north", source)
    stage.caught_up()
    assert stage.stop("w0") == 0
    key = stage.settings.home / "keys" / f"{stage.task.study.name}.key"
    copy = key.read_bytes()
    old = stage.run("study", "keys", stage.study).stdout
    new = stage.run("study", "keys", stage.study, "--rotate").stdout
    assert old != new
    # no worker has told the new key yet: this one leaves under the old
    source.write_text(source.read_text() + write_csv(stage.folder / "x", 100, 3).read_text()[17:])
    before = sum(stage.ends())
    stage.produce("north", source)
    stage.until(lambda: sum(stage.ends()) > before, "releases under the old key")
    stage.worker()
    stage.ended("north")
    source.write_text(source.read_text() + write_csv(stage.folder / "x", 100, 4).read_text()[17:])
    stage.produced("north", source)
    assert stage.final_estimate().releases == 15
    assert stage.dead_letters() == []
    assert {r.value[6] for r in stage.releases() if r.value[:1] == b"V"} == {1, 2}
    assert stage.verified()
    # a copy of the key file that is not the newest is told, and so is one that grew another way
    assert stage.stop("w0") == 0
    for again in ((), ("--rotate",)):
        key.write_bytes(copy)
        assert stage.run("study", "keys", stage.study, *again).returncode == 0
        stage.worker()
        assert stage.code("w0") == 10
        assert "old copy" in stage.said("w0").splitlines()[-1]
    refused = admitted(stage, "late")
    assert refused.returncode == 10
    assert "old copy" in refused.stderr


@pytest.mark.slow
def test_who_follows_the_page_comes_from_a_stolen_key_to_a_sound_study(stage: Stage) -> None:
    opened(stage, "north")
    stage.worker()
    source = write_csv(stage.folder / "north.csv", 200)
    stage.produced("north", source)
    sound = stage.final_estimate()
    # the thief has the study's key file: it admits itself, sends what it likes, signs a far model
    key = stage.settings.home / "keys" / f"{stage.task.study.name}.key"
    pair = Pair(bytes.fromhex(json.loads(key.read_bytes())["seeds"]["1"]))
    assert admitted(stage, "thief").returncode == 0
    stage.produced("thief", write_csv(stage.folder / "thief.csv", 200, 9))
    spoilt = stage.final_estimate()
    assert spoilt.releases == 20
    far = Model(2**36, stage.task.first_model.lattice + 2**24, (1024, 1024))
    forged = signed(write_model(stage.task, far, "2026-01-01T00:00:00Z"), pair)
    place = {"key": stage.task.study.name.encode(), "value": forged}
    send(stage.settings.kafka, stage.topics.models.name, [place])
    stage.redis.delete(model_key(stage.task.study.name))
    # 2, 3: the page
    assert stage.stop("w0") == 0
    done = stage.ran("study", "keys", stage.study, "--stolen")
    stage.study.write_text(stage.study.read_text() + f'key = "{done.stdout.strip()}"\n')
    # 4, 5
    stage.ran("study", "recover", stage.study, "--yes")
    listed = json.loads(stage.run("client", "list", stage.study, "--json").stdout)
    assert sorted(listed) == ["north", "thief"]
    assert stage.run("client", "revoke", stage.study, "thief").returncode == 0
    assert stage.run("state", "forget", stage.study, "thief", "--yes").returncode == 0
    # what the old key signs now is nothing
    word = Admission(stage.task.study.name, "later", 2**52, Pair.drawn().public.hex())
    place = {"key": b"later", "value": write_signed(word, pair)}
    send(stage.settings.kafka, stage.topics.releases.name, [place])
    # 6
    stage.worker()
    more = write_csv(stage.folder / "x", 100, 3).read_text().partition("\n")[2]
    source.write_text(source.read_text() + more)
    stage.produced("north", source)
    after = stage.final_estimate()
    assert (after.releases, after.diagnostics.erased) == (sound.releases + 5, 10)
    stage.produce("thief", stage.folder / "thief.csv")
    assert stage.code("thief") == 10
    assert stage.verified()
    newest = [json.loads(r.value)["version"] for r in stage.read(stage.topics.models.name)]
    assert newest[-1] > 0
    seen = stage.run("watch", stage.study, "--count", "1")
    assert (seen.returncode, "15 releases" in seen.stdout) == (0, True), seen.stderr
    # retention takes the words, and the thief's key stays retired
    with KafkaAdminClient(bootstrap_servers=stage.settings.kafka) as admin:
        topic, ends = stage.topics.releases.name, stage.ends()
        admin.delete_records({TopicPartition(topic, n): end for n, end in enumerate(ends)})
    rest = [refold(stage.task, stage.settings, n, accept_loss=True) for n in range(len(ends))]
    assert {state.admissions.least for state in rest} == {2}
    assert [state.head.next_offset for state in rest] == ends


def test_forged_estimates_are_not_shown(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    opened(stage, "north")
    stage.worker()
    stage.produced("north", write_csv(stage.folder / "north.csv", 100))
    stage.final_estimate()
    assert stage.stop("w0") == 0
    true = stage.read(stage.topics.latest.name)[-1].value
    forged = [
        true.replace(b'"records":100', b'"records":999'),
        true.replace(b'"intercept"', b'"\\u001b[2Jintercept"'),
        signed(true[: true.rindex(b',"signature"')] + b"}", Pair.drawn()),
        true[: true.rindex(b',"signature"')] + b"}",
    ]
    for topic in (stage.topics.latest.name, stage.topics.estimates.name):
        records = [{"key": stage.task.study.name.encode(), "value": value} for value in forged]
        send(stage.settings.kafka, topic, records)
    stage.ran("watch", stage.study, "--from", "beginning", "--count", "1", "--json")
    file = stage.folder / "model.json"
    stage.ran("watch", stage.study, "--save-model", file)
    assert json.loads(file.read_text())["records"] == 100
    # one that the study did sign, and that is old by now
    first = stage.read(stage.topics.estimates.name)[0].value
    for topic in (stage.topics.latest.name, stage.topics.estimates.name):
        record = {"key": stage.task.study.name.encode(), "value": first}
        send(stage.settings.kafka, topic, [record])
    done = stage.run("watch", stage.study, "--save-model", file)
    assert json.loads(file.read_text())["records"] == 100
    done = stage.run("watch", stage.study, "--count", "1", "--json")
    assert json.loads(done.stdout)["records"] == 100
    assert "1 repeats of older ones" in caplog.text
    checked = stage.ran("replay", stage.study, "--check")
    assert "4 not compared: not signed by this study" in checked.stdout + checked.stderr


def test_on_one_machine_keys_and_admissions_are_made_and_said(
    stage: Stage, local_runtime: LocalRuntime
) -> None:
    home = stage.settings.home
    home.mkdir(parents=True)
    (home / "runtime.json").write_bytes((local_runtime.folder / "runtime.json").read_bytes())
    stage.worker()
    stage.start(
        "north", "produce", stage.study, "--client", "north",
        "--source", write_csv(stage.folder / "north.csv", 100),
    )  # fmt: skip
    stage.ended("north")
    assert "enrolled and admitted north" in stage.said("north")
    assert stage.final_estimate().releases == 5
    # a second start admits nobody again, and takes no revoked client back
    assert stage.run("client", "revoke", stage.study, "north").returncode == 0
    stage.produce("north", stage.folder / "north.csv")
    assert stage.code("north") == 10
    assert "revoked" in stage.said("north")


def test_topics_that_forget_who_was_admitted_or_change_times_are_refused(stage: Stage) -> None:
    opened(stage, "north", "south")
    source = write_csv(stage.folder / "north.csv", 100)

    def alter(topic: Topic, key: str, value: str) -> None:
        with KafkaAdminClient(bootstrap_servers=stage.settings.kafka) as admin:
            given = topic.config | {key: value}
            admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic.name, given)])

    def refused(client: str, worker: str) -> None:
        stage.produce("north", source)
        assert stage.code("north") == 10
        assert client in stage.said("north")
        assert not stage.database("north").exists()
        stage.worker()
        assert stage.code("w0") == 10
        assert worker in stage.said("w0")

    alter(stage.topics.clients, "cleanup.policy", "delete")
    assert stage.run("client", "revoke", stage.study, "south").returncode == 0
    refused("needs compact", "needs compact")
    alter(stage.topics.clients, "cleanup.policy", "compact")
    # no MAC would fit any more: all that clients release would be dead letters
    alter(stage.topics.releases, "message.timestamp.type", "LogAppendTime")
    refused("message.timestamp.type = LogAppendTime", "must set it to CreateTime")
