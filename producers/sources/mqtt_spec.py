"""What is subscribed to is called as a source: `mqtt://HOST/FILTER`."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import parse_qs, unquote, urlsplit

from pipeline.errors import DataError
from pipeline.settings import Settings
from producers.sources.base import Known, Opening, Source
from producers.sources.inbox import Inbox
from producers.sources.pushed import Pushed

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
    """Subscribe; raises as `mqtt_topic.Subscription`."""
    found, settings = mqtt_spec(spec), asked.settings or Settings()
    # it needs what is known here
    from producers.sources.mqtt_topic import Subscription  # noqa: PLC0415

    inbox = Inbox(asked.folder)
    return Pushed(
        f"mqtt:{found.filter}",
        inbox,
        lambda: Subscription(found, inbox, settings, asked.say),
        asked.position,
        skip_lost=asked.skip_lost,
    )
