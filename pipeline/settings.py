"""Settings from the environment: the only module that reads it.

Every name starts with `VEILSTREAM_`; a name that is not listed here is refused, so that a typing
error cannot pass for a default. Secrets are masked wherever a setting is shown.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from importlib import import_module
from pathlib import Path
from typing import Any

from pipeline.errors import ConfigError

PREFIX = "VEILSTREAM_"
#: Read by the test suite alone.
TEST_NAMES = frozenset({"DATA", "TESTCONTAINERS"})
#: Names of ledger topics.
LEDGER = re.compile(r"veil\.ledger[a-zA-Z0-9._-]{0,238}")
SECURITY = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
SASL = ("SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN")


#: A trial's folder in the folder, and the file in it that says so.
TRIAL, MARK = "trial", "is-a-trial"
#: What a trial takes from the settings; not where the real studies are, nor their keys.
SHARED = ("source_", "listen_", "mqtt_", "kafka_home", "kafka_archive", "cache", "java")
#: Files and folders that a worker reads while it runs.
ROOTED = ("folder", "study_key", "kafka_ca", "kafka_certificate", "kafka_key")


@dataclass(frozen=True)
class Settings:
    """What the environment says; empty where it says nothing.

    kafka: Bootstrap servers, `host:port[,host:port]`; default: the local runtime's.
    redis: URL, `redis://`, `rediss://` or `unix://`; default: the local runtime's.
    folder: Where the local runtime and the clients' databases live.
    ledger_topic: The topic on which clients tell what they have spent and claim what they release:
        one for all clients whose ids are not to be another's.
    study_key: The file with a study's private keys; default: keys/STUDY.key in the folder.
    kafka_security, kafka_sasl: As Kafka names them. `kafka_ca`, `kafka_certificate`, `kafka_key`
        are PEM files.
    source_kafka: Bootstrap servers of the Kafka that topics are read from as sources; default: the
        one that releases go to. Where it is set, the other names that begin so are its own, and
        mean what those without `source_` mean.
    listen_token, listen_certificate, listen_key: What `produce --listen` asks of senders, and PEM
        files of its own.
    mqtt_username, mqtt_password, mqtt_ca, mqtt_certificate, mqtt_key: As those of Kafka, for the
        broker of an MQTT source.
    kafka_home, kafka_archive, cache, java: For the local runtime: a Kafka installation, its
        archive, the folder for downloads, a Java.
    """

    kafka: str = ""
    redis: str = ""
    folder: str = ".veilstream"
    ledger_topic: str = "veil.ledger.v1"
    study_key: str = ""
    kafka_security: str = "PLAINTEXT"
    kafka_sasl: str = "SCRAM-SHA-512"
    kafka_username: str = ""
    kafka_password: str = field(default="", repr=False)
    kafka_ca: str = ""
    kafka_certificate: str = ""
    kafka_key: str = ""
    source_kafka: str = ""
    source_kafka_security: str = "PLAINTEXT"
    source_kafka_sasl: str = "SCRAM-SHA-512"
    source_kafka_username: str = ""
    source_kafka_password: str = field(default="", repr=False)
    source_kafka_ca: str = ""
    source_kafka_certificate: str = ""
    source_kafka_key: str = ""
    listen_token: str = field(default="", repr=False)
    listen_certificate: str = ""
    listen_key: str = ""
    mqtt_username: str = ""
    mqtt_password: str = field(default="", repr=False)
    mqtt_ca: str = ""
    mqtt_certificate: str = ""
    mqtt_key: str = ""
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
                raise ConfigError(
                    f"the environment variable {variable} is unknown{hint}; whoever runs the "
                    f"command must unset it (`unset {variable}`), or correct its name: "
                    "docs/operations.md#settings lists all"
                )
            found[name.lower()] = value
        settings = cls(**found)
        settings.check()
        return settings

    def check(self) -> None:
        """Refuse values outside the allowed ones.

        ConfigError, naming the variable and what is allowed.
        """
        for name, value, allowed in (
            ("KAFKA_SECURITY", self.kafka_security, SECURITY),
            ("KAFKA_SASL", self.kafka_sasl, SASL),
            ("SOURCE_KAFKA_SECURITY", self.source_kafka_security, SECURITY),
            ("SOURCE_KAFKA_SASL", self.source_kafka_sasl, SASL),
        ):
            if value not in allowed:
                raise ConfigError(f"{PREFIX}{name} must be one of {', '.join(allowed)}")
        if not LEDGER.fullmatch(self.ledger_topic):
            raise ConfigError(
                f"{PREFIX}LEDGER_TOPIC must be the name of a topic that begins with veil.ledger, "
                "of at most 249 letters, digits and . _ -"
            )
        if self.redis and not self.redis.startswith(("redis://", "rediss://", "unix://")):
            raise ConfigError(f"{PREFIX}REDIS must start with redis://, rediss:// or unix://")
        for name, servers in (("KAFKA", self.kafka), ("SOURCE_KAFKA", self.source_kafka)):
            if servers and not all(_names_port(part) for part in servers.split(",")):
                raise ConfigError(f"{PREFIX}{name} must be host:port[,host:port...]")

    def of_source(self) -> Settings:
        """Return the settings under which topics are read as sources."""
        if not self.source_kafka:
            return self
        own = {
            name.removeprefix("source_"): getattr(self, name)
            for name in (entry.name for entry in fields(self))
            if name.startswith("source_")
        }
        return replace(self, **own)

    def rooted(self) -> Settings:
        """Return the same settings, whose files are found from any working directory."""
        named = {name: getattr(self, name) for name in ROOTED}
        return replace(self, **{name: str(Path(at).absolute()) for name, at in named.items() if at})

    @property
    def trial(self) -> bool:
        """Whether the folder is a trial's."""
        return (self.home / MARK).exists()

    @property
    def home(self) -> Path:
        """The folder as an absolute path: a worker changes its working directory."""
        return Path(self.folder).absolute()


def begin_trial() -> Settings:
    """Set this process, and what it starts, to a folder of its own in the folder; return that."""
    found = Settings.read()
    home = found.home if found.trial else found.home / TRIAL
    for variable in [name for name in os.environ if name.startswith(PREFIX)]:
        name = variable.removeprefix(PREFIX)
        if not (name in TEST_NAMES or name.lower().startswith(SHARED)):
            del os.environ[variable]
    os.environ[f"{PREFIX}FOLDER"] = str(home)
    home.mkdir(parents=True, exist_ok=True)
    (home / MARK).touch()
    return Settings.read()


def _names_port(server: str) -> bool:
    host, _, port = server.rpartition(":")
    return bool(host) and port.isascii() and port.isdecimal() and 0 < int(port) < 2**16


def extra(module: str, wanted_by: str, named: str = "backtest") -> Any:
    """Import a module of an extra.

    wanted_by: What cannot go on without it, such as "--report" or "to_pandas".
    named: The extra that brings it.

    Raises ConfigError if it is not installed.
    """
    try:
        return import_module(module)
    except ImportError:
        raise ConfigError(
            f"{wanted_by} needs {module.partition('.')[0]}, which is not installed; the operator "
            f"must install veilstream[{named}]"
        ) from None
