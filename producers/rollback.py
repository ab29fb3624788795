"""A database against the log: a restored backup, or another copy, must not release records again.

What this ledger's id has on the log that its database does not know is proof of another copy. Each
group of releases is claimed on the ledger topic before it leaves; the claims of all studies are
compared at the start, and while the client runs. A topic that lacks what the database has claimed
is another one and tells nothing: then the start is refused, too.

Three things no claim can tell, and the releases topic does, of the study that starts: numbers that
somebody has used who has this client's key alone, and cannot claim; what was claimed on a ledger
topic that is gone, where the data owner has said to go on; and whether the releases topic itself
was made anew. What counts is a release of this very ledger with a number that the database has not
reached, or with other bytes than those that wait here. Times of records say nothing of when they
were sent, so the search goes by offsets alone: from this client's newest acknowledged release, or
from the beginning.

Going on behind lost releases passes over every record that they can have held, durably. How many
slots a release can hold follows from those before it. They are owed from the transaction on that
charges the lost releases, and nothing is released while any are: the source may be shorter than
what was lost, and its rest come days later.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from typing import Any

from kafka import KafkaConsumer, TopicPartition
from kafka.errors import KafkaError

from infra.kafka import asking, log_reader, read_to
from pipeline.errors import BrokerError, ConfigError, LedgerBehind, PayloadError
from pipeline.messages.release import Header, header_of
from pipeline.messages.spend import Claim, read_claim, write_claim
from pipeline.messages.spend import prefix as key_prefix
from pipeline.messages.topics import Topics, partition_of
from pipeline.release.layout import identity
from pipeline.release.task import Task
from pipeline.settings import Settings
from pipeline.trust import GENERATION, MAC_SIZE
from pipeline.words import counted
from producers.membership import Membership
from producers.prior_spend import fault
from producers.sources.base import Source
from producers.store import ClientStore, Stream

#: Sends a claim to the ledger topic and returns its future.
Send = Callable[[bytes, bytes], Any]


class Claims:
    """What this ledger has claimed on the ledger topic, and what copies of it claim.

    found: Claims on the topic at the start, in order.
    reader: Stands behind what was read then.
    say: Told of claims that this ledger has not made.
    """

    def __init__(
        self, settings: Settings, store: ClientStore, found: Sequence[bytes],
        reader: KafkaConsumer, say: Callable[[str], None],
    ) -> None:  # fmt: skip
        self._settings, self._store, self._reader = settings, store, reader
        self._run, self._secret, self._begun = secrets.token_hex(8), store.secret, False
        self._asked, self._claimed = 0, 0
        #: Whether something is to be claimed even if nothing is to leave.
        self.due = False
        self._future: Any = None
        self._deadline = 0.0
        made = [claim for payload in found if (claim := read_claim(payload, self._secret))]
        if len(made) < len(found):
            say(
                f"WARNING: {settings.ledger_topic} has claims under this client's id and ledger "
                "that it has not made; they are passed over, and the operator must see to who may "
                "write there"
            )
        self._made = made
        newest = {claim.study: claim for claim in made}
        store.learn({study: self._releases(study) for study in newest})
        own = set[str]()
        for claim in made:
            if store.runs.own(claim.run):
                own.add(claim.study)
            # what comes before all that is known to be its own may be, too, and is forgotten
            told = claim.study in own or claim is newest[claim.study]
            if told and not store.runs.know(claim.study, claim.run):
                store.runs.note(claim.study, claim.run)

    def slots_behind(self, study: str) -> int:
        """Return how many slots are claimed behind a study's records.

        Those of studies in whose line it is count, too: they went on where it ended.
        """
        line = set(self._store.following.chain(study))
        ends = [claim.slots for claim in self._made if line & set(claim.line)]
        return max(0, max(ends, default=0) - self._store.slots(line)[0])

    def cover(self, study: str, lost: range) -> bool:
        """Whether claims say of all lost releases how many slots they hold."""
        return not lost or self._releases(study) >= lost.stop

    def tell_of_copies(self, study: str) -> bool:
        """Whether there is a claim of each copy that has released a study: none was replaced."""
        copies = {run for name, run in self._store.runs.copied() if name == study}
        return bool(copies) and copies <= {claim.run for claim in self._made}

    def lack(self, study: str) -> bool:
        """Whether the topic lacks what this database has claimed of a study: it is another one.

        Whatever has left was claimed before, and the newest claim of a study stays for ever; one of
        a study that took its place says that it was there.
        """
        told = any(study in claim.line[1:] for claim in self._made)
        return not told and self._releases(study) < self._store.acknowledged(study)

    def _releases(self, study: str) -> int:
        return max((claim.releases for claim in self._made if claim.study == study), default=0)

    def may_leave(self, send: Send, study: str, last: int) -> int:
        """Return which number of a release, and all after it, may not leave yet.

        What is stored by now is claimed first, and the log is read up to the claim.

        send: Sends a claim, by its key and value.
        last: The newest release that is to leave.

        Raises LedgerBehind if another copy has claimed something meanwhile; BrokerError,
        ConfigError as `asking`.
        """
        if self._future is not None and self._future.is_done:
            with self._asking("Write", "written"):
                offset = self._future.get(timeout=0).offset
            if self._read_to(offset):
                if not self._claimed:
                    self._store.runs.claimed(study)
                self._claimed, self._future, self.due = self._asked, None, False
        if self._future is None and (self.due or last >= self._claimed):
            self._claim(send, study)
        return self._claimed

    @property
    def waiting(self) -> bool:
        """Whether something is claimed that Kafka has not shown yet."""
        return self._future is not None

    def wait(self, seconds: float) -> None:
        """Wait until Kafka has the claim, so many seconds at most."""
        with suppress(KafkaError):
            self._future.get(timeout=seconds)

    def _claim(self, send: Send, study: str) -> None:
        store = self._store
        if not self._begun:
            # what is claimed must be known to be this database's own, whatever happens next
            store.runs.begin(study, self._run)
            self._begun = True
        line = store.following.chain(study)
        self._asked = store.peek(study).next_seq
        held, _ = store.slots(line)
        claim = Claim(store.client, store.ledger, self._run, self._asked, held, line)
        with self._asking("Write", "written"):
            self._future = send(claim.key, write_claim(claim, self._secret))
        self._deadline = time.monotonic() + PATIENCE

    def _asking(self, operation: str, done: str) -> AbstractContextManager[None]:
        topic = self._settings.ledger_topic
        return asking(self._settings, f"topic {topic}", operation, fault(done))

    def _read_to(self, offset: int) -> bool:
        """Whether the log is read up to an offset, and nobody else claims anything there."""
        place = TopicPartition(self._settings.ledger_topic, 0)
        prefix = key_prefix(self._store.client, self._store.ledger)
        with self._asking("Read", "read"):
            if offset < int(self._reader.position(place)):
                # what was written later comes before what was read: the topic was made anew
                self._reader.seek(place, 0)
            for record in self._reader.poll(timeout_ms=5).get(place, []):
                if (record.key or b"").startswith(prefix):
                    self._check(read_claim(record.value or b"", self._secret))
            ahead = int(self._reader.position(place)) - offset
        if ahead <= 0 and time.monotonic() > self._deadline:
            raise BrokerError(
                f"{self._settings.ledger_topic} does not show within {PATIENCE:g} s what was "
                "written to it, so nobody can tell whether another copy of this client runs: the "
                "operator must see to Kafka. Releases are kept; start this client again"
            )
        return ahead > 0

    def _check(self, claim: Claim | None) -> None:
        if claim is not None and not self._store.runs.know(claim.study, claim.run):
            # its claim may be replaced by one of this run, and a later start must know of it
            self._store.runs.note(claim.study, claim.run)
            raise LedgerBehind(
                f"another copy of this client's database runs and releases study {claim.study!r}: "
                "only one may, or records are released twice. Stop both, keep the one that has "
                "released more, remove the other, and start the one that is kept: if it ends with "
                "44, once with --skip-lost"
            )


#: Slots that are read and dropped in one durable step.
STEP = 4096
#: How long one step waits for records, in seconds.
STEP_SECONDS = 0.2


def owe(
    task: Task, store: ClientStore, source: Source, name: str, lost: Lost, now: float,
    claims: Claims, *, copied: bool = False,
) -> None:  # fmt: skip
    """Charge lost releases to a source of this name, and note the slots that they can have held.

    claims: Say how many slots those were; where they do not, as many as there can have been.
    copied: Whether another copy has released something meanwhile, under numbers of this one: it
        may have records of its own where this one's windows had empty slots. Where no claim says
        how far it came, as many slots as those that wait here can hold may lie before its end.

    Raises ConfigError if nobody can say which records were lost; LedgerBehind if the study drops
    windows: nobody knows how many lay between them.
    """
    if not source.repeats:
        raise ConfigError(
            f"--skip-lost: {name} has several partitions, so there is no order in which it could "
            "be read again, and nobody can say which of its records the lost releases held. The "
            "data owner must bring the newest copy of this client's database back, or have what "
            "is written from now on in a topic of its own"
        )
    if task.policy.discards:
        raise LedgerBehind(
            f"study {task.study.name!r} drops windows, so nobody can tell which records the "
            f"{len(lost.seqs)} lost releases held, and to continue could release some of them "
            "again: the operator must put the newest database back, or begin a study with "
            "another name on records that come from now on"
        )
    owed = claims.slots_behind(task.study.name)
    covered = claims.cover(task.study.name, lost.seqs)
    if not covered:
        owed = max(owed, largest_loss(task, store, len(lost.seqs)))
    if copied:
        # how full windows were stands in no claim: it is nobody's business
        owed += store.slots(store.following.chain(task.study.name))[1]
        if not (covered and claims.tell_of_copies(task.study.name)):
            owed += largest_loss(task, store, store.waiting(task.study.name))
    store.charge_lost(
        task, name, lost.seqs, owed=owed, sent=lost.sent, now=now, copied=copied
    )  # fmt: skip


def largest_loss(task: Task, store: ClientStore, releases: int) -> int:
    """Return how many record slots so many releases behind those of a database can have held.

    They were one after the other as large as windows may grow to.
    """
    held = first = store.standing(task.study.name).chain.slots
    for _ in range(releases):
        held += task.growth.next_window(held)
    return held - first


def pass_over(
    task: Task, store: ClientStore, source: Source, *, say: Callable[[str], None],
    stopped: Callable[[], bool], meanwhile: Callable[[], None] = lambda: None,
) -> bool:  # fmt: skip
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
    copied: Whether another copy has sent other bytes under numbers of releases that wait here.
    """

    seqs: range
    sent: tuple[int, int] | None = None
    certain: bool = True
    copied: bool = False


