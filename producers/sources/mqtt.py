"""A subscription as a source, `mqtt://HOST/FILTER`: records go to the inbox, then are acknowledged.

At QoS 1 a broker delivers again what it has no acknowledgement of: under its packet's number, and
marked as a repetition. Number and content are in the inbox with the record, so a repetition is
acknowledged and not stored. The session is the broker's: it keeps what comes while the client is
away.
"""

from __future__ import annotations

import queue
import ssl
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from pipeline.errors import ConfigError, DataError, VeilstreamError
from pipeline.settings import Settings, extra
from producers.sources.base import Known, Opening, Source
from producers.sources.push import Inbox, Push, Pushed
from producers.sources.text import RECORD_LIMIT

KIND = "topic"
FORM = (
    "mqtt://HOST[:PORT]/FILTER, or mqtts:// for TLS; + in FILTER stands for any level, # at its "
    "end for all below; ?version=5 if the broker shall be spoken to in MQTT 5"
)


@dataclass(frozen=True, slots=True)
class MqttSpec:
    """A filter of topics at a broker.

    tls: Whether it is reached through TLS.
    version: 4 for MQTT 3.1.1, or 5.
    """

    host: str
    port: int
    filter: str
    tls: bool
    version: int

    @property
    def address(self) -> str:
        """Host and port."""
        return f"{self.host}:{self.port}"


def mqtt_spec(spec: str) -> MqttSpec:
    """Read a specification; DataError, naming what is wrong with it."""
    try:
        # in a filter it is a level, and not what ends a URL
        parts = urlsplit(spec.replace("#", "%23"))
        port = parts.port
    except ValueError:
        port, parts = None, urlsplit("mqtt://")
    _, _, _, options, _ = parts
    levels = unquote(parts.path.removeprefix("/"))
    asked = parse_qs(options, keep_blank_values=True)
    version = asked.pop("version", ["3.1.1"])
    split = levels.split("/")
    wild = (
        all(level in ("+", "#") or not {"+", "#"} & set(level) for level in split)
        and "#" not in split[:-1]
    )
    if (
        not parts.hostname
        or "@" in parts.netloc
        or not levels
        or not wild
        or asked
        or version not in (["3.1.1"], ["5"])
    ):
        raise DataError(
            f"the source {spec.partition('://')[0]}:// names no topics, or not as it should; the "
            f"data owner must write {FORM}, and VEILSTREAM_MQTT_USERNAME and _PASSWORD beside it"
        )
    tls = parts.scheme == "mqtts"
    default = 8883 if tls else 1883
    return MqttSpec(parts.hostname, port or default, levels, tls, 5 if version == ["5"] else 4)


def known_as(spec: str) -> Known:
    """Return the filter, and the broker with it."""
    found = mqtt_spec(spec)
    return Known(f"mqtt:{found.filter}", f"mqtt://{found.address}/{found.filter}")


def opened(spec: str, asked: Opening) -> Source:
    """Subscribe; raises as `Subscription`."""
    found, settings = mqtt_spec(spec), asked.settings or Settings()
    inbox = Inbox(asked.folder)
    return Pushed(
        f"mqtt:{found.filter}",
        inbox,
        lambda: Subscription(found, inbox, settings, asked.say),
        asked.position,
        skip_lost=asked.skip_lost,
    )


#: Seconds that the broker may take to take the client in at the start.
PATIENCE = 10.0
#: Seconds for which an MQTT 5 broker is asked to keep the session of a client that is away.
KEPT = 30 * 24 * 3600
#: Messages that share a transaction, and that a broker may send ahead, at most.
GROUP = 500
#: Answers of both versions that mean: not as this user.
_REFUSED = {4, 5, 134, 135}


