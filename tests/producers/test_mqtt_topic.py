"""Subscriptions: stored before they are acknowledged, each message once, on a real broker."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import paho.mqtt.client as mqtt
import pytest

from infra.local.processes import HOST, free_port
from pipeline.errors import ConfigError, DataError
from pipeline.settings import Settings
from producers.sources import kind_of, known_as, open_source
from producers.sources.base import Slot
from producers.sources.mqtt import Subscription, mqtt_spec
from producers.sources.push import Pushed
from producers.sources.text import RECORD_LIMIT
from tests.broker import KINDS, MOSQUITTO, PASSWORD, USER, broker
from tests.compliance.sources import CANARY, CHECKS, Case
from tests.producers.test_listening import Until
from tests.secured import Authority
from tests.stage import until

KNOWN = {"mqtt_username": USER, "mqtt_password": PASSWORD}


@dataclass
class Broker:
    """A broker, and what clients of a test write after the topic."""

    port: int
    query: str = ""

    def source(
        self, folder: Path, position: bytes | None = None, said: list[str] | None = None,
        topic: str = "plant/+", **settings: str,
    ) -> Pushed:  # fmt: skip
        settings = settings or KNOWN
        found = open_source(
            f"mqtt://{HOST}:{self.port}/{topic}{self.query}", position, folder=folder,
            settings=Settings(**settings), say=([] if said is None else said).append,
        )  # fmt: skip
        assert isinstance(found, Pushed)
        return found

    def publish(self, *payloads: bytes, qos: int = 1, retain: bool = False) -> None:
        with publisher(self.port) as client:
            for payload in payloads:
                client.publish("plant/1", payload, qos, retain).wait_for_publish(30)


@contextmanager
def publisher(port: int) -> Iterator[mqtt.Client]:
    client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2)
    client.username_pw_set(USER, PASSWORD)
    client.connect(HOST, port)
    client.loop_start()
    try:
        yield client
    finally:
        client.disconnect()
        client.loop_stop()


@pytest.fixture(scope="module", params=[*KINDS, *(["five"] if MOSQUITTO else [])])
def running(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Broker]:
    kind = "mosquitto" if request.param == "five" else request.param
    # amqtt keeps no session of a client without a user
    with broker(tmp_path_factory.mktemp("broker"), kind, users=True) as port:
        yield Broker(port, "?version=5" if request.param == "five" else "")


def drain(source: Pushed, count: int) -> list[Slot]:
    found: list[Slot] = []
    until(lambda: found.extend(source.read(1000, 0.1)) or len(found) >= count, "messages")
    return [*found, *source.read(1000, 0.2)]


def told(*numbers: int) -> list[bytes]:
    return [json.dumps({"x": number}).encode() for number in numbers]


def numbers(slots: list[Slot]) -> list[Any]:
    return [slot.record and slot.record["x"] for slot in slots]


def test_messages_keep_what_every_source_must(running: Broker, tmp_path: Path) -> None:
    source = running.source(tmp_path)
    running.publish(b'{"x": 1}', CANARY.encode(), b"", b'{\n"x": 2}', b'["x"]', b"\xff")
    drain(source, 6)
    source.close()
    for check in CHECKS:
        check(Case(lambda position: Until(running.source(tmp_path, position), 6), bad=4))  # type: ignore[arg-type]


def test_what_is_delivered_again_after_a_crash_is_stored_once(
    running: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = running.source(tmp_path)
    with monkeypatch.context() as deaf:
        deaf.setattr(Subscription, "_acknowledge", lambda *_: None)
        # equal ones too: they are other records
        running.publish(*told(1, 1, 2, 2))
        assert numbers(drain(source, 4)) == [1, 1, 2, 2]
        feed: Any = source._feed
        feed._closed.set()
        feed._client._sock_close()
    source.close()
    running.publish(*told(1, 3))
    source = running.source(tmp_path)
    assert numbers(drain(source, 6)) == [1, 1, 2, 2, 1, 3]
    source.close()


def test_what_was_stored_before_the_subscription_is_not_read(
    running: Broker, tmp_path: Path
) -> None:
    running.publish(*told(7), retain=True)
    source = running.source(tmp_path)
    running.publish(*told(1))
    position = drain(source, 1)[-1].position
    source.close()
    source = running.source(tmp_path, position)
    running.publish(*told(2), retain=True)
    assert numbers(drain(source, 1)) == [2]
    source.close()
    running.publish(b"", retain=True)


@pytest.mark.parametrize("retain", [False, True])
def test_equal_messages_are_each_read_once_however_a_broker_marks_them(
    running: Broker, tmp_path: Path, retain: bool
) -> None:
    source = running.source(tmp_path)
    running.publish(*told(1), retain=True)
    position = drain(source, 1)[-1].position
    source.close()
    running.publish(*told(7, 7, 7, 7), retain=retain)
    source = running.source(tmp_path, position)
    running.publish(*told(8))
    slots = drain(source, 5)
    assert numbers(slots) == [7, 7, 7, 7, 8]
    source.close()
    source = running.source(tmp_path, slots[-1].position)
    running.publish(*told(9))
    assert numbers(drain(source, 1)) == [9]
    source.close()
    running.publish(b"", retain=True)


def test_a_poisoned_message_is_one_empty_slot(running: Broker, tmp_path: Path) -> None:
    source = running.source(tmp_path)
    running.publish(*told(1), b'{"x": "' + b"a" * (10 * RECORD_LIMIT) + b'"}', *told(2))
    slots = drain(source, 3)
    assert numbers(slots) == [1, None, 2]
    assert slots[1].fault == "record 2: the record is too long"
    source.close()


def test_a_broker_that_forgets_or_goes_is_told(tmp_path: Path) -> None:
    said: list[str] = []
    with broker(tmp_path) as port:
        source = Broker(port).source(tmp_path, said=said)
    until(lambda: said, "the broker has gone")
    assert "tries again" in said[0].replace("\n", " ")
    source.close()
    with broker(tmp_path) as port:
        Broker(port).source(tmp_path, said=said).close()
    assert "has forgotten this client" in said[-1]


@pytest.mark.takes("a client waits a second before it asks a broker again that was killed")
@pytest.mark.parametrize("kind", KINDS)
def test_a_broker_killed_in_mid_stream_costs_nothing_and_doubles_nothing(
    kind: str, tmp_path: Path
) -> None:
    """What had come is there, once and in order; the same run goes on with the broker's next."""
    port, said = free_port(), list[str]()
    with broker(tmp_path, kind, users=True, port=port):
        source = Broker(port).source(tmp_path, said=said)
        with publisher(port) as client:
            # nobody waits for answers: some are under way when the broker dies
            for payload in told(*range(400)):
                client.publish("plant/1", payload, 1)
            found = drain(source, 20)
    with broker(tmp_path, kind, users=True, port=port):
        until(lambda: any("has forgotten this client" in line for line in said), "it is back")
        Broker(port).publish(*told(*range(1000, 1010)))
        found += drain(source, 10)
        while len(found) < 10 or numbers(found)[-1] != 1009:
            found += drain(source, 1)
        source.close()
        came = numbers(found)
        assert came == [*range(len(came) - 10), *range(1000, 1010)]
        # and from the disk the same again
        source = Broker(port).source(tmp_path, said=said)
        assert numbers(drain(source, len(came))) == came
        source.close()