def lost_releases(
    task: Task, settings: Settings, store: ClientStore, stream: Stream, say: Callable[[str], None],
    stopped: Callable[[], bool] = lambda: False, membership: Membership | None = None,
) -> Lost:  # fmt: skip
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
        found = Search(consumer, topic_partition, study, store, say, stopped, known)
        found.run(stream.sent)
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
    end, place = first_lost + store.missing.get(study, 0), None
    if (newest := found.newest) is not None and newest.seq >= first_lost:
        if newest.seq - first_lost > MOST_LOST:
            raise LedgerBehind(
                f"the releases topic has a release of this ledger with number {newest.seq}, and "
                f"this database has {first_lost}: no copy is that old, so {FORGED}"
            )
        if newest.revision != task.revision:
            raise ConfigError(
                f"this client's database is an old copy, and what it has lost of study {study!r} "
                f"was released under revision {newest.revision}; the file is revision "
                f"{task.revision}: restore the file, or give the study a new name (its releases "
                "then count against the same source)"
            )
        end, place = max(end, newest.seq + 1), (topic_partition.partition, found.offset)
    return Lost(range(first_lost, end), place, found.certain, found.copied)


def refuse(
    task: Task, lost: Lost, missing: Mapping[str, int], copied: Collection[str],
    hidden: Collection[str], topic: str,
) -> LedgerBehind:  # fmt: skip
    """Return the error for a database that is behind, or of which nobody can tell.

    lost: What the database has lost of this study.
    missing: How many releases of each study the log or the folder knows, and the database has not.
    copied: Studies for which another copy of the database has released.
    hidden: Studies of which the ledger topic of this name lacks what was claimed.
    """
    known = "the releases topic has" if lost.sent else "the ledger topic or this folder knows"
    if lost.seqs:
        found = (
            f"this client's database has {counted(lost.seqs.start, 'release')} of study "
            f"{task.study.name!r}, {known} {lost.seqs.stop}"
        )
    elif missing:
        found = (
            "the ledger topic or this folder knows "
            f"{counted(sum(missing.values()), 'more release')} of this client ({named(missing)}) "
            "than its database has"
        )
    elif hidden and not copied:
        return LedgerBehind(
            f"{topic} lacks what this client has claimed of {named(hidden)}: it is another topic "
            "or another Kafka's, or was made anew, so nobody can tell whether this database is its "
            "newest. The operator must give the former one back (VEILSTREAM_LEDGER_TOPIC, "
            "VEILSTREAM_KAFKA). If it is gone, and no other copy of this database is in use, start "
            "each study of this client once with --skip-lost"
        )
    else:
        found = f"another copy of this client's database has released {named(copied)}"
    return LedgerBehind(
        f"{found}: the database was restored from an old copy, or another copy of it is in use. "
        "Put the newest database back. If it is gone, start each study of this client with "
        "--skip-lost: this charges what was lost and continues behind all records that those "
        "releases can have held"
    )


