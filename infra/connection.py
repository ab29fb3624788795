"""Kafka connection options from the one settings tree."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from kafka import KafkaConsumer, KafkaProducer
from kafka.errors import KafkaError

from infra.preflight import check_servers
from infra.tls import ssl_context
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
    """Return a consumer that reads a log from a position of its own, without a group.

    wait_ms: How long the broker may hold back an answer while there is nothing to read.

    Raises ConfigError, BrokerError as `infra.preflight.check_servers`; KafkaError if Kafka does not
    answer.
    """
    check_servers(settings)
    return KafkaConsumer(
        **kafka_options(settings),
        group_id=None,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        bootstrap_timeout_ms=10_000,
        fetch_max_wait_ms=wait_ms,
    )


def close_producer(producer: KafkaProducer) -> None:
    """Close a producer within seconds, whatever Kafka does; what is not acknowledged is dropped."""
    try:
        # it flushes first, and would hide the fault that ended its owner behind one of its own
        producer.close(timeout=2)
    except KafkaError:
        # left half closed it would try again when it is collected, and print a traceback
        producer._sender.force_close()
        with suppress(KafkaError):
            producer.close(timeout=2)
