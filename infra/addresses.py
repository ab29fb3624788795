"""Where Kafka and Redis are: what the settings say, else the local runtime."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from infra.local import LocalRuntime, ProgramPaths
from pipeline.errors import ConfigError, RuntimeSetupError
from pipeline.settings import Settings


def program_paths(settings: Settings) -> ProgramPaths:
    """Return where the operator keeps the programs of the local runtime."""
    given = {
        "cache": settings.cache,
        "kafka_home": settings.kafka_home,
        "archive": settings.kafka_archive,
        "java_home": settings.java,
    }
    return ProgramPaths(**{name: Path(value) for name, value in given.items() if value})


def connected(settings: Settings) -> Settings:
    """Fill in the addresses of the local runtime where the environment names none.

    ConfigError if neither says where Kafka and Redis are.
    """
    if settings.kafka and settings.redis:
        return settings
    try:
        addresses = LocalRuntime(settings.home, program_paths(settings)).addresses()
    except RuntimeSetupError:
        raise ConfigError(
            "nothing says where Kafka and Redis are: run `veilstream up`, or set VEILSTREAM_KAFKA "
            "and VEILSTREAM_REDIS"
        ) from None
    return dataclasses.replace(
        settings,
        kafka=settings.kafka or addresses.kafka,
        redis=settings.redis or addresses.redis,
    )


def is_local(settings: Settings) -> bool:
    """Whether Kafka is the one that `veilstream up` started for this folder."""
    try:
        runtime = LocalRuntime(settings.home, program_paths(settings))
        return runtime.addresses().kafka == settings.kafka
    except RuntimeSetupError:
        return False
