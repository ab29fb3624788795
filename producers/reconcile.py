"""A database against the releases topic: a restored backup must not release records again.

The topic keeps what a client has sent. If it holds a release of this very ledger with a number
that the database has not reached, the database is an old copy: its position lies before records
that have been released already.
"""

from __future__ import annotations

from collections.abc import Callable

from kafka import KafkaConsumer, TopicPartition
from kafka.errors import KafkaError
from kafka.partitioner import DefaultPartitioner

from infra.connection import log_reader
from pipeline.errors import BrokerError, LedgerBehind, PayloadError
from pipeline.local.plan import Plan
from pipeline.messages.release import read
from pipeline.messages.topics import Topics
from pipeline.settings import Settings
from producers.sources import Source
from producers.vault import Stream, Vault

#: How far the clocks of client and broker may be apart, in seconds.
CLOCKS = 3600.0
#: Slots that are read and dropped at a time when lost releases are passed over.
STEP = 1000


def lost_releases(
    plan: Plan, settings: Settings, vault: Vault, stream: Stream, say: Callable[[str], None]
) -> range:
    """Return the numbers of releases that the topic has and the database does not know.

    Parameters
    ----------
    say
        Told what cannot be checked, and of a search that takes long.

    Raises
    ------
    BrokerError
        If Kafka does not answer.
    """
    nothing = range(stream.next_seq, stream.next_seq)
    if vault.since is None:
        # nobody can have released under a ledger id that is a second old
        return nothing
    topic = Topics.of(plan.study).releases
    try:
        with log_reader(settings, wait_ms=200) as consumer:
            if stream.sent is not None:
                place = TopicPartition(topic.name, stream.sent[0])
            else:
                everywhere = list(range(topic.partitions))
                key = vault.client.encode()
                place = TopicPartition(
                    topic.name, DefaultPartitioner()(key, everywhere, everywhere)
                )
            consumer.assign([place])
            start = _start(consumer, place, vault.since, stream, say)
            newest = _newest(consumer, place, start, vault, say)
    except KafkaError as error:
        raise BrokerError(
            f"the releases topic cannot be read ({type(error).__name__}), so nobody can tell "
            "whether this client's database is its newest"
        ) from error
    return range(stream.next_seq, newest + 1) if newest >= stream.next_seq else nothing


def refuse(plan: Plan, lost: range) -> LedgerBehind:
    """Return the error for a database that is behind."""
    return LedgerBehind(
        f"this client's database has {lost.start} releases of study {plan.study.name!r}, the "
        f"releases topic has {lost.stop}: the database was restored from an old copy, or another "
        "copy of it is in use. Put the newest database back. If it is gone, --skip-lost charges "
        f"the lost releases and goes on behind the {len(lost) * plan.slots} record slots that they "
        "can have held"
    )


def skip(plan: Plan, vault: Vault, source: Source, name: str, lost: range, now: float) -> int:
    """Pass over every record that lost releases can have held; return how many slots that was.

    A release holds at most `window.records` slots, so no record behind so many was in one.
    """
    left, position = len(lost) * plan.slots, None
    while left and not source.ended:
        for slot in source.read(min(left, STEP), 0.2):
            position = slot.position
            left -= 1
    vault.pass_over(plan, name, lost, position=position, now=now)
    return len(lost) * plan.slots - left


def _start(
    consumer: KafkaConsumer,
    place: TopicPartition,
    since: float,
    stream: Stream,
    say: Callable[[str], None],
) -> int:
    """Return the offset behind which unknown releases can be."""
    first = int(consumer.beginning_offsets([place])[place])
    if stream.sent is not None:
        wanted = stream.sent[1] + 1
        if wanted < first:
            say(
                "WARNING: the releases topic no longer reaches back to this client's last release; "
                "nobody can tell whether this database is its newest"
            )
        return max(first, wanted)
    early = int(1000 * (since - CLOCKS))
    found = consumer.offsets_for_times({place: max(0, early)}).get(place)
    return int(consumer.end_offsets([place])[place]) if found is None else int(found.offset)


def _newest(
    consumer: KafkaConsumer,
    place: TopicPartition,
    start: int,
    vault: Vault,
    say: Callable[[str], None],
) -> int:
    """Return the highest number that this ledger has in the log from `start` on, or -1."""
    key, newest = vault.client.encode(), -1
    end = int(consumer.end_offsets([place])[place])
    if end - start > 500_000:
        say(f"checking {end - start} messages of the releases topic against this database")
    if start >= end:
        return newest
    consumer.seek(place, start)
    while consumer.position(place) < end:
        for records in consumer.poll(timeout_ms=200, max_records=5000).values():
            for record in records:
                if record.key == key:
                    newest = max(newest, _number(record.value, vault.ledger))
    return newest


def _number(payload: bytes | None, ledger: str) -> int:
    """Return the number of a release of this ledger; -1 for anything else."""
    try:
        release = read(payload)
    except PayloadError:
        return -1
    return release.seq if release.ledger == ledger else -1
