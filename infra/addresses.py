"""Where Kafka and Redis are: what the settings say, else the local runtime; and how to talk TLS."""

from __future__ import annotations

import dataclasses
import ssl
from pathlib import Path

from infra.local import LocalRuntime, ProgramPaths
from pipeline.errors import ConfigError, RuntimeSetupError
from pipeline.settings import Settings


def ssl_context(settings: Settings) -> ssl.SSLContext | None:
    """Return a verifying TLS context, or None where Kafka is reached without TLS.

    ConfigError, naming the setting whose file is missing, or is none of its kind.
    """
    if not settings.kafka_security.endswith("SSL"):
        return None
    try:
        context = ssl.create_default_context(cafile=settings.kafka_ca or None)
    except OSError as error:
        raise _unusable("VEILSTREAM_KAFKA_CA", settings.kafka_ca, error) from error
    if settings.kafka_certificate:
        try:
            # an encrypted key would ask the terminal for its password
            context.load_cert_chain(
                settings.kafka_certificate, settings.kafka_key or None, password=""
            )
        except OSError as error:
            names = "VEILSTREAM_KAFKA_CERTIFICATE or VEILSTREAM_KAFKA_KEY"
            files = f"{settings.kafka_certificate} and {settings.kafka_key or 'the same file'}"
            raise _unusable(names, files, error) from error
    return context


def _unusable(names: str, files: str, error: OSError) -> ConfigError:
    # an `ssl.SSLError` is an OSError, too: its text names functions of a library
    why = "no such PEM" if isinstance(error, ssl.SSLError) else (error.strerror or "unreadable")
    return ConfigError(
        f"{names}: {files} cannot be used ({why}): name PEM files that this user may read, a key "
        "without a password"
    )


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
