"""What a study counts of a client, as the client itself can tell from the log."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from infra.kafka import first_offset, read_partition
from pipeline.errors import PayloadError
from pipeline.messages.release import Header, header_of
from pipeline.messages.topics import Topics, partition_of
from pipeline.release.budget import most_releases
from pipeline.release.layout import identity
from pipeline.release.task import Task
from pipeline.settings import Settings
from pipeline.stream.admissions import Admissions
from pipeline.stream.fold import within
from pipeline.study.model import Rate, Study
from pipeline.trust.crypto import GENERATION
from producers.database import reading
from producers.membership import Membership

#: Reasons for which a client's own releases do not count.
UNWANTED = ("sent while this client was not admitted", "under a key of the study that is retired")
OLDER_KEY = (
    "under a key that this client had before, or forged: what nobody here can tell; if it was the "
    "client's, it counts, and its newer database's do not"
)
TOO_LATE = "of a database that is not the one that released first under this name"
TOO_MANY = "above the study's rate (trust.rate): release less often"
TOO_MUCH = "above this client's share of all releases (trust.largest_share): wait for the others"


@dataclass(slots=True)
class Counted:
    """What the log has under one client's name, in the order of the log.

    client, ledger: Its id, and the digest of its ledger.
    membership: Its keys, where releases are authenticated.
    rate: How many of its releases count among so many records; None: all.
    study: Says what share of all releases may be this client's; None: any.

    numbers, seen: Of the releases that count; of all that it has made and the log has.
    refused, recent: Numbers of those above the rate; offsets of the newest that count.
    others: How many records do not count, by the reason.
    older: Whether another database, under an earlier key, may have released before any of these.
    """

    client: str
    ledger: str
    membership: Membership | None
    rate: Rate | None = None
    study: Study | None = None
    numbers: set[int] = field(default_factory=set)
    seen: set[int] = field(default_factory=set)
    refused: set[int] = field(default_factory=set)
    recent: list[int] = field(default_factory=list)
    others: Counter[str] = field(default_factory=Counter)
    admissions: Admissions = field(default_factory=Admissions)
    older: bool = False

    def take(self, record: Any) -> None:
        """Take the next record of the client's partition."""
        value = record.value or b""
        if self.membership is not None and value[:1] == b"{":
            with suppress(PayloadError):
                self.admissions.take(self.membership.word(value, self.admissions.least))
            return
        if record.key != self.client.encode():
            return
        try:
            release = header_of(value)
        except PayloadError:
            self.others["no release"] += 1
            return
        reason = self._reason(release, record)
        if not reason and self.rate and not within(self.rate, self.recent, record.offset):
            reason = TOO_MANY
            self.refused.add(release.seq)
        if reason:
            self.others[reason] += 1
        else:
            self.numbers.add(release.seq)
        if reason in ("", TOO_MANY, TOO_MUCH, TOO_LATE, *UNWANTED):
            self.seen.add(release.seq)

    def _reason(self, release: Header, record: Any) -> str:
        """Return why a release does not count; empty if it does."""
        key = self.membership.maker(record) if self.membership is not None else None
        if reason := self._whose(release, key):
            return reason
        if self.membership is not None:
            known = self.admissions.clients.get(self.client)
            if known is None or known.key != key:
                return UNWANTED[0]
            if int.from_bytes(record.value[GENERATION], "little") < self.admissions.least:
                return UNWANTED[1]
            most = (
                None if self.study is None else most_releases(self.study, release.model_watermark)
            )
            slots = 0 if self.study is None else self.study.window.records
            if most is not None and release.ends(slots) > most * slots:
                return TOO_MUCH
        noted = release.seq in self.numbers or release.seq in self.refused
        return "sent again" if noted else ""

    def _whose(self, release: Header, key: bytes | None) -> str:
        """Return why a release is not one of this database that could count; empty if it is."""
        if self.membership is not None and key is None:
            if self.membership.has_all_keys or release.ledger == self.ledger:
                return "made by somebody else under this name"
            self.older = self.older or not self.numbers
            return OLDER_KEY
        if release.ledger != self.ledger:
            return "of another ledger of this client"
        return TOO_LATE if self.older else ""


def counted(
    task: Task, settings: Settings, client: str, database: Path, membership: Membership | None
) -> dict[str, Any]:
    """Return what the study counts of a client, beside what its database says that it has sent.

    LocalStoreError if the database cannot be read; BrokerError if Kafka fails.
    """
    topic, study = Topics.of(task.study).releases, task.study.name
    partition = partition_of(client.encode(), topic.partitions)
    ledger, numbered, unsent = _own(database, study)
    rate = task.study.trust.rate if task.study.trust is not None else None
    found = Counted(client, identity(ledger.encode()).hex(), membership, rate, task.study)
    records = iter(read_partition(settings, topic.name, partition))
    oldest = next(records, None)
    first = -1 if oldest is None else oldest.offset
    if oldest is None:
        # retention takes the whole partition of clients that have nothing to send
        first = first_offset(settings, topic.name, partition)
    for entry in membership.said_before(partition, first) if membership else ():
        found.admissions.enter(client, entry)
    for record in chain(() if oldest is None else (oldest,), records):
        found.take(record)
    standing = None if membership is None else _standing(client, membership, found.admissions)
    return {
        "study": study,
        "client": client,
        "has_run": database.exists(),
        "admitted": None if membership is None else standing == "admitted",
        "standing": standing,
        "releases": {
            "made": numbered,
            "acknowledged": numbered - unsent,
            "counted": len(found.numbers),
            "not_in_the_log": max(0, numbered - unsent - len(found.seen)),
        },
        "not_counted": dict(sorted(found.others.items())),
        "log_begins_at": first,
    }


def _standing(client: str, membership: Membership, admissions: Admissions) -> str:
    """Return how a client stands at the end of the log.

    "admitted"; "revoked"; "other key": admitted under another one than this folder's; "lost": the
    operator has admitted it, and the log does not say so; "unknown": nobody has.
    """
    known = admissions.clients.get(client)
    newer = known is None or known.serial < membership.serial
    key = membership.said if known is None else known.key
    if newer and membership.said == membership.key and (known is None or key != membership.key):
        return "lost"
    if key is None:
        return "unknown"
    if not key:
        return "revoked"
    return "admitted" if key == membership.key else "other key"


def _own(database: Path, study: str) -> tuple[str, int, int]:
    """Return a client's ledger, how many releases of a study it has made, and how many wait."""
    if not database.exists():
        return "", 0, 0
    with reading(database) as db:
        # a client that came no further than to make its database has no ledger
        (ledger,) = db.execute("SELECT ledger FROM identity").fetchone() or ("",)
        made = db.execute("SELECT next_seq FROM streams WHERE study = ?", (study,)).fetchone()
        asked = "SELECT count(*) FROM outbox WHERE study = ?"
        [(waiting,)] = db.execute(asked, (study,)).fetchall()
    return ledger, made[0] if made else 0, waiting