@pytest.mark.parametrize("kind", KINDS)
def test_a_wrong_password_is_refused_and_never_shown(kind: str, tmp_path: Path) -> None:
    with broker(tmp_path, kind, users=True) as port:
        Broker(port).source(tmp_path / "a").close()
        with pytest.raises(ConfigError, match="VEILSTREAM_MQTT_PASSWORD") as caught:
            Broker(port).source(tmp_path / "b", **{**KNOWN, "mqtt_password": "wrong"})
    assert "wrong" not in str(caught.value)


@pytest.mark.parametrize("kind", KINDS)
def test_tls_is_trusted_by_its_authority_alone(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = Authority("throwaway")
    authority.write(tmp_path / "ca.pem")
    authority.issue(tmp_path / "server.pem", HOST)
    with broker(tmp_path, kind, certificate=tmp_path / "server.pem") as port:
        spec = f"mqtts://{HOST}:{port}/plant"
        settings = Settings(mqtt_ca=str(tmp_path / "ca.pem"))
        open_source(spec, None, folder=tmp_path / "a", settings=settings).close()
        with pytest.raises(ConfigError, match=r"TLS .* VEILSTREAM_MQTT_CA"):
            open_source(spec, None, folder=tmp_path / "b", settings=Settings())
        # it waits for an answer for ten seconds: here for one
        monkeypatch.setattr("producers.sources.mqtt.PATIENCE", 1.0)
        with pytest.raises(DataError, match="does not take this client in"):
            Broker(port).source(tmp_path / "c")


def test_a_broker_that_is_not_there_or_files_that_are_not(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="its operator must start it"):
        Broker(free_port()).source(tmp_path)
    with pytest.raises(ConfigError, match="VEILSTREAM_MQTT_CA"):
        open_source(f"mqtts://{HOST}/a", None, folder=tmp_path, settings=Settings(mqtt_ca="no.pem"))


@pytest.mark.parametrize(
    "spec",
    [
        "mqtt://",
        "mqtt://host",
        "mqtt://host/",
        "mqtt://u:p@host/a",
        "mqtt://host:x/a",
        "mqtt://host/a+/b",
        "mqtt://host/#/b",
        "mqtt://host/a?version=4",
        "mqtt://host/a?qos=2",
    ],
)
def test_what_names_no_topics_is_refused_with_the_form_that_does(spec: str) -> None:
    with pytest.raises(DataError, match=r"must write mqtt://HOST") as caught:
        mqtt_spec(spec)
    assert "u:p" not in str(caught.value)


def test_a_subscription_is_known_by_broker_and_filter() -> None:
    spec = "mqtts://host/a/+/#?version=5"
    found = mqtt_spec(spec)
    assert (found.filter, found.port, found.version, found.tls) == ("a/+/#", 8883, 5, True)
    assert (known_as(spec).name, kind_of(spec)) == ("mqtt:a/+/#", "topic")
    assert known_as(spec).location == "mqtt://host:8883/a/+/#"
