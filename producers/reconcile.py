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

from infra.connection import log_reader
from pipeline.errors import BrokerError, LedgerBehind, PayloadError
from pipeline.local.plan import Plan
from pipeline.messages.keys import partition_of
from pipeline.messages.release import Release, read
from pipeline.messages.topics import Topic, Topics
from pipeline.settings import Settings
from producers.sources import Source
from producers.vault import Stream, Vault

#: How far the clocks of client and broker may be apart, in seconds.
CLOCKS = 3600.0
#: How long Kafka may hand out nothing of what it has, in seconds.
PATIENCE = 60.0
#: Messages that are searched, at most, for a client that lost its whole folder.
RECENT = 1_000_000
#: More releases than this no old copy has lost.
MOST_LOST = 1_000_000
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
    place = _place(Topics.of(plan.study).releases, vault.client)
    try:
        with log_reader(settings, wait_ms=200) as consumer:
            consumer.assign([place])
            if stream.sent is None and _used_by_another(consumer, place, vault, say):
                raise LedgerBehind(
                    f"another ledger has released study {plan.study.name!r} as client "
                    f"{vault.client!r}: put the database back that this client had, or give these "
                    "records another --client; if they were released before, that is a second "
                    "release, which no ledger counts"
                )
            if vault.since is None:
                # nobody can have released under a ledger id that is a second old
                return nothing
            found = _since(consumer, place, vault, stream, say)
    except KafkaError as error:
        raise BrokerError(
            f"the releases topic cannot be read ({type(error).__name__}), so nobody can tell "
            "whether this client's database is its newest"
        ) from error
    newest = max(found.values(), default=-1)
    if newest - stream.next_seq > MOST_LOST:
        raise LedgerBehind(
            f"the releases topic has a release of this ledger with number {newest}, and this "
            f"database has {stream.next_seq}: no copy is that old, so somebody else writes to the "
            "topic; the operator must see to who may"
        )
    return range(stream.next_seq, newest + 1) if newest >= stream.next_seq else nothing


def refuse(plan: Plan, lost: range, missing: int) -> LedgerBehind:
    """Return the error for a database that is behind.

    Parameters
    ----------
    lost
        What the releases topic has of this study, and the database has not.
    missing
        How many releases of all studies this folder remembers, and the database has not.
    """
    found = (
        f"this client's database has {lost.start} releases of study {plan.study.name!r}, the "
        f"releases topic has {lost.stop}"
        if lost
        else f"this folder remembers {missing} more releases of this client, of any study, than "
        "its database has"
    )
    return LedgerBehind(
        f"{found}: the database was restored from an old copy, or another copy of it is in use. "
        "Put the newest database back. If it is gone, start each study of this client with "
        "--skip-lost: it charges what the topic has and goes on behind all records that those "
        f"releases can have held, {plan.slots} slots for each"
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
    anchored = None if position is None else source.anchored(position)
    vault.pass_over(plan, name, lost, position=anchored, now=now)
    return len(lost) * plan.slots - left


def _place(topic: Topic, client: str) -> TopicPartition:
    """Return where Kafka's default partitioner puts the releases of a client."""
    return TopicPartition(topic.name, partition_of(client.encode(), topic.partitions))


def _used_by_another(
    consumer: KafkaConsumer, place: TopicPartition, vault: Vault, say: Callable[[str], None]
) -> bool:
    """Whether the log holds releases of this client's key under another ledger.

    A client that lost its whole folder must not pass for a new one.
    """
    first = int(consumer.beginning_offsets([place])[place])
    end = int(consumer.end_offsets([place])[place])
    if end - first > RECENT:
        say(f"only the last {RECENT} messages of the releases topic are searched for this client")
    found = _own(consumer, place, max(first, end - RECENT), vault, say, others=True)
    return bool(found)


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
    *,
    others: bool = False,
) -> dict[int, int]:
    """Return the releases of this ledger in the log from `start` on: offset to number.

    Parameters
    ----------
    others
        Return those of other ledgers under this client's key instead.
    """
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
                release = _readable(record.value) if record.key == key else None
                if release is not None and (release.ledger != vault.ledger) == others:
                    found[record.offset] = release.seq
    return found


def _readable(payload: bytes | None) -> Release | None:
    try:
        return read(payload)
    except PayloadError:
        return None
