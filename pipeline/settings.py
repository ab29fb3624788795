"""Settings from the environment: the only module that reads it.

Every name starts with `VEILSTREAM_`; a name that is not listed here is refused, so that a typing
error cannot pass for a default. Secrets are masked wherever a setting is shown.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path

from pipeline.errors import ConfigError

PREFIX = "VEILSTREAM_"
#: Read by the test suite alone.
TEST_NAMES = frozenset({"DATA", "TESTCONTAINERS"})
SECURITY = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
SASL = ("SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN")


@dataclass(frozen=True)
class Settings:
    """What the environment says; empty where it says nothing.

    kafka: Bootstrap servers, `host:port[,host:port]`; default: the local runtime's.
    redis: URL, `redis://`, `rediss://` or `unix://`; default: the local runtime's.
    folder: Where the local runtime and the clients' databases live.
    ledger_topic: "on" or "off": whether clients tell on the topic veil.ledger.v1 what they have
        spent.
    kafka_security, kafka_sasl: As Kafka names them. `kafka_ca`, `kafka_certificate`, `kafka_key`
        are PEM files.
    kafka_home, kafka_archive, cache, java: For the local runtime: a Kafka installation, its
        archive, the folder for downloads, a Java.
    """

    kafka: str = ""
    redis: str = ""
    folder: str = ".veilstream"
    ledger_topic: str = "on"
    kafka_security: str = "PLAINTEXT"
    kafka_sasl: str = "SCRAM-SHA-512"
    kafka_username: str = ""
    kafka_password: str = field(default="", repr=False)
    kafka_ca: str = ""
    kafka_certificate: str = ""
    kafka_key: str = ""
    redis_username: str = ""
    redis_password: str = field(default="", repr=False)
    kafka_home: str = ""
    kafka_archive: str = ""
    cache: str = ""
    java: str = ""

    @classmethod
    def read(cls, environment: Mapping[str, str] | None = None) -> Settings:
        """Read settings; `environment` defaults to the process's own.

        ConfigError, naming a variable that is unknown or has a value that is not allowed.
        """
        given = os.environ if environment is None else environment
        names = {entry.name.upper() for entry in fields(cls)}
        found = {}
        for variable, value in given.items():
            if not variable.startswith(PREFIX):
                continue
            name = variable.removeprefix(PREFIX)
            if name in TEST_NAMES:
                continue
            if name not in names:
                near = difflib.get_close_matches(name, names, n=1)
                hint = f"; did you mean {PREFIX}{near[0]}?" if near else ""
                raise ConfigError(f"the environment variable {variable} is unknown{hint}")
            found[name.lower()] = value
        settings = cls(**found)
        settings.check()
        return settings

    def check(self) -> None:
        """Refuse values outside the allowed ones.

        ConfigError, naming the variable and what is allowed.
        """
        for name, value, allowed in (
            ("LEDGER_TOPIC", self.ledger_topic, ("on", "off")),
            ("KAFKA_SECURITY", self.kafka_security, SECURITY),
            ("KAFKA_SASL", self.kafka_sasl, SASL),
        ):
            if value not in allowed:
                raise ConfigError(f"{PREFIX}{name} must be one of {', '.join(allowed)}")
        if self.redis and not self.redis.startswith(("redis://", "rediss://", "unix://")):
            raise ConfigError(f"{PREFIX}REDIS must start with redis://, rediss:// or unix://")
        if self.kafka and not all(_names_port(part) for part in self.kafka.split(",")):
            raise ConfigError(f"{PREFIX}KAFKA must be host:port[,host:port...]")

    @property
    def home(self) -> Path:
        """The folder as an absolute path: a worker changes its working directory."""
        return Path(self.folder).absolute()


def _names_port(server: str) -> bool:
    host, _, port = server.rpartition(":")
    return bool(host) and port.isascii() and port.isdecimal() and 0 < int(port) < 2**16
