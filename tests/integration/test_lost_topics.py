"""Topics of a study that are lost, cut or made anew under clients and workers that run."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from kafka.admin import KafkaAdminClient

from agents.history import refold
from infra.dead_letters import read_letters
from pipeline.messages.topics import Topic
from state import codec
from tests.integration.test_admission import LOOKS, admitted, opened
from tests.stage import Stage, lent, lines, send, study_text, until, write_csv
from tests.trusted import TRUST

SHARE = TRUST + "largest_share = { share = 0.75, after = 4 }\n"


@pytest.fixture
def stage(kafka: str, redis_url: str, tmp_path: Path) -> Iterator[Stage]:
    made = Stage(tmp_path, kafka, redis_url, study_text(partitions=1) + SHARE)
    made.before = LOOKS
    yield from lent(made)


@pytest.fixture
def shared(kafka: str, redis_url: str, tmp_path: Path) -> Iterator[Stage]:
    """A stage whose clients never wait for each other."""
    yield from lent(Stage(tmp_path, kafka, redis_url, study_text(partitions=1) + TRUST))


@pytest.fixture
def leading(kafka: str, redis_url: str, tmp_path: Path) -> Iterator[Stage]:
    """A stage whose clients wait for a newer model after each two windows."""
    text = study_text(partitions=1, releases=50, stream="max_in_flight_windows = 2")
    yield from lent(Stage(tmp_path, kafka, redis_url, text))


def anew(stage: Stage, topic: Topic) -> None:
    """Lose a topic, and make it again as whoever mends it would."""
    with KafkaAdminClient(bootstrap_servers=stage.settings.kafka) as admin:
        admin.delete_topics([topic.name])
        until(lambda: topic.name not in admin.list_topics(), "the topic is gone")
    stage.ensure_topics()


@pytest.mark.slow
def test_clients_go_on_where_topics_were_made_anew(stage: Stage) -> None:
    """Without a model none of them knows how many have come, and all are at their share.

    Without the record of the study, the key and the admissions, those that start are refused.
    """
    clients = ("north", "south")
    opened(stage, *clients)
    stage.worker()
    files = [
        write_csv(stage.folder / f"{name}.csv", 200, seed) for seed, name in enumerate(clients)
    ]
    for client, file in zip(clients, files, strict=True):
        stage.produce(client, file)
    stage.ended(*clients)
    stage.final_estimate()
    said = stage.topics.models, stage.topics.study, stage.topics.clients
    for topic in said:
        anew(stage, topic)
    for topic in said:
        stage.until(partial(stage.read, topic.name), f"{topic.name} is said again")
    for seed, (client, file) in enumerate(zip(clients, files, strict=True)):
        with file.open("a") as more:
            more.write("".join(lines(200, 5 + seed)))
        stage.produce(client, file)
    stage.ended(*clients)
    assert stage.final_estimate().releases == 40
    assert stage.said("w0").count("was made anew") >= 2
    listed = stage.run("client", "list", stage.study)
    assert all(f"{client} " in listed.stdout for client in clients), listed.stdout
    assert stage.verified()


@pytest.mark.slow
def test_an_old_model_that_somebody_repeats_is_not_the_last(stage: Stage) -> None:
    """Else compaction would leave it alone."""
    opened(stage, "north")
    stage.worker()
    stage.produced("north", write_csv(stage.folder / "north.csv", 60))
    stage.final_estimate()
    topic = stage.topics.models.name
    stage.until(lambda: stage.read(topic), "a model")
    time.sleep(2.0)
    newest = stage.read(topic)[-1]
    assert "somebody else" not in stage.said("w0")
    # Redis may have lost it at the same time
    stage.redis.delete(codec.model_key(stage.task.study.name))
    send(stage.settings.kafka, topic, [{"key": newest.key, "value": b"an old one"}])
    stage.until(lambda: stage.read(topic)[-1].value == newest.value, "the newest is the last again")
    assert "somebody else writes to it" in stage.said("w0")


@pytest.mark.slow
def test_a_worker_whose_log_was_removed_ends_and_the_next_says_what_to_do(stage: Stage) -> None:
    # it waits for Kafka for twenty seconds: here for five
    stage.before += "from agents import link\nlink.PATIENCE_SECONDS = 5.0\n"
    opened(stage, "north")
    stage.worker()
    stage.produced("north", write_csv(stage.folder / "north.csv", 20))
    stage.final_estimate()
    with KafkaAdminClient(bootstrap_servers=stage.settings.kafka) as admin:
        admin.delete_topics([stage.topics.releases.name])
    assert stage.code("w0") in (40, 50), stage.said("w0")
    assert "Ignoring missing topic" not in stage.said("w0")
    assert stage.topics.releases.name in stage.said("w0")
    stage.worker()
    assert stage.code("w0") == 40, stage.said("w0")
    assert "veilstream study recover" in stage.said("w0").splitlines()[-1]


def test_a_worker_sees_that_a_client_made_the_releases_topic_anew(stage: Stage) -> None:
    """What comes then has lower offsets than what was folded, and would be taken for known."""
    opened(stage, "north")
    stage.worker()
    stage.produced("north", write_csv(stage.folder / "north.csv", 20))
    stage.final_estimate()
    anew(stage, stage.topics.releases)
    assert stage.code("w0") == 40, stage.said("w0")
    assert "veilstream study recover" in stage.said("w0")


def test_estimates_that_were_lost_are_said_again_at_the_next_start(stage: Stage) -> None:
    opened(stage, "north")
    stage.worker()
    stage.produced("north", write_csv(stage.folder / "north.csv", 40))
    before = stage.final_estimate()
    stage.kill("w0")
    anew(stage, stage.topics.estimates)
    anew(stage, stage.topics.latest)
    stage.worker()
    after = stage.final_estimate()
    assert after.coefficients == before.coefficients
    stage.until(lambda: stage.read(stage.topics.latest.name), "the newest of them")


@pytest.mark.slow
def test_a_lost_topic_of_admissions_is_named_and_a_worker_says_them_again(stage: Stage) -> None:
    opened(stage, "north")
    stage.worker()
    stage.produced("north", write_csv(stage.folder / "north.csv", 20))
    stage.final_estimate()
    stage.kill("w0")
    with KafkaAdminClient(bootstrap_servers=stage.settings.kafka) as admin:
        admin.delete_topics([stage.topics.clients.name])
        until(lambda: stage.topics.clients.name not in admin.list_topics(), "the topic is gone")
    lost = stage.run("client", "list", stage.study)
    assert (lost.returncode, "there is no topic" in lost.stderr) == (10, True)
    stage.ensure_topics()
    empty = stage.run("client", "list", stage.study)
    assert (empty.returncode, "start a worker" in empty.stderr) == (10, True)
    stage.worker()
    stage.until(lambda: "has been written again" in stage.said("w0"), "they are said")
    assert "north" in stage.run("client", "list", stage.study).stdout
    with (stage.folder / "north.csv").open("a") as more:
        more.write("".join(lines(20, 3)))
    stage.produced("north", stage.folder / "north.csv")


def test_recovering_a_lost_log_says_again_whom_nobody_believes(stage: Stage) -> None:
    """Whoever kept an admission, or an old key of the study, could bring it into the new log."""
    opened(stage, "north", "south", "evil")
    stage.worker()
    for seed, client in enumerate(("north", "south")):
        stage.produce(client, write_csv(stage.folder / f"{client}.csv", 100, seed))
    stage.ended("north", "south")
    stage.caught_up()
    assert stage.run("client", "revoke", stage.study, "evil").returncode == 0
    assert stage.run("study", "keys", stage.study, "--stolen").returncode == 0
    kept = next(r for r in stage.releases() if r.key == b"evil")
    stage.caught_up()
    stage.kill("w0")
    # as `study keys --stolen` says: what the old key had signed is said under the new one
    assert stage.run("study", "recover", stage.study, "--yes").returncode == 0
    anew(stage, stage.topics.releases)
    done = stage.ran("study", "recover", stage.study, "--yes")
    assert "what it held is lost" in done.stderr
    assert "trust.largest_share" in done.stderr
    assert "3 clients: evil, north, south" in done.stderr
    assert "older keys of the study count no more" in done.stderr
    send(stage.settings.kafka, kept.topic, [{"key": kept.key, "value": kept.value, "partition": 0}])
    found = refold(stage.task, stage.settings, 0).admissions
    assert (found.least, found.clients["evil"].key, len(found.clients)) == (2, b"", 3)


@pytest.mark.takes("a worker and a client, twice each, and commands one after the other")
def test_what_came_before_a_lost_log_was_recovered_is_folded_after_all(shared: Stage) -> None:
    """Its budget is spent: only the dead letters still have it.

    In the new log it stands where something else stood in the old one, of which there are letters.
    """
    stage = shared
    stage.ensure_topics()
    send(stage.settings.kafka, stage.topics.releases.name, [{"key": b"x", "value": b"nonsense"}])
    opened(stage, "north")
    stage.worker()
    file = write_csv(stage.folder / "north.csv", 60)
    stage.produced("north", file)
    stage.caught_up()
    stage.kill("w0")
    assert "WARNING" not in stage.run("client", "list", stage.study).stderr
    anew(stage, stage.topics.releases)
    assert "study recover" in stage.run("client", "list", stage.study).stderr
    with file.open("a") as more:
        more.write("".join(lines(60, 3)))
    stage.produced("north", file)
    verified = stage.run("state", "verify", stage.study)
    assert (verified.returncode, "study recover" in verified.stderr) == (40, True), verified.stderr
    # also where the log has come as far as the admission was
    for words in ("status", stage.study, "north"), ("list", stage.study):
        said = stage.run("client", *words)
        assert "study recover" in said.stdout + said.stderr, words
    for _ in range(2):
        # killed on its way it is repeated
        stage.ran("study", "recover", stage.study, "--yes")
    letters = read_letters(stage.task.study, stage.settings)
    assert [(x.reason, x.client, str(x.place)) for x in letters] == [
        ("undecodable", "x", "0/0"), *(("not-admitted", "north", f"0/{n}") for n in range(3)),
    ]  # fmt: skip
    assert stage.partitions()[0].head.dead_letters == 3
    assert "WARNING" not in stage.run("client", "list", stage.study).stderr
    replayed = stage.run("dlq", "replay", stage.study, "--reason", "not-admitted")
    assert (replayed.returncode, "3 dead letters sent again" in replayed.stderr) == (0, True)
    letters = read_letters(stage.task.study, stage.settings)
    assert [x.done for x in letters] == ["", "replayed", "replayed", "replayed"]
    stage.worker()
    assert stage.final_estimate().releases == 3
    assert stage.verified()


def test_a_rebuild_sets_aside_what_no_worker_has_seen(stage: Stage) -> None:
    opened(stage, "north")
    send(stage.settings.kafka, stage.topics.releases.name, [{"key": b"x", "value": b"nonsense"}])
    for _ in range(2):
        stage.ran("state", "rebuild", stage.study, "--yes")
    letters = read_letters(stage.task.study, stage.settings)
    assert [(x.reason, str(x.place)) for x in letters] == [("undecodable", "0/1")]


@pytest.mark.slow
def test_a_client_that_starts_again_waits_for_no_answer_to_what_may_be_lost(leading: Stage) -> None:
    """Of those before it the last counts where the topic has it: no model answers what is gone."""
    stage, file = leading, write_csv(leading.folder / "north.csv", 200)
    stage.ensure_topics()
    for windows in (2, 3):
        stage.produce("north", file)
        stage.until(partial(_holds, stage, windows), f"{windows} windows at the start")
        time.sleep(1.0)
        assert len(stage.releases()) == windows
        assert stage.stop("north") == 0, stage.said("north")
    anew(stage, stage.topics.releases)
    stage.worker()
    stage.produced("north", file)
    assert stage.final_estimate().releases == 7


def _holds(stage: Stage, windows: int) -> bool:
    return len(stage.releases()) >= windows


@pytest.mark.slow
def test_who_is_admitted_is_asked_again_where_both_topics_that_say_it_are_lost(
    shared: Stage,
) -> None:
    stage, file = shared, write_csv(shared.folder / "north.csv", 40)
    opened(stage, "north")
    stage.worker()
    stage.produced("north", file)
    stage.caught_up()
    stage.kill("w0")
    anew(stage, stage.topics.releases)
    anew(stage, stage.topics.clients)
    assert stage.run("study", "recover", stage.study, "--yes").returncode == 0
    stage.worker()
    assert admitted(stage, "north").returncode == 0
    with file.open("a") as more:
        more.write("".join(lines(40, 3)))
    stage.produced("north", file)
    assert stage.final_estimate().releases == 2


@pytest.mark.takes("a worker, and commands one after the other")
def test_a_rebuild_refuses_a_log_that_ends_before_what_was_folded(shared: Stage) -> None:
    """It would overwrite what only the state has, and leave clients with models of the old log."""
    stage, file = shared, write_csv(shared.folder / "north.csv", 200)
    opened(stage, "north")
    stage.worker()
    stage.produced("north", file)
    stage.caught_up()
    stage.until(lambda: stage.read(stage.topics.models.name), "a model")
    stage.kill("w0")
    stands = stage.partitions()[0].head.next_offset
    anew(stage, stage.topics.releases)
    refused = stage.run("state", "rebuild", stage.study, "--yes")
    assert refused.returncode == 40, refused.stderr
    assert f"stands at {stands} and the log ends at 0" in refused.stderr
    assert "study recover" in refused.stderr
    assert "lost-log.md" in refused.stderr
    assert stage.partitions()[0].head.next_offset == stands
    # the client has nothing new to send, and what it sent is gone
    stage.produced("north", file)
    assert "10 of this client's 10 releases are no longer in it" in stage.said("north")
    assert "stands" not in stage.said("north").splitlines()[-1]
    done = stage.run_beside("study", "recover", stage.study)
    assert (done.returncode, "nobody answered" in done.stderr) == (2, True), done.stderr
    assert stage.partitions()[0].head.next_offset == stands
    again = stage.ran("study", "recover", stage.study, "--yes")
    for said in (done.stderr, again.stderr):
        assert f"the state stands at {stands} and the log ends at 0" in said
        assert "of 10 releases (200 record slots)" in said
        assert "budget stays spent" in said
    assert "versions go on above" in again.stderr
    assert "public start" not in again.stderr
    repeated = stage.run("study", "recover", stage.study, "--yes")
    assert "stays spent" not in repeated.stderr
    assert stage.run("state", "rebuild", stage.study, "--yes").returncode == 0
