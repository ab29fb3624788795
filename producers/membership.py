"""A client among those that its study admits: its MAC, whose words it believes, what is counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from infra.admissions import read_roll
from infra.kafka import first_offset, read_partition
from infra.keyring import former, pin, read_client
from pipeline.errors import ConfigError, PayloadError
from pipeline.messages.admission import Entry, Retirement, Word, read_word
from pipeline.messages.authentic import Admissions
from pipeline.messages.release import Header, header_of
from pipeline.messages.topics import Topics, partition_of
from pipeline.release.budget import most_releases
from pipeline.release.layout import HEADER, identity
from pipeline.release.task import Task
from pipeline.settings import Settings
from pipeline.stream.fold import within
from pipeline.study.model import Study
from pipeline.trust import GENERATION, Stamp, check_signed
from producers.database import reading


class Membership:
    """What one client has agreed on with an authenticated study.

    say: Told when the study's key is pinned, or changes.
    looking: Whether this is only to look: then a client that is not admitted is no error.

    stamp: Puts the MAC on a release as it leaves; it follows the study's newest key.

    ConfigError if the client has no key file, is not admitted under that key, or was revoked, or if
    the study's key is not the known one; BrokerError if Kafka fails.
    """

    def __init__(
        self, study: Study, settings: Settings, client: str, say: Callable[[str], None],
        *, looking: bool = False,
    ) -> None:  # fmt: skip
        self._study, self._client, self._settings, self._say = study, client, settings, say
        self._pair = read_client(settings, client)
        self._pairs = {pair.public: pair for pair in (*former(settings, client), self._pair)}
        self._roll = read_roll(study, settings, say)
        self._stamps: dict[tuple[bytes, int, int], Stamp] = {}
        if not looking:
            self._check()
        self.stamp = self._newest()

    @property
    def key(self) -> bytes:
        """The client's public key."""
        return self._pair.public

    @property
    def said(self) -> bytes | None:
        """The key under which the operator has admitted this client; empty if it was revoked.

        None: nothing was said of it.
        """
        known = self._roll.clients.get(self._client)
        return None if known is None else bytes.fromhex(known.key)

    @property
    def serial(self) -> int:
        """Of the newest word of the operator about this client; 0 if there is none."""
        return self._roll.standing(self._client).serial

    @property
    def has_all_keys(self) -> bool:
        """Whether this folder has all keys under which the study has ever admitted this client."""
        entries = self._roll.standing(self._client).entries
        admitted = {bytes.fromhex(entry.key) for entry in entries if entry.key}
        return self.key in admitted and admitted <= self._pairs.keys()

    def word(self, payload: bytes, least: int) -> Word:
        """Read what the study says in its releases topic; PayloadError if it is no such word.

        least: The oldest generation that may still sign.
        """
        chain = self._roll.keys.chain if self._roll.keys else []
        keys = {link.generation: bytes.fromhex(link.key) for link in chain}
        word = read_word(payload, self._study.name, [k for n, k in keys.items() if n >= least])
        if isinstance(word, Retirement):
            # an old key cannot retire itself
            check_signed(payload, [k for n, k in keys.items() if n >= word.generation])
        return word

    def said_before(self, partition: int, offset: int) -> list[Entry]:
        """Return what was said of this client below an offset that the log begins with."""
        entries = self._roll.standing(self._client).entries
        return [e for e in entries if e.partition == partition and e.offset < offset]

    def take(self, key: bytes | None, value: bytes | None) -> None:
        """Take what the clients topic says next; ConfigError if this client is revoked."""
        self._roll.take(key, value)
        self._check()
        newest = self._newest()
        before, self.stamp = self.stamp, newest
        if newest.generation != before.generation:
            pin(self._settings, self._study.name, self._roll.publics[-1])
            self._say(f"study {self._study.name!r} has a new key: generation {newest.generation}")

    def maker(self, record: Any) -> bytes | None:
        """Return under which of its keys this client has made a release; None: it has not.

        Nobody else but the study can make its MAC. A key that it had before may have been stolen:
        it tells where it was the one that counted, and what was made under it there does count.

        record: Of the client's partition, as Kafka's library has it.
        """
        payload = record.value or b""
        number = int.from_bytes(payload[GENERATION], "little")
        known = {link.generation for link in self._roll.keys.chain} if self._roll.keys else set()
        if len(payload) <= HEADER.itemsize or number not in known:
            return None
        entries = self._roll.standing(self._client).entries
        then = next((entry for entry in reversed(entries) if entry.offset < record.offset), None)
        for key, since in {
            (bytes.fromhex(entry.key), entry.since)
            for entry in entries
            if entry is then or entry.key == self.key.hex()
        } | {(self.key, 0)}:
            if key in self._pairs and self._of(number, key, since).fits(payload, record.timestamp):
                return key
        return None

    def check(self, payload: bytes) -> None:
        """Refuse a message that the study has not signed; PayloadError."""
        check_signed(payload, self._roll.publics)

    def _check(self) -> None:
        known = self._roll.clients.get(self._client)
        key, name = self._pair.public.hex(), self._study.name
        if known is None:
            raise ConfigError(
                f"client {self._client!r} is not admitted to study {name!r}: give the operator "
                f"what `veilstream client enrol --client {self._client}` prints, for `veilstream "
                "client admit`. Nothing was spent"
            )
        if not known.key:
            raise ConfigError(
                f"client {self._client!r} of study {name!r} was revoked by the operator, and "
                "only the operator can admit it again: `veilstream client admit`. What waits is "
                "kept"
            )
        if known.key != key:
            raise ConfigError(
                f"client {self._client!r} of study {name!r} is admitted under another key than "
                "this one: put its own key file back. If that file is lost and the database is "
                "not, the operator admits what `veilstream client enrol` prints here "
                "(`veilstream client admit`). If the whole folder of clients is lost, read "
                "docs/ledger.md first: this study is over for the client. Nothing was spent"
            )

    def _newest(self) -> Stamp:
        keys = self._roll.keys
        entries = self._roll.standing(self._client).entries
        since = entries[-1].since if entries else 0
        return self._of(keys.chain[-1].generation if keys else 1, self.key, since)

    def _of(self, generation: int, public: bytes, since: int) -> Stamp:
        place = public, generation, since
        if place not in self._stamps and self._roll.keys is not None:
            link = next(x for x in self._roll.keys.chain if x.generation == generation)
            key = self._pairs[place[0]].mac_key(
                bytes.fromhex(link.key),
                study=self._study.name, client=self._client, generation=generation,
            )  # fmt: skip
            self._stamps[place] = Stamp(key, generation, since)
        return self._stamps[place]


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
    study: Says how many of its releases may count.
    membership: Its keys, where releases are authenticated.

    numbers, seen: Of the releases that count; of all that it has made and the log has.
    refused, recent: Numbers of those above the rate; offsets of the newest that count.
    others: How many records do not count, by the reason.
    older: Whether another database, under an earlier key, may have released before any of these.
    """

    client: str
    ledger: str
    study: Study
    membership: Membership | None
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
        rate = self.study.trust.rate if self.study.trust is not None else None
        if not reason and rate and not within(rate, self.recent, record.offset):
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
            slots = self.study.window.records
            most = most_releases(self.study, release.model_watermark)
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
    found = Counted(client, identity(ledger.encode()).hex(), task.study, membership)
    # retention takes the whole partition of clients that have nothing to send
    first = first_offset(settings, topic.name, partition)
    for entry in membership.said_before(partition, first) if membership else ():
        found.admissions.enter(client, entry)
    for record in read_partition(settings, topic.name, partition):
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
