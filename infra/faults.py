"""A fault of either Kafka library, in words of ours."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from kafka.errors import KafkaError

from infra.preflight import check_servers
from pipeline.errors import BrokerError, ConfigError, VeilstreamError
from pipeline.settings import Settings


def told(
    settings: Settings, error: BaseException | None, otherwise: str, *, what: str, operation: str
) -> VeilstreamError:
    """Return the error that a fault of a Kafka library stands for.

    otherwise: What to say where Kafka can be talked to and permits it: a fault that may pass.
    what, operation: What was asked for, such as "topic a", and the operation that Kafka must
        permit, such as "Write", as its access control lists name both.
    """
    if isinstance(error, VeilstreamError):
        return error
    if "AuthorizationFailed" in type(error).__name__:
        if type(error).__name__.startswith("Cluster"):
            # who may write to any topic at all may do so once, in order
            what = "the cluster"
            operation = "IdempotentWrite" if operation == "Write" else operation
        user = f"User:{settings.kafka_username}" if settings.kafka_username else "this client"
        return ConfigError(
            f"Kafka does not permit {user} {operation} on {what}: the operator of Kafka must add "
            "it to the access control list, or VEILSTREAM_KAFKA_USERNAME name somebody who may"
        )
    try:
        check_servers(settings)
    except VeilstreamError as fault:
        return fault
    return BrokerError(otherwise)


@contextmanager
def asking(settings: Settings, what: str, operation: str) -> Iterator[None]:
    """Turn faults of kafka-python into ours, while it does something; parameters as `told`.

    Raises ConfigError if a setting is wrong, or Kafka does not permit it; BrokerError if Kafka is
    out of reach or refuses.
    """
    try:
        yield
    except (KafkaError, OSError) as error:
        otherwise = (
            f"Kafka at {settings.kafka} does not answer ({type(error).__name__}, {what}); start "
            "it, for example with `veilstream up`, or set VEILSTREAM_KAFKA"
        )
        raise told(settings, error, otherwise, what=what, operation=operation) from error
