"""Dead letters of a real study: found by reason, folded after all once the reason is mended."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from infra.dead_letters import Place, read_letters, settle
from pipeline.errors import PayloadError
from pipeline.messages.envelope import DeadLetter
from pipeline.messages.release import MAX_RELEASE_BYTES
from pipeline.privacy.randomness import SecureStream
from pipeline.stream.release import release_of
from pipeline.trust import MAC_SIZE
from producers.membership import Membership
from tests.integration.test_admission import admitted, opened
from tests.stage import Stage, lent, send, study_text
from tests.trusted import TRUST

#: Milliseconds since 1970.
AT = 1_700_000_000_000


@pytest.fixture
def stage(kafka: str, redis_url: str, tmp_path: Path) -> Iterator[Stage]:
    yield from lent(Stage(tmp_path, kafka, redis_url, study_text(partitions=2, releases=1) + TRUST))


def counts(stage: Stage, name: str) -> int:
    return sum(getattr(state.head, name) for state in stage.partitions())


def listed(stage: Stage, *options: object) -> list[dict[str, object]]:
    done = stage.ran("dlq", "list", stage.study, "--json", *options)
    return [json.loads(line) for line in done.stdout.splitlines()]


def asked(stage: Stage, command: str, *options: object) -> str:
    done = stage.ran("dlq", command, stage.study, *options)
    return done.stdout + done.stderr


@pytest.mark.takes("a worker, and commands one after the other")
def test_what_a_revoked_client_sent_is_folded_once_after_it_was_admitted_again(
    stage: Stage,
) -> None:
    opened(stage, "north")
    task, settings = stage.task, stage.settings
    stamp = Membership(task.study, settings, "north", lambda _: None).stamp
    payloads = [
        stamp(
            release_of(
                task, [], task.first_model, SecureStream(), client="north", ledger="l", seq=seq
            ),
            AT,
        )
        for seq in range(5)
    ]
    assert stage.run("client", "revoke", stage.study, "north").returncode == 0
    sent = [
        {
            "key": b"north", "value": payload, "timestamp_ms": AT,
            "headers": [("ce_id", b"north"), ("ce_time", b"2023-11-14T22:13:20.000000Z")],
        }
        for payload in payloads
    ]  # fmt: skip
    send(settings.kafka, stage.topics.releases.name, sent)
    send(settings.kafka, stage.topics.releases.name, [{"key": b"<b>", "value": b"nonsense"}])
    stage.worker()
    stage.caught_up()
    letters = stage.until(lambda: found if len(found := listed(stage)) == 6 else [], "dead letters")
    assert {(x["client"], x["reason"]) for x in letters} == {
        ("north", "revoked"), ("<b>", "undecodable"),
    }  # fmt: skip
    assert counts(stage, "folded") == 0
    text = asked(stage, "list")
    assert "revoked: 5 of 'north'" in text
    assert "undecodable: 1 of '<b>'" in text
    first = listed(stage, "--reason", "revoked")[0]
    shown = json.loads(asked(stage, "show", first["place"]))
    assert shown["value"] == payloads[0].hex()
    assert shown["headers"]["ce_id"] == "north"

    # not mended yet: it fails again, as a new letter, and the old one is done with
    assert "sent again" in asked(stage, "replay", "--at", first["place"])
    stage.caught_up()
    again = stage.until(lambda: found if len(found := listed(stage)) == 6 else [], "the new letter")
    assert first["place"] not in {x["place"] for x in again}
    assert [x["done"] for x in listed(stage, "--closed", "--at", first["place"])] == ["replayed"]

    assert admitted(stage, "north").returncode == 0
    # nobody but the operator may have counted what a client sent while it was out
    aside = len(listed(stage))
    send(settings.kafka, stage.topics.releases.name, sent)
    # nor anybody choose the time of what counts
    anew = Membership(task.study, settings, "north", lambda _: None).stamp
    late = [one | {"value": anew(one["value"], AT), "timestamp_ms": AT + 1} for one in sent]
    send(settings.kafka, stage.topics.releases.name, late)
    stage.caught_up()
    assert counts(stage, "folded") == 0
    stage.until(lambda: len(listed(stage)) == aside + 10, "as many dead letters")
    assert len(listed(stage, "--reason", "forged")) == 10
    assert "dropped" in asked(stage, "drop", "--reason", "forged")

    before = [x for x in read_letters(task.study, settings) if x.reason == "revoked" and not x.done]
    assert "5 dead letters sent again" in asked(stage, "replay", "--client", "north")
    stage.caught_up()
    assert counts(stage, "folded") == 5
    # the time that a client gave counts where releases fade
    bare = {payload[:-MAC_SIZE] for payload in payloads}
    again = [
        r for r in stage.releases() if r.key == b"north" and (r.value or b"")[:-MAC_SIZE] in bare
    ]
    assert {r.timestamp for r in again[-5:]} == {AT}
    # a command that was killed before its notes sends all of it again; here two of them at once
    with ThreadPoolExecutor() as pool:
        for settled in pool.map(lambda _: settle(task.study, settings, before, "replayed"), "ab"):
            assert (len(settled.now), settled.refused) == (5, [])
    stage.caught_up()
    assert (counts(stage, "folded"), counts(stage, "duplicates")) == (5, 10)
    assert counts(stage, "missing") == 0
    for command in ("replay", "drop"):
        done = stage.run("dlq", command, stage.study, "--client", "north")
        assert (done.returncode, "no open dead letter" in done.stderr) == (10, True)

    assert "dropped" in asked(stage, "drop", "--reason", "undecodable")
    assert listed(stage) == []
    assert len(listed(stage, "--closed")) == 17
    assert stage.verified()


def test_letters_that_kafka_takes_not_as_they_are_hold_up_no_other(stage: Stage) -> None:
    stage.ensure_topics()
    times = ("9999-12-31T23:59:59Z", "0001-01-01T00:00:00", "1900-01-01T00:00:00Z", "2023-11-14Z")
    values = [b"a"] * len(times) + [b"b" * (MAX_RELEASE_BYTES + 1), b"c" * 2_000_000]
    fault = PayloadError("undecodable", "why")
    for offset, (value, time) in enumerate(zip(values, [*times, "", "\xff"], strict=True)):
        letter = DeadLetter(offset, b"k", value[:9], (("ce_time", time.encode()),), fault)
        send(stage.settings.kafka, stage.topics.dead_letters.name, [{
            "key": b"k", "value": letter.value, "headers": letter.annotated("t", 0),
        }])  # fmt: skip
    found = read_letters(stage.task.study, stage.settings)
    # more than the topic takes, and more than a producer does unless told
    found[4].value, found[5].value = values[4:]
    settled = settle(stage.task.study, stage.settings, found, "replayed")
    assert [place for place, _ in settled.refused] == [Place(0, 4)]
    assert len(settled.now) == len(stage.releases()) == len(values) - 1
    assert [x["place"] for x in listed(stage)] == ["0/4"]


def test_a_choice_is_asked_for_and_a_place_has_a_form(stage: Stage) -> None:
    stage.ensure_topics()
    for words in (
        ("replay", stage.study), ("drop", stage.study), ("list", stage.study, "--at", "7"),
        ("show", stage.study, "x/y"), ("show", stage.study, "0/99"),
    ):  # fmt: skip
        done = stage.run("dlq", *words)
        assert done.returncode == 10, (words, done.stderr)
    assert read_letters(stage.task.study, stage.settings) == []


def test_a_letter_that_a_worker_repeated_is_one(stage: Stage) -> None:
    stage.ensure_topics()
    headers = [
        ("veil_dlq_reason", b"forged"), ("veil_dlq_detail", b"why"), ("veil_dlq_partition", b"1"),
        ("veil_dlq_offset", b"3"),
    ]  # fmt: skip
    record = {"key": b"a", "value": b"v", "headers": headers}
    send(stage.settings.kafka, stage.topics.dead_letters.name, [record, record])
    # whoever may write to the topic may write anything
    strange = [{"key": b""}, {"value": b"x", "headers": [("veil_dlq_offset", b"-1")]}]
    send(stage.settings.kafka, stage.topics.dead_letters.name, strange)
    found = read_letters(stage.task.study, stage.settings)
    assert [letter.place for letter in found] == [Place(1, 3)]
    assert (found[0].client, found[0].time, found[0].done) == ("a", None, "")
