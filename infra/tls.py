"""The TLS context of the one settings tree."""

from __future__ import annotations

import ssl

from pipeline.errors import ConfigError
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
