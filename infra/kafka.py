"""How Kafka is reached: the options of the one settings tree, and its faults in words of ours.

Libraries of Kafka expect UTF-8 in the names of headers, and end at one record of any topic that has
something else, which whoever may write can send. Here such a name is read as its bytes, written out
in hexadecimal digits.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import Any

from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.errors import KafkaError, KafkaTimeoutError
from kafka.record import memory_records
from kafka.record.default_records import DefaultRecordBatch

from infra.preflight import check_servers, ssl_context
from pipeline.errors import BrokerError, ConfigError, NoTopic, VeilstreamError
from pipeline.messages.envelope import rfc3339
from pipeline.settings import Settings


class Lenient(bytearray):
    """Bytes of which every part can be decoded."""

    def __getitem__(self, at: Any) -> Any:
        """Return a byte, or a part that can be decoded, too."""
        found = super().__getitem__(at)
        return Lenient(found) if isinstance(at, slice) else found

    def decode(self, encoding: str = "utf-8", errors: str = "backslashreplace") -> str:
        """Return text; what is none is written out."""
        return super().decode(encoding, errors)


class AnyNames(DefaultRecordBatch):  # type: ignore[misc]
    """A batch of kafka-python."""

    __slots__ = ()

    def _read_msg(self, *_: Any) -> Any:
        try:
            return super()._read_msg()
        except UnicodeDecodeError:
            self._buffer = Lenient(self._buffer)  # type: ignore[misc, has-type]
            return super()._read_msg()


def read_any_name() -> None:
    """Have all consumers of kafka-python read any name of a header."""
    memory_records.DefaultRecordBatch = AnyNames


#: How long Kafka may take for what a small topic holds, and for a record, in seconds.
PATIENCE_SECONDS = 20.0
#: How long a topic may take to be known everywhere once it was made, in milliseconds.
APPEARS_MS = 5_000
#: What is said of a Kafka that does not answer.
UNANSWERED = (
    "Kafka at {servers} does not answer ({fault}, {what}); start it, for example with `veilstream "
    "up`, or set VEILSTREAM_KAFKA"
)


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
    if type(error).__name__ == "InvalidTimestampError":
        return ConfigError(
            f"Kafka refuses times that are too far from its own clock ({what}), and the clock of "
            f"this machine says {rfc3339(time.time() // 1)}: set it right and start again. Where "
            "it is right, the operator of Kafka must look at that of the brokers, and at "
            "message.timestamp.before.max.ms and after.max.ms of the topic"
        )
    try:
        check_servers(settings)
    except VeilstreamError as fault:
        return fault
    return BrokerError(otherwise)


@contextmanager
def asking(
    settings: Settings, what: str, operation: str, otherwise: str = UNANSWERED
) -> Iterator[None]:
    """Turn faults of kafka-python into ours, while it does something; parameters as `told`.

    otherwise: May name `{servers}`, `{fault}` and `{what}`.

    Raises ConfigError if a setting is wrong, or Kafka does not permit it; BrokerError if Kafka is
    out of reach or refuses.
    """
    try:
        yield
    except (KafkaError, OSError) as error:
        said = otherwise.format(servers=settings.kafka, fault=type(error).__name__, what=what)
        raise told(settings, error, said, what=what, operation=operation) from error


def kafka_options(settings: Settings) -> dict[str, Any]:
    """Return the options that kafka-python's clients share."""
    read_any_name()
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


def record_producer(
    settings: Settings, patience: float = PATIENCE_SECONDS, *, once: bool = True,
    name: str | None = None,
) -> KafkaProducer:  # fmt: skip
    """Return a producer of records, for each of which it waits so many seconds at most.

    once: A record is in the log once; but after one that Kafka refuses, none can be sent.
    name: How Kafka's own log calls it.
    """
    return KafkaProducer(
        client_id=name,
        enable_idempotence=once,
        # the topic says what is too large
        max_request_size=32 << 20,
        **kafka_options(settings),
        acks="all",
        delivery_timeout_ms=int(patience * 1000),
        request_timeout_ms=15_000,
        max_block_ms=int(patience * 1000),
        bootstrap_timeout_ms=10_000,
    )


def write_one(
    settings: Settings, topic: str, *, otherwise: str = UNANSWERED,
    patience: float = PATIENCE_SECONDS, **record: Any,
) -> None:  # fmt: skip
    """Write one record to a topic of one partition, given as `KafkaProducer.send` takes it.

    otherwise, patience: As `asking` and `record_producer` take them; errors as `asking`.
    """
    with (
        asking(settings, f"topic {topic}", "Write", otherwise),
        producing(settings, patience) as producer,
    ):
        producer.send(topic, partition=0, **record).get(timeout=patience)


@contextmanager
def producing(
    settings: Settings, patience: float = PATIENCE_SECONDS, *, once: bool = True
) -> Iterator[KafkaProducer]:
    """Yield a producer as `record_producer` makes it, and close it."""
    producer = record_producer(settings, patience, once=once)
    try:
        yield producer
    finally:
        close_producer(producer)


def read_all(
    settings: Settings, topic: str, otherwise: str = UNANSWERED
) -> Iterator[tuple[bytes | None, bytes | None]]:
    """Yield keys and values of a topic with one partition, as far as it goes now.

    Errors as `asking`; BrokerError, too, if Kafka gives nothing of what it has.
    """
    for record in read_partition(settings, topic, 0, otherwise):
        yield record.key, record.value


def read_partition(
    settings: Settings, topic: str, partition: int, otherwise: str = UNANSWERED,
    reader: KafkaConsumer | None = None,
) -> Iterator[Any]:  # fmt: skip
    """Yield the records of a partition, as far as it goes now; errors as `read_all`.

    reader: As `log_reader` returns it; it stands behind the last record then, and stays open.
    """
    place, deadline = TopicPartition(topic, partition), time.monotonic() + PATIENCE_SECONDS
    with (
        asking(settings, f"topic {topic}", "Read", otherwise),
        nullcontext(reader) if reader else log_reader(settings, wait_ms=100) as consumer,
    ):
        consumer.assign([place])
        consumer.seek_to_beginning(place)
        known = topic in consumer.topics()
        try:
            end = consumer.end_offsets([place], timeout_ms=None if known else APPEARS_MS)[place]
        except KafkaTimeoutError:
            if known:
                raise
            raise no_topic(settings, topic) from None
        while consumer.position(place) < end:
            records = consumer.poll(timeout_ms=200, max_records=5000).get(place, [])
            if records:
                deadline = time.monotonic() + PATIENCE_SECONDS
            elif time.monotonic() > deadline:
                raise BrokerError(
                    f"topic {topic} holds messages, and Kafka has sent none of them for "
                    f"{PATIENCE_SECONDS:.0f} s; the operator of Kafka must find out why, and this "
                    "command can then be run again"
                )
            yield from records


def first_offset(settings: Settings, topic: str, partition: int) -> int:
    """Return where a partition begins, also where retention has left nothing; as `asking`."""
    place = TopicPartition(topic, partition)
    with asking(settings, f"topic {topic}", "Read"), log_reader(settings, wait_ms=100) as consumer:
        return int(consumer.beginning_offsets([place])[place])


def no_topic(settings: Settings, name: str) -> NoTopic:
    """Return the error of a topic that is to be read and is not there."""
    return NoTopic(
        f"there is no topic {name} at {settings.kafka}, or this user may not see it: see to the "
        "study's name, VEILSTREAM_KAFKA and VEILSTREAM_KAFKA_USERNAME; a worker of the study, or "
        "`veilstream topics`, makes its topics"
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
