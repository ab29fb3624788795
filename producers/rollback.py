"""A database against the releases topic: a restored backup must not release records again.

The topic keeps what a client has sent. If it holds a release of this very ledger with a number
that the database has not reached, the database is an old copy: its position lies before records
that have been released already. Times of records say nothing of when they were sent, so the search
goes by offsets alone: from this client's newest acknowledged release, or from the beginning. The
studies that this one takes the place of are searched, too: it began where they ended.

Going on behind lost releases passes over every record that they can have held, durably. How many
slots a release can hold follows from those before it. They are owed from the transaction on that
charges the lost releases, and nothing is released while any are: the source may be shorter than
what was lost, and its rest come days later.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec
from kafka import KafkaConsumer, TopicPartition

from infra.kafka import asking, log_reader
from infra.keyring import client_path, pinned
from infra.topics import are_there, partitions_of
from pipeline.errors import BrokerError, ConfigError, LedgerBehind, PayloadError
from pipeline.messages.release import Header, header_of
from pipeline.messages.topics import Topics, partition_of
from pipeline.release.form import identity
from pipeline.release.task import Task
from pipeline.settings import Settings
from pipeline.study.model import Study
from pipeline.study.release_tables import Trust
from pipeline.words import counted
from producers.membership import Membership
from producers.sources import Source
from producers.store import ClientStore, Stream


def check_followed(
    task: Task,
    settings: Settings,
    store: ClientStore,
    source: str,
    lost: Lost,
    say: Callable[[str], None],
    stopped: Callable[[], bool],
) -> None:
    """Refuse to begin behind studies of which this database has lost releases.

    source: Whose records are released.
    lost: What it has lost of the study that begins.
    say, stopped: As `lost_releases` takes them.

    Raises LedgerBehind if it has, or if something is lost and nobody can tell; ConfigError if Kafka
    does not let the topic be read; BrokerError if it does not answer.
    """
    if store.peek(task.study.name).next_seq:
        return
    for before in store.following.line(task.study.study.before, source):
        if stopped():
            return
        known, study = store.peek(before), _earlier(task.study, before)
        member = _membership(study, settings, store.client, say)
        topic = Topics.of(study).releases.name
        end = end_of(topic, settings, store, known.sent, say, stopped, member)
        if end is not None and end > known.next_seq:
            forged = "" if member else f". If it was not restored, {FORGED}"
            raise LedgerBehind(
                f"study.follows: this client's database has "
                f"{counted(known.next_seq, 'release')} of study "
                f"{before!r}, the releases topic has {end}: the database was restored from an old "
                "copy. Put the newest one back. If it is gone, start the producer once with the "
                f"file of study {before!r} and --skip-lost, and then with this one{forged}. "
                "Nothing was spent"
            )
        if end is None and lost.seqs and known.next_seq:
            raise LedgerBehind(
                f"study.follows: this client's database has lost releases, and the releases topic "
                f"of study {before!r} no longer shows where that one ended: put the newest "
                "database back; if it is gone, begin a study of another name that follows none, "
                "on records that come from now on"
            )


def _earlier(study: Study, name: str) -> Study:
    """Return what is known of an earlier study without its file: its name, and where its keys are.

    Its own file may have had no [trust]: see `_membership`.
    """
    named = msgspec.structs.replace(study.study, name=name)
    return msgspec.structs.replace(study, study=named, trust=Trust(releases="authenticated"))


def _membership(
    study: Study, settings: Settings, client: str, say: Callable[[str], None]
) -> Membership | None:
    """Return what tells a client's own releases for an earlier study from what others forged.

    None if any release may be its own: the study was open when this folder took part in it, or has
    known this client under a key that is not here.
    """
    if pinned(settings, study.name) is None or not client_path(settings, client).exists():
        return None
    if not are_there(settings, [Topics.of(study).clients.name]):
        return None
    member = Membership(study, settings, client, say, looking=True)
    return member if member.has_all_keys else None


#: Slots that are read and dropped in one durable step.
STEP = 4096
#: How long one step waits for records, in seconds.
STEP_SECONDS = 0.2


def owe(task: Task, store: ClientStore, source: Source, name: str, lost: Lost, now: float) -> None:
    """Charge lost releases to a source of this name, and note the slots that they can have held.

    Raises ConfigError as `check_order`; LedgerBehind if the study drops windows: nobody knows how
    many lay between them.
    """
    check_order(source, name)
    if task.policy.discards:
        raise LedgerBehind(
            f"study {task.study.name!r} drops windows, so nobody can tell which records the "
            f"{len(lost.seqs)} lost releases held, and to continue could release some of them "
            "again: the operator must put the newest database back, or begin a study with "
            "another name on records that come from now on"
        )
    owed = largest_loss(task, store, len(lost.seqs))
    store.charge_lost(task, name, lost.seqs, owed=owed, sent=lost.sent, now=now)


def largest_loss(task: Task, store: ClientStore, releases: int) -> int:
    """Return how many record slots so many releases behind those of a database can have held.

    They were one after the other as large as windows may grow to.
    """
    held = first = store.standing(task.study.name).chain.slots
    for _ in range(releases):
        held += task.growth.next_window(held)
    return held - first


def check_order(source: Source, name: str) -> None:
    """Refuse to leave out lost records where nobody can say which they are; ConfigError."""
    if not source.repeats:
        raise ConfigError(
            f"--skip-lost: {name} has several partitions, so there is no order in which it could "
            "be read again, and nobody can say which of its records the lost releases held. The "
            "data owner must bring the newest copy of this client's database back, or have what "
            "is written from now on in a topic of its own"
        )


def pass_over(
    task: Task,
    store: ClientStore,
    source: Source,
    *,
    say: Callable[[str], None],
    stopped: Callable[[], bool],
    meanwhile: Callable[[], None] = lambda: None,
) -> bool:
    """Pass over the slots that are owed, as far as the source goes; return whether all are.

    say: Told how many there are, and how many remain.
    stopped: Whether this process has been asked to end: a source that grows may have to be waited
        for.
    meanwhile: Called between two steps.
    """
    study = task.study.name
    owed = store.peek(study).owed
    if not owed:
        return True
    say(f"passing over {owed} record slots that lost releases can have held")
    told = time.monotonic()
    while owed and not source.ended and not stopped():
        meanwhile()
        slots = source.read(min(owed, STEP), STEP_SECONDS)
        if slots:
            owed -= len(slots)
            store.pass_over(study, len(slots), source.anchored(slots[-1].position))
            source.forget(slots[-1].position)
        if time.monotonic() - told >= 10.0:
            told = time.monotonic()
            say(f"{owed} record slots are still to be passed over")
    if owed:
        say(
            f"{owed} record slots are still to be passed over, and nothing is released before: the "
            "next records of the source, now or at a later start, count as these slots"
        )
        return False
    say("done; the ledger counts what was lost as spent")
    return True


#: How long Kafka may hand out nothing of what it has, in seconds.
PATIENCE = 60.0
#: Seconds between two lines about a search that takes long.
TELL = 3.0
#: More releases than this no old copy has lost.
MOST_LOST = 1_000_000
#: Messages that are looked at between two looks at the clock.
BATCH = 5000
UNREAD = (
    "the releases topic cannot be read ({fault}), so nobody can tell whether this client's "
    "database is its newest"
)
FORGED = (
    "somebody else has sent releases under this client's name. Anybody who may write to the "
    "releases topic of an open study can do that: the operator must take that right away, and "
    "cut the topic behind these releases (kafka-delete-records)"
)


@dataclass(frozen=True, slots=True)
class Lost:
    """Releases that were made under this ledger and that its database does not know.

    seqs: Their numbers, from the stream's next one on.
    sent: Partition and offset of the newest of them in the releases topic; None if it has none.
    certain: Whether the topic reaches far enough back to tell that there are no others.
    """

    seqs: range
    sent: tuple[int, int] | None = None
    certain: bool = True


@dataclass(slots=True)
class Found:
    """What the log has under a client's key.

    anew: It is not the one that was sent to. certain: It reaches back to the last release of which
        the database knows that it was sent, so that it shows all behind that.
    """

    newest: Header | None = None
    offset: int = -1
    others: bool = False
    first: int | None = None
    anew: bool = False
    certain: bool = False
    numbers: set[int] = field(default_factory=set)

    def take(self, release: Header, offset: int, ledger: str) -> None:
        """Take the next release of the log."""
        if release.ledger != ledger:
            self.others = True
            return
        self.first = offset if self.first is None else self.first
        self.numbers.add(release.seq)
        if self.newest is None or release.seq >= self.newest.seq:
            self.newest, self.offset = release, offset


def lost_releases(
    task: Task,
    settings: Settings,
    store: ClientStore,
    stream: Stream,
    say: Callable[[str], None],
    stopped: Callable[[], bool] = lambda: False,
    membership: Membership | None = None,
) -> Lost:
    """Return the releases that topic or folder know of and the database does not.

    say: Told what cannot be checked, and of a search that takes long.
    stopped: Whether this process has been asked to end: then what is returned means nothing.
    membership: Tells what this client has made of all that bears its name.

    Raises LedgerBehind if another ledger has released as this client, or a number cannot be true;
    ConfigError if the lost releases are of another revision of the study; BrokerError if Kafka does
    not answer.
    """
    study, first_lost = task.study.name, stream.next_seq
    topic = Topics.of(task.study).releases
    topic_partition = TopicPartition(
        topic.name, partition_of(store.client.encode(), topic.partitions)
    )
    with (
        asking(settings, f"topic {topic.name}", "Read", UNREAD),
        log_reader(settings, wait_ms=200) as consumer,
    ):
        consumer.assign([topic_partition])
        # what a key that is lost has made, nobody here can tell from a forgery
        known = membership if first_lost or (membership and membership.has_all_keys) else None
        search = Search(consumer, topic_partition, store, say, stopped, known)
        found = search.run(stream.sent)
    sent = first_lost - store.waiting(study)
    gone = sent - sum(seq < first_lost for seq in found.numbers)
    if found.anew and gone > 0:
        say(
            f"WARNING: {gone} of this client's {counted(sent, 'release')} are no longer in it "
            "and no longer count; their privacy budget stays spent"
        )
    if found.others:
        rekeyed = membership is not None and known is None
        raise LedgerBehind(
            f"another ledger has released study {study!r} as client {store.client!r}"
            f"{', which was admitted under another key before' if rekeyed else ''}: put the "
            f"{'key and the ' if rekeyed else ''}database back that this client had. If it is "
            "gone, this study is over for this client, as nobody knows how far it came, and its "
            "releases from here would not count; a study with a new name counts what the ledger "
            "topic or `veilstream privacy ledger --import` says was spent"
        )
    # without a topic that reaches back, the folder alone may know
    end = max(first_lost, first_lost + store.missing.get(study, 0))
    if found.newest is None or found.newest.seq < first_lost:
        return Lost(range(first_lost, end), certain=found.certain)
    if found.newest.seq - first_lost > MOST_LOST:
        raise LedgerBehind(
            f"the releases topic has a release of this ledger with number {found.newest.seq}, and "
            f"this database has {first_lost}: no copy is that old, so {FORGED}"
        )
    if found.newest.revision != task.revision:
        raise ConfigError(
            f"this client's database is an old copy, and what it has lost of study {study!r} was "
            f"released under revision {found.newest.revision}; the file is revision "
            f"{task.revision}: restore the file, or give the study a new name (its releases then "
            "count against the same source)"
        )
    return Lost(
        range(first_lost, max(end, found.newest.seq + 1)),
        (topic_partition.partition, found.offset),
        found.certain,
    )


def end_of(
    topic: str, settings: Settings, store: ClientStore, sent: tuple[int, int] | None,
    say: Callable[[str], None], stopped: Callable[[], bool], membership: Membership | None,
) -> int | None:  # fmt: skip
    """Return behind which number a topic has no release of this ledger; None: nobody can tell.

    membership: As `lost_releases` takes it, of the topic's study.
    """
    partitions = partitions_of(settings, topic)
    if not partitions:
        return None
    with (
        asking(settings, f"topic {topic}", "Read", UNREAD),
        log_reader(settings, wait_ms=200) as consumer,
    ):
        place = TopicPartition(topic, partition_of(store.client.encode(), partitions))
        consumer.assign([place])
        found = Search(consumer, place, store, say, stopped, membership).run(sent)
    if found.newest is not None:
        return found.newest.seq + 1
    return 0 if sent is None else None


def refuse(task: Task, lost: Lost, missing: dict[str, int]) -> LedgerBehind:
    """Return the error for a database that is behind.

    lost: What the database has lost of this study.
    missing: How many releases of each study this folder remembers, and the database has not.
    """
    known = "the releases topic has" if lost.sent else "this folder remembers"
    found = (
        f"this client's database has "
        f"{counted(lost.seqs.start, 'release')} of study {task.study.name!r}, "
        f"{known} {lost.seqs.stop}"
        if lost.seqs
        else f"this folder remembers "
        f"{counted(sum(missing.values()), 'more release')} of this client "
        f"({named(missing)}) than its database has"
    )
    return LedgerBehind(
        f"{found}: the database was restored from an old copy, or another copy of it is in use. "
        "Put the newest database back. If it is gone, start each study of this client with "
        "--skip-lost: this charges what was lost and continues behind all records that those "
        "releases can have held"
    )


def named(missing: dict[str, int]) -> str:
    """Return the studies that have lost releases, in words."""
    return ", ".join(f"study {study!r}" if study else "any study" for study in sorted(missing))


class Search:
    """A search of one partition for the releases of one client.

    consumer, topic_partition: What reads, and the partition that it has been assigned.
    say, stopped, membership: As `lost_releases` takes them.
    """

    def __init__(
        self,
        consumer: KafkaConsumer,
        topic_partition: TopicPartition,
        store: ClientStore,
        say: Callable[[str], None],
        stopped: Callable[[], bool],
        membership: Membership | None,
    ) -> None:
        self._consumer, self._topic_partition = consumer, topic_partition
        self._key, self._ledger = store.client.encode(), identity(store.ledger.encode()).hex()
        self._say, self._stopped, self._membership = say, stopped, membership
        self._found = Found()

    def run(self, sent: tuple[int, int] | None) -> Found:
        """Search behind the client's newest acknowledged release, or the whole partition.

        A ledger's numbers grow along the log, so all that its database can lack lies behind the
        release that it knows to be there. That this one is still where it was put shows that the
        topic is the one it was sent to.
        """
        first = int(
            self._consumer.beginning_offsets([self._topic_partition])[self._topic_partition]
        )
        end = int(self._consumer.end_offsets([self._topic_partition])[self._topic_partition])
        if sent is None:
            self._scan(first, end)
            return self._found
        last = sent[1] if sent[0] == self._topic_partition.partition else -1
        if first <= last < end:
            self._scan(last, end)
            self._found.certain = self._found.first == last
            if self._found.certain or self._stopped():
                return self._found
            end = last
        if 0 <= last < first:
            self._found.certain = last + 1 == first
            if last + 1 < first:
                self._say(
                    "WARNING: the releases topic no longer reaches back to this client's last "
                    "release; nobody can tell whether this database is its newest"
                )
        else:
            self._found.anew = True
            self._say(
                "WARNING: the releases topic does not hold this client's last release where it was "
                "put: the topic was made anew; nobody can tell whether this database is its "
                "newest. The operator must run `veilstream study recover` (docs/guides/lost-log.md)"
            )
        self._scan(first, end)
        return self._found

    def _scan(self, start: int, end: int) -> None:
        """Take what the log has from `start` up to `end`."""
        consumer, topic_partition = self._consumer, self._topic_partition
        if start >= end:
            return
        consumer.seek(topic_partition, start)
        at, told = start, time.monotonic()
        deadline = told + PATIENCE
        while at < end and not self._stopped():
            batches = consumer.poll(timeout_ms=200, max_records=BATCH)
            now = time.monotonic()
            if batches:
                deadline = now + PATIENCE
            elif now > deadline:
                raise BrokerError(
                    f"the releases topic gives nothing for {PATIENCE:g} s, so nobody can tell "
                    "whether this client's database is its newest"
                )
            for records in batches.values():
                for record in records:
                    if record.key == self._key and record.offset < end:
                        self._take(record)
            at = int(consumer.position(topic_partition))
            if now - told >= TELL:
                told = now
                self._say(
                    "looking for releases of this client in the releases topic: "
                    f"{min(at, end) - start} of {end - start} messages"
                )

    def _take(self, record: Any) -> None:
        try:
            release = header_of(record.value or b"")
        except PayloadError:
            return
        if self._membership is not None and not self._membership.maker(record):
            return
        self._found.take(release, record.offset, self._ledger)