class Subscription:
    """A session at a broker, in a thread that connects again whenever it must.

    spec, settings: Which topics; user, password and TLS.
    inbox: Takes what comes; its name is the session's.
    say: Told when messages may be lost, and when the connection is.

    Raises ConfigError if the broker refuses the user, the certificate or the filter, or paho-mqtt
    is missing; DataError if it does not answer.
    """

    def __init__(
        self, spec: MqttSpec, inbox: Inbox, settings: Settings, say: Callable[[str], None]
    ) -> None:
        self._spec, self._inbox, self._say = spec, inbox, say
        self.fault: VeilstreamError | None = None
        self._refusal: VeilstreamError | None = None
        self._connection, self._resumed = 0, False
        self._come: queue.Queue[Any] = queue.Queue()
        self._subscribed, self._closed = threading.Event(), threading.Event()
        self._known = inbox.known("session") is not None
        mqtt = extra("paho.mqtt.client", "mqtt://", "mqtt")
        self._five = spec.version == mqtt.MQTTv5
        # the library acknowledges nothing by itself: only what is on disk is acknowledged
        self._client = mqtt.Client(
            mqtt.CallbackAPIVersion.VERSION2,
            client_id=inbox.name(),
            protocol=spec.version,
            clean_session=None if self._five else False,
            manual_ack=True,
        )
        if settings.mqtt_username:
            self._client.username_pw_set(settings.mqtt_username, settings.mqtt_password or None)
        if spec.tls:
            self._client.tls_set_context(_context(settings))
        self._client.on_connect = self._connected
        self._client.on_subscribe = self._answered
        self._client.on_disconnect = self._lost
        self._client.on_message = lambda _, __, message: self._take(message)
        self._client.reconnect_delay_set(1, 30)
        try:
            self._client.connect(spec.host, spec.port, keepalive=30, **self._first())
        except ssl.SSLError as error:
            raise ConfigError(
                f"the MQTT broker at {spec.address}: its TLS cannot be trusted or used "
                f"({error.reason}); see to mqtts:// and VEILSTREAM_MQTT_CA, which the operator of "
                "the broker knows"
            ) from error
        except OSError as error:
            raise self._silent(error.strerror or type(error).__name__) from error
        self._client.loop_start()
        self._writer = threading.Thread(target=self._write, daemon=True)
        self._writer.start()
        if not self._subscribed.wait(PATIENCE) or self._refusal:
            self.close()
            raise self._refusal or self._silent("no answer")
        inbox.know("session")

    def close(self) -> None:
        """Take nothing more; the broker keeps the session."""
        self._closed.set()
        self._client.disconnect()
        self._client.loop_stop()
        self._writer.join()

    def _first(self) -> dict[str, Any]:
        """Return what MQTT 5 says at the start: keep the session, and send so many ahead."""
        if not self._five:
            return {}
        properties = extra("paho.mqtt.properties", "mqtt://", "mqtt")
        packets = extra("paho.mqtt.packettypes", "mqtt://", "mqtt").PacketTypes
        found = properties.Properties(packets.CONNECT)
        found.SessionExpiryInterval, found.ReceiveMaximum = KEPT, GROUP
        return {"clean_start": False, "properties": found}

    def _connected(self, client: Any, _: Any, flags: Any, reason: Any, __: Any) -> None:
        if reason.is_failure:
            who = "the user or the password" if reason.value in _REFUSED else "this client"
            self._refuse(
                ConfigError(
                    f"the MQTT broker at {self._spec.address} refuses {who} ({reason}); see to "
                    "VEILSTREAM_MQTT_USERNAME, VEILSTREAM_MQTT_PASSWORD and version= in the "
                    "source, which the operator of the broker knows"
                )
            )
            return
        self._connection += 1
        self._resumed = flags.session_present and self._known
        if self._resumed:
            # the broker has the subscription; made anew, it would bring what is retained again
            self._subscribed.set()
            return
        if self._known:
            self._say(
                f"WARNING: the MQTT broker at {self._spec.address} has forgotten this client: what "
                "came while it was away may be lost; its operator must let it keep sessions longer"
            )
        client.subscribe(self._spec.filter, qos=1)

    def _answered(self, _: Any, __: Any, ___: Any, reasons: Any, ____: Any) -> None:
        if any(reason.is_failure for reason in reasons):
            self._refuse(
                ConfigError(
                    f"the MQTT broker at {self._spec.address} refuses to send what the source "
                    f"names ({reasons[0]}); its operator must permit this user to read that"
                )
            )
            return
        self._known = True
        self._subscribed.set()

    def _lost(self, _: Any, __: Any, ___: Any, reason: Any, ____: Any) -> None:
        if not self._closed.is_set() and self._subscribed.is_set():
            self._say(
                f"the MQTT broker at {self._spec.address} has gone ({reason}); this client tries "
                "again until it is back, and the broker keeps what comes meanwhile"
            )

    def _take(self, message: Any) -> None:
        """Hand a message to the writer; while there is no room, nothing more is read."""
        self._come.put((message, self._connection, self._push(message)))
        # before the subscription is answered, nobody makes room. The writer's commit takes a few
        # ms, and to look for its end less often would be most of what a message costs
        while self._subscribed.is_set() and self._come.qsize() >= GROUP:
            if self._closed.wait(0.002):
                return

    def _push(self, message: Any) -> Push | None:
        # what a topic retained before the subscription is no record. Some brokers mark so what they
        # kept for a session as well, and send what is retained, at QoS 0, with each connection
        if message.retain and not (self._resumed and message.qos):
            return None
        line = message.payload[: RECORD_LIMIT + 1]
        return Push([line], f"packet {message.mid}", bool(message.dup and message.qos), reused=True)

    def _write(self) -> None:
        while not self._closed.is_set():
            come = self._some()
            try:
                if come:
                    self._inbox.put([push for _, _, push in come if push is not None])
            except VeilstreamError as error:
                self.fault = error
                return
            for message, connection, _ in come:
                self._acknowledge(message, connection)

    def _some(self) -> list[Any]:
        if not self._inbox.has_room:
            self._closed.wait(0.1)
            return []
        found: list[Any] = []
        try:
            found.append(self._come.get(timeout=0.2))
            while len(found) < GROUP:
                found.append(self._come.get_nowait())
        except queue.Empty:
            pass
        return found

    def _acknowledge(self, message: Any, connection: int) -> None:
        # what came over a connection that is gone comes again: its number may be another's by now
        if connection == self._connection:
            self._client.ack(message.mid, message.qos)

    def _refuse(self, error: VeilstreamError) -> None:
        """End: at the start by what the constructor raises, later by what reading raises."""
        self._refusal = self.fault = error
        self._subscribed.set()

    def _silent(self, why: str) -> DataError:
        return DataError(
            f"the MQTT broker at {self._spec.address} does not take this client in ({why}); its "
            "operator must start it, or the data owner name another host or port"
        )


def _context(settings: Settings) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=settings.mqtt_ca or None)
        if settings.mqtt_certificate:
            context.load_cert_chain(settings.mqtt_certificate, settings.mqtt_key or None)
    except OSError as error:
        raise ConfigError(
            "VEILSTREAM_MQTT_CA, VEILSTREAM_MQTT_CERTIFICATE, VEILSTREAM_MQTT_KEY: they cannot be "
            f"read ({error.strerror or type(error).__name__}); the operator must name PEM files"
        ) from error
    return context
