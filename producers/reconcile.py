"""A database against the releases topic: a restored backup must not release records again.

The topic keeps what a client has sent. If it holds a release of this very ledger with a number
that the database has not reached, the database is an old copy: its position lies before records
that have been released already.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from kafka import KafkaConsumer, TopicPartition
from kafka.errors import KafkaError
from kafka.partitioner import murmur2

from infra.connection import log_reader
from pipeline.errors import BrokerError, LedgerBehind, PayloadError
from pipeline.local.plan import Plan
from pipeline.messages.release import read
from pipeline.messages.topics import Topic, Topics
from pipeline.settings import Settings
from producers.sources import Source
from producers.vault import Stream, Vault

#: How far the clocks of client and broker may be apart, in seconds.
CLOCKS = 3600.0
#: How long Kafka may hand out nothing of what it has, in seconds.
PATIENCE = 60.0
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
    place = _place(Topics.of(plan.study).releases, vault.client)
    try:
        with log_reader(settings, wait_ms=200) as consumer:
            consumer.assign([place])
            found = _since(consumer, place, vault, stream, say)
    except KafkaError as error:
        raise BrokerError(
            f"the releases topic cannot be read ({type(error).__name__}), so nobody can tell "
            "whether this client's database is its newest"
        ) from error
    newest = max(found.values(), default=-1)
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


def skip(
    plan: Plan,
    vault: Vault,
    source: Source,
    name: str,
    stream: Stream,
    lost: range,
    *,
    now: float,
    stopped: Callable[[], bool],
) -> int | None:
    """Pass over every record that lost releases can have held.

    A release holds at most `window.records` slots, so no record behind so many was in one.

    Parameters
    ----------
    stopped
        Whether this process has been asked to end: a source that grows may have to be waited for.

    Returns
    -------
    int or None
        How many slots were passed over; None, and nothing has changed, if it was to stop before.
    """
    left, position = len(lost) * plan.slots, stream.position
    while left and not source.ended:
        if stopped():
            return None
        for slot in source.read(min(left, STEP), 0.2):
            position = slot.position
            left -= 1
    vault.pass_over(plan, name, lost, position=position, now=now)
    return len(lost) * plan.slots - left


def _place(topic: Topic, client: str) -> TopicPartition:
    """Return where Kafka's default partitioner puts the releases of a client."""
    return TopicPartition(topic.name, (murmur2(client.encode()) & 0x7FFFFFFF) % topic.partitions)


def _since(
    consumer: KafkaConsumer,
    place: TopicPartition,
    vault: Vault,
    stream: Stream,
    say: Callable[[str], None],
) -> dict[int, int]:
    """Return the ledger's releases behind which the database may be: offset to number."""
    first = int(consumer.beginning_offsets([place])[place])
    if stream.sent is None:
        early = int(1000 * ((vault.since or 0.0) - CLOCKS))
        later = consumer.offsets_for_times({place: max(0, early)}).get(place)
        return {} if later is None else _own(consumer, place, int(later.offset), vault, say)
    last = stream.sent[1] if stream.sent[0] == place.partition else -1
    if 0 <= last < first:
        if last + 1 < first:
            say(
                "WARNING: the releases topic no longer reaches back to this client's last release; "
                "nobody can tell whether this database is its newest"
            )
        return _own(consumer, place, first, vault, say)
    # the client's last release stands for the topic being the one that it was sent to
    found = _own(consumer, place, max(last, first), vault, say)
    if last not in found:
        say(
            "WARNING: the releases topic does not hold this client's last release where it was "
            "put: the topic was made anew; nobody can tell whether this database is its newest"
        )
        found = _own(consumer, place, first, vault, say)
    return found


def _own(
    consumer: KafkaConsumer,
    place: TopicPartition,
    start: int,
    vault: Vault,
    say: Callable[[str], None],
) -> dict[int, int]:
    """Return the releases of this ledger in the log from `start` on: offset to number."""
    key, found = vault.client.encode(), dict[int, int]()
    end = int(consumer.end_offsets([place])[place])
    if end - start > 500_000:
        say(f"checking {end - start} messages of the releases topic against this database")
    if start >= end:
        return found
    consumer.seek(place, start)
    deadline = time.monotonic() + PATIENCE
    while consumer.position(place) < end:
        batches = consumer.poll(timeout_ms=200, max_records=5000)
        if batches:
            deadline = time.monotonic() + PATIENCE
        elif time.monotonic() > deadline:
            raise BrokerError(
                f"the releases topic gives nothing for {PATIENCE:g} s, so nobody can tell whether "
                "this client's database is its newest"
            )
        for records in batches.values():
            for record in records:
                if record.key == key:
                    found[record.offset] = _number(record.value, vault.ledger)
    return {offset: number for offset, number in found.items() if number >= 0}


def _number(payload: bytes | None, ledger: str) -> int:
    """Return the number of a release of this ledger; -1 for anything else."""
    try:
        release = read(payload)
    except PayloadError:
        return -1
    return release.seq if release.ledger == ledger else -1
