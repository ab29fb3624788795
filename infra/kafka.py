"""How Kafka is reached: the options of the one settings tree, one reader of logs, faults in words.

kafka-python takes fetched records apart in Python, and copies each into an object of thirteen
fields: that takes longer than most of what is done with a record afterwards. The compiled reader of
aiokafka does it here. It expects UTF-8 in the names of headers, and ends at one record of any topic
that has something else, which whoever may write can send. Here such a name is read as its bytes,
written out in hexadecimal digits.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import Any

from aiokafka.errors import KafkaError as ReaderError
from aiokafka.record.default_records import DefaultRecordBatch, _DefaultRecordBatchPy
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.consumer.fetcher import Fetcher
from kafka.errors import CorruptRecordError, KafkaError, KafkaTimeoutError
from kafka.protocol.consumer import IsolationLevel

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


def lenient(raw: bytes | memoryview) -> Iterator[Any]:
    """Return the records of a batch, read in Python; aiokafka's error where they cannot be."""
    batch = _DefaultRecordBatchPy(raw)
    batch._maybe_uncompress()
    # indexing it is slow, but one such record must not cost a copy of the others
    batch._buffer = Lenient(batch._buffer)
    return iter(batch)


class CompiledRecords(Fetcher.PartitionRecords):  # type: ignore[misc]
    """The records of one answer for one partition, as they were parsed: offset, timestamp, value.

    What is handed out, and which error where, is as in the class that it takes the place of.
    """

    def _unpack_records(self, tp: Any, records: Any, *_: Any) -> Iterator[Any]:
        last = None
        while (batch := records.next_batch()) is not None:
            if self.check_crcs and not batch.validate_crc():
                raise CorruptRecordError(f"{tp}: a batch fails its checksum")
            if batch.magic < 2:
                for record in batch:
                    if self.check_crcs and not record.validate_crc():
                        raise CorruptRecordError(f"{tp}: a record fails its checksum")
                    self.next_fetch_offset = record.offset + 1
                    yield record
                continue
            last, self.leader_epoch = batch, batch.leader_epoch
            if self._aborted(batch) or batch.is_control_batch:
                self.next_fetch_offset = batch.next_offset
                continue
            self.records_read += batch.records_count
            self.bytes_read += batch.size_in_bytes
            for record in _parsed(batch):
                self.next_fetch_offset = record.offset + 1
                yield record
        if last is not None:
            # a batch says where it ended even where compaction has removed its last record
            self.next_fetch_offset = last.next_offset
        self.drain()

    def _aborted(self, batch: Any) -> bool:
        """Whether a batch belongs to a transaction that was aborted."""
        if self.isolation_level != IsolationLevel.READ_COMMITTED or not batch.has_producer_id():
            return False
        self._consume_aborted_transactions_up_to(batch.last_offset)
        if self._contains_abort_marker(batch):
            self.aborted_producer_ids.discard(batch.producer_id)
            return False
        found: bool = self._is_batch_aborted(batch)
        return found


def _parsed(batch: Any) -> Iterable[Any]:
    """Return the records of a batch; CorruptRecordError if they cannot be read."""
    batch._maybe_uncompress()
    header, begin = list(batch._header_data), batch._pos
    header[5] &= ~batch.CODEC_MASK
    whole = bytes(batch.HEADER_STRUCT.pack(*header) + batch._buffer[begin:])
    try:
        try:
            return list(DefaultRecordBatch(whole))
        except UnicodeDecodeError:
            return list(lenient(whole))
    except (ReaderError, ValueError, IndexError) as error:
        raise CorruptRecordError("a batch of records cannot be read") from error


class LogReader(KafkaConsumer):  # type: ignore[misc]
    """A consumer that takes apart what it has fetched this way."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._fetcher.PartitionRecords = CompiledRecords

    def poll(self, *given: Any, **named: Any) -> Any:
        """As `KafkaConsumer.poll`; what was set aside while a partition was paused comes, too.

        kafka-python 3.0 puts it back only where no answer is in line, and leaves one there that has
        nothing left: such a partition is neither handed out nor fetched again, for ever.
        """
        if not self._fetcher._next_partition_records:
            self._fetcher._next_partition_records = None
        return super().poll(*given, **named)


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


def log_reader(settings: Settings, *, wait_ms: int, **options: Any) -> LogReader:
    """Return a consumer that reads a log from a position of its own, without a group.

    wait_ms: How long the broker may hold back an answer while there is nothing to read.
    options: Others, as `KafkaConsumer` takes them.

    Raises ConfigError, BrokerError as `infra.preflight.check_servers`; KafkaError if Kafka does not
    answer.
    """
    check_servers(settings)
    return LogReader(
        **{**kafka_options(settings), "auto_offset_reset": "earliest", **options},
        group_id=None,
        enable_auto_commit=False,
        allow_auto_create_topics=False,
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
    place = TopicPartition(topic, partition)
    with (
        asking(settings, f"topic {topic}", "Read", otherwise),
        nullcontext(reader) if reader else log_reader(settings, wait_ms=100) as consumer,
    ):
        consumer.assign([place])
        consumer.seek_to_beginning(place)
        try:
            end = consumer.end_offsets([place], timeout_ms=APPEARS_MS)[place]
        except KafkaTimeoutError:
            # in kafka-python a reader that still asks for this topic gets that answer for any other
            # question, too, or waits for ever: another one asks
            with log_reader(settings, wait_ms=100) as other:
                if not other.partitions_for_topic(topic):
                    raise no_topic(settings, topic) from None
            end = consumer.end_offsets([place])[place]
        silent = BrokerError(
            f"topic {topic} holds messages, and Kafka has sent none of them for "
            f"{PATIENCE_SECONDS:.0f} s; the operator of Kafka must find out why, and this command "
            "can then be run again"
        )
        for records in read_to(consumer, place, end, PATIENCE_SECONDS, silent):
            yield from records


def read_to(
    consumer: LogReader, place: TopicPartition, end: int, patience: float, silent: BrokerError
) -> Iterator[list[Any]]:
    """Yield what comes of a partition from where a reader stands up to an offset, or nothing yet.

    patience, silent: Seconds in which something must come, and what is raised if nothing does.
    """
    deadline = time.monotonic() + patience
    while consumer.position(place) < end:
        records = consumer.poll(timeout_ms=200, max_records=5000).get(place, [])
        if records:
            deadline = time.monotonic() + patience
        elif time.monotonic() > deadline:
            raise silent
        yield records


def first_offset(settings: Settings, topic: str, partition: int) -> int:
    """Return where a partition begins, also where retention has left nothing; as `read_all`."""
    place = TopicPartition(topic, partition)
    with asking(settings, f"topic {topic}", "Read"), log_reader(settings, wait_ms=100) as consumer:
        # of a topic that is not there kafka-python would ask for half a minute
        if not consumer.partitions_for_topic(topic):
            raise no_topic(settings, topic)
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
