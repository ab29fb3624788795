"""Kafka connection options from the one settings tree."""

from __future__ import annotations

import ssl
from typing import Any

from kafka import KafkaConsumer

from pipeline.settings import Settings


def kafka_options(settings: Settings) -> dict[str, Any]:
    """Return the options that kafka-python's clients share."""
    options: dict[str, Any] = {
        "bootstrap_servers": settings.kafka.split(","),
        "security_protocol": settings.kafka_security,
    }
    if settings.kafka_security.startswith("SASL"):
        options |= {
            "sasl_mechanism": settings.kafka_sasl,
            "sasl_plain_username": settings.kafka_username,
            "sasl_plain_password": settings.kafka_password,
        }
    if context := ssl_context(settings):
        options["ssl_context"] = context
    return options


def log_reader(settings: Settings, *, wait_ms: int) -> KafkaConsumer:
    """Return a consumer that reads a log from a place of its own, without a group.

    Parameters
    ----------
    wait_ms
        How long the broker may hold back an answer while there is nothing to read.

    Raises
    ------
    KafkaError
        If Kafka does not answer.
    """
    return KafkaConsumer(
        **kafka_options(settings),
        group_id=None,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        bootstrap_timeout_ms=10_000,
        fetch_max_wait_ms=wait_ms,
    )


def ssl_context(settings: Settings) -> ssl.SSLContext | None:
    """Return a verifying TLS context, or None where Kafka is reached without TLS."""
    if not settings.kafka_security.endswith("SSL"):
        return None
    context = ssl.create_default_context(cafile=settings.kafka_ca or None)
    if settings.kafka_certificate:
        context.load_cert_chain(settings.kafka_certificate, settings.kafka_key or None)
    return context
