"""A real Kafka and a real Redis on this machine, without Docker; a command uses them unless told.

`runtime` starts, watches and ends both; `services` says how each is started; `processes` are the
child processes, their ports and logs; `download` finds Java and Kafka's jars, by checksum.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

from infra.local.download import ProgramPaths
from infra.local.runtime import LocalRuntime
from pipeline.errors import ConfigError, RuntimeSetupError
from pipeline.settings import Settings

__all__ = ["LocalRuntime", "ProgramPaths", "connected", "is_local", "program_paths"]


def program_paths(settings: Settings) -> ProgramPaths:
    """Return where the operator keeps the programs of the local runtime."""
    given = {
        "cache": settings.cache,
        "kafka_home": settings.kafka_home,
        "archive": settings.kafka_archive,
        "java_home": settings.java,
    }
    return ProgramPaths(**{name: Path(value) for name, value in given.items() if value})


def connected(settings: Settings, *, redis: bool = False) -> Settings:
    """Fill in the addresses of the local runtime where the environment names none.

    redis: Whether Redis is needed, as a worker does, and not Kafka alone.

    ConfigError if neither says where they are.
    """
    if settings.kafka and (settings.redis or not redis):
        return settings
    try:
        addresses = LocalRuntime(settings.home, program_paths(settings)).addresses()
    except RuntimeSetupError:
        absent = [
            name
            for name, address, needed in (
                ("KAFKA", settings.kafka, True),
                ("REDIS", settings.redis, redis),
            )
            if needed and not address
        ]
        raise ConfigError(
            f"nothing says where {' and '.join(map(str.capitalize, absent))} "
            f"{'is' if len(absent) == 1 else 'are'}: set "
            f"{' and '.join(f'VEILSTREAM_{name}' for name in absent)}, or run `veilstream "
            f"{'play ' * settings.trial}up`, which has not run in {settings.home}; where it has "
            "run, say with VEILSTREAM_FOLDER"
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