def named(missing: Collection[str]) -> str:
    """Return the studies that have lost releases, in words."""
    return ", ".join(f"study {study!r}" for study in sorted(missing))


class Search:
    """A search of one partition for the releases of one client, and what it has found.

    consumer, topic_partition: What reads, and the partition that it has been assigned.
    say, stopped, membership: As `lost_releases` takes them.

    newest, offset, numbers: The release of this ledger with the highest number and where it is; the
        numbers of all.
    others: Whether another ledger has released under this client's name.
    anew: Whether the topic is not the one that was sent to.
    certain: Whether it reaches back to the last release of which the database knows that it was
        sent, so that it shows all behind that.
    copied: As `Lost.copied`.
    """

    def __init__(
        self, consumer: KafkaConsumer, topic_partition: TopicPartition, study: str,
        store: ClientStore, say: Callable[[str], None], stopped: Callable[[], bool],
        membership: Membership | None,
    ) -> None:  # fmt: skip
        self._consumer, self._topic_partition = consumer, topic_partition
        self._key, self._ledger = store.client.encode(), identity(store.ledger.encode()).hex()
        self._say, self._stopped, self._membership = say, stopped, membership
        waiting = store.unsent(study, -1, store.waiting(study))
        self._waiting = {item.seq: item.payload for item in waiting}
        self.newest: Header | None = None
        self.offset, self.numbers = -1, set[int]()
        self.others = self.anew = self.certain = self.copied = False
        self._oldest: int | None = None

    def run(self, sent: tuple[int, int] | None) -> None:
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
            return
        last = sent[1] if sent[0] == self._topic_partition.partition else -1
        if first <= last < end:
            self._scan(last, end)
            self.certain = self._oldest == last
            if self.certain or self._stopped():
                return
            end = last
        if 0 <= last < first:
            self.certain = last + 1 == first
            if last + 1 < first:
                self._say(
                    "WARNING: the releases topic no longer reaches back to this client's last "
                    "release; nobody can tell whether this database is its newest"
                )
        else:
            self.anew = True
            self._say(
                "WARNING: the releases topic does not hold this client's last release where it was "
                "put: the topic was made anew; nobody can tell whether this database is its "
                "newest. The operator must run `veilstream study recover` (docs/guides/lost-log.md)"
            )
        self._scan(first, end)

    def _scan(self, start: int, end: int) -> None:
        """Take what the log has from `start` up to `end`."""
        consumer, place = self._consumer, self._topic_partition
        if start >= end:
            return
        consumer.seek(place, start)
        told = time.monotonic()
        silent = BrokerError(
            f"the releases topic gives nothing for {PATIENCE:g} s, so nobody can tell whether this "
            "client's database is its newest"
        )
        for records in read_to(consumer, place, end, PATIENCE, silent):
            if self._stopped():
                return
            for record in records:
                if record.key == self._key and record.offset < end:
                    self._take(record)
            if time.monotonic() - told >= TELL:
                told = time.monotonic()
                self._say(
                    "looking for releases of this client in the releases topic: "
                    f"{min(int(consumer.position(place)), end) - start} of {end - start} messages"
                )

    def _take(self, record: Any) -> None:
        try:
            release = header_of(record.value or b"")
        except PayloadError:
            return
        if self._membership is not None and not self._membership.maker(record):
            return
        if release.ledger != self._ledger:
            self.others = True
            return
        own = self._waiting.get(release.seq, record.value)
        self.copied = self.copied or _noised(own) != _noised(record.value)
        self._oldest = record.offset if self._oldest is None else self._oldest
        self.numbers.add(release.seq)
        if self.newest is None or release.seq >= self.newest.seq:
            self.newest, self.offset = release, record.offset


def _noised(payload: bytes) -> bytes:
    """Return a release without what is put on it as it leaves."""
    return payload[: GENERATION.start] + payload[GENERATION.stop : -MAC_SIZE]
