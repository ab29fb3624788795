"""What a client has spent elsewhere: under a ledger that is lost, or that another folder has.

It comes from an exported file or from the ledger topic, stands in a table of its own, and counts
against the limit of its source beside this ledger's own spends. Nothing here lowers a spend.

The ledger topic keeps the accounts of all clients, compacted: a folder that is lost is not
forgotten. A client reads its own account there before it spends, and writes it before the first
release of a study leaves. What another folder of the same client wrote is written again with it, as
the newest message of a key replaces the others. Whatever cannot be read is passed over.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from infra.kafka import asking, log_reader, read_partition, write_one
from pipeline.errors import ConfigError
from pipeline.messages.spend import (
    HASHED,
    SourceSpends,
    Spend,
    SpendsMessage,
    hashed,
    hide,
    merge,
    read_spends,
    worse,
    write_spends,
)
from pipeline.privacy.events import Event, encode
from pipeline.settings import Settings
from producers.budget import Rows, known, spent_by
from producers.database import Database

_OWN = """
    SELECT identity.ledger, study, mechanism, epsilon, delta, unit_records, neighbours,
    noise_per_record, slots, (SELECT count(*) FROM ledger WHERE ledger.study = charged.study)
    FROM charged, identity WHERE source = ?"""
_INHERITED = """
    SELECT ledger, study, mechanism, epsilon, delta, unit_records, neighbours, noise_per_record,
    slots, releases, event FROM inherited WHERE source = ?"""
_TAKE = """
    INSERT INTO inherited VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 1, ?)
    ON CONFLICT (ledger, study, source) DO UPDATE SET mechanism = excluded.mechanism,
    epsilon = excluded.epsilon, delta = excluded.delta, unit_records = excluded.unit_records,
    neighbours = excluded.neighbours, noise_per_record = excluded.noise_per_record,
    slots = excluded.slots, releases = excluded.releases, event = excluded.event"""


def account(rows: Rows) -> SpendsMessage:
    """Return the whole account of a client, with the names of its sources.

    rows: Asks the client's database.
    """
    [(client, ledger)] = rows("SELECT client, ledger FROM identity")
    limits = rows("SELECT source, epsilon, delta, unit_records, neighbours FROM sources")
    entries = []
    for source, epsilon, delta, records, neighbours in limits:
        spends = _own(rows, source) + [_inherited(row) for row in rows(_INHERITED, source)]
        if spends:
            entries.append(SourceSpends(source, epsilon, delta, records, neighbours, spends))
    return SpendsMessage(client, ledger, merge(entries))


def check_file(message: SpendsMessage, client: str) -> None:
    """Refuse an account that cannot be charged to a client.

    Raises ConfigError if it is another client's, or its names are hashed.
    """
    if message.client != client:
        raise ConfigError(
            f"--import: client: the file is of client {message.client!r}, this is {client!r}; a "
            "ledger belongs to one client for ever"
        )
    if any(entry.source.startswith(HASHED) for entry in message.sources):
        raise ConfigError(
            "--import: sources[...].source: a name is needed, and only the ledger topic has "
            "hashes instead. Use what `veilstream privacy ledger --export` wrote"
        )


class Heritage:
    """The inherited spends in a client's database."""

    def __init__(self, database: Database) -> None:
        self._db = database

    def account(self) -> SpendsMessage:
        """Return the whole account of this client, as `account`."""
        return account(self._db.rows)

    def take_file(self, message: SpendsMessage) -> int:
        """Charge what a file says that this database lacks; return how many spends that changed.

        ConfigError as `check_file`.
        """
        check_file(message, self._db.client)
        with self._db.transaction():
            for entry in message.sources:
                self._db.write(
                    "INSERT INTO sources VALUES (?, ?, ?, ?, ?) ON CONFLICT (source) DO NOTHING",
                    entry.source, entry.epsilon, entry.delta, entry.unit_records, entry.neighbours,
                )  # fmt: skip
            return sum(self._take(entry.source, entry.spends, "file") for entry in message.sources)

    def take_topic(
        self, source: str, messages: Sequence[SpendsMessage], *, begun: bool, other_data: bool
    ) -> int:
        """Charge what the ledger topic says of sources that are known here by name.

        source: The source that is to be released; it need not be known yet.
        messages: All accounts of this client on the topic; none where it is not used.
        begun: Whether the study has been charged already: then nothing is refused.
        other_data: Whether the data owner says that the records are none of those that were
            released elsewhere. That is remembered for this source.

        Returns: How many spends that changed.

        Raises ConfigError if there are sources of which nobody can tell whether they hold these
        records.
        """
        client, changed = self._db.client, 0
        # the folder knows the records of what it has released, and no others, by their content
        own = {name for (name,) in self._db.rows("SELECT source FROM streams WHERE next_seq > 0")}
        imported = {name for (name,) in self._db.rows("SELECT source FROM inherited")}
        names = {hashed(client, name): name for name in {source} | own | imported}
        strange = imported - own - {source}
        with self._db.transaction():
            for entry in (entry for message in messages for entry in message.sources):
                if entry.source in names:
                    changed += self._take(names[entry.source], entry.spends, "topic")
                elif any(spend.ledger != self._db.ledger for spend in entry.spends):
                    strange.add(entry.source)
            answered = self._db.rows("SELECT other FROM other_records WHERE source = ?", source)
            strange -= {other for (other,) in answered}
            if other_data:
                self._db.write_many(
                    "INSERT INTO other_records VALUES (?, ?) ON CONFLICT DO NOTHING",
                    [(source, other) for other in strange],
                )
                # what the topic says may be anybody's word; the owner's counts
                self._db.write(
                    "UPDATE inherited SET counts = 0 WHERE source = ? AND origin = 'topic'", source
                )
        if strange and not begun and not other_data:
            raise self._unmatched(strange)
        return changed

    def excused(self, source: str) -> int:
        """Return how many spends on a source the data owner has said to be of other records."""
        query = "SELECT count(*) FROM inherited WHERE source = ? AND counts = 0"
        return int(self._db.rows(query, source)[0][0])

    def _take(self, source: str, spends: Sequence[Spend], origin: str) -> int:
        return sum(self._charge(source, spend, origin) for spend in spends)

    def _charge(self, source: str, spend: Spend, origin: str) -> bool:
        """Charge one spend; return whether that changed anything."""
        if spend.ledger == self._db.ledger:
            own = [one for one in _own(self._db.rows, source) if one.study == spend.study]
            if own and _cost(worse(own[0], spend)) == _cost(own[0]):
                return False
        found = self._db.rows(
            f"{_INHERITED} AND ledger = ? AND study = ?", source, spend.ledger, spend.study
        )
        before = _inherited(found[0]) if found else None
        charged = spend if before is None else worse(before, spend)
        if charged == before:
            return False
        self._db.write(
            _TAKE,
            charged.ledger, charged.study, source, charged.mechanism, charged.epsilon,
            charged.delta, charged.unit_records, charged.neighbours, charged.noise_per_record,
            charged.slots, charged.releases, origin, encode(charged.event),
        )  # fmt: skip
        return True

    def _unmatched(self, strange: set[str]) -> ConfigError:
        named = sorted(repr(name) for name in strange if not name.startswith(HASHED))
        known = f" ({', '.join(named)})" if named else ""
        return ConfigError(
            f"--source: client {self._db.client!r} has released {len(strange)} sources that this "
            f"folder has never opened{known}, and nobody can tell whether these records are among "
            "them. If they are, give the name that they had with --source-name: what was spent "
            "counts then (`veilstream privacy ledger --import FILE` of an export brings names "
            "back). If they are not, say so once with --other-data"
        )


def _cost(spend: Spend) -> Spend:
    """Return what tells costs apart: the number of releases costs nothing."""
    return msgspec.structs.replace(spend, releases=0)


def _own(rows: Rows, source: str) -> list[Spend]:
    """Return what this ledger has spent on a source."""
    found = ((row, spent_by(rows, row[1])) for row in rows(_OWN, source))
    return [_spend(row, event) for row, event in found if event is not None]


def _inherited(row: tuple[Any, ...]) -> Spend:
    return _spend(row[:-1], known(row[-1]))


def _spend(row: tuple[Any, ...], event: Event) -> Spend:
    values = dict(zip(Spend.__struct_fields__, (*row, event), strict=True))
    return Spend(**{**values, "noise_per_record": bool(values["noise_per_record"])})


#: How long Kafka may take nothing, in seconds.
PATIENCE = 60.0
#: Bytes of an account, at most: what Kafka takes by default, less what it adds.
MOST = 900_000
OTHERWISE = (
    "If this client never had a newer version, somebody else has written to {topic}: the operator "
    "must see to who may (`veilstream study acls`), and delete the topic: each client then writes "
    "its account again when it is started, once with --skip-lost"
)


class LedgerTopic:
    """One client's account on the topic.

    settings: Where Kafka is, and which topic it is.
    client, heritage: Whose account, and where it stands.
    say: Told of messages that are passed over.

    Raises BrokerError, ConfigError: by every method, if Kafka does not answer, or does not permit
    it.
    """

    def __init__(
        self, settings: Settings, client: str, heritage: Heritage, say: Callable[[str], None]
    ) -> None:
        self._settings, self._client, self._heritage, self._say = settings, client, heritage, say
        self._topic = settings.ledger_topic
        with asking(settings, f"topic {self._topic}", "Read", fault("read")):
            #: Stands behind what was read.
            self.reader = log_reader(settings, wait_ms=100)
        self._there: list[SpendsMessage] = []
        self._newest: list[SourceSpends] | None = None

    def close(self) -> None:
        """Close the connection."""
        self.reader.close()

    def read(self, claims: bytes) -> list[bytes]:
        """Read the topic, for `take_over`, and return the claims on it, in order.

        claims: What their keys begin with.
        """
        passed, claimed = 0, list[bytes]()
        self._there = []
        for record in read_partition(self._settings, self._topic, 0, fault("read"), self.reader):
            key, payload = record.key or b"", record.value
            if key.startswith(claims):
                claimed.append(payload or b"")
            if key != self._client.encode() or payload is None:
                continue
            try:
                message = read_spends(payload)
            except (msgspec.DecodeError, UnicodeDecodeError):
                message = None
            except ConfigError as error:
                # nobody can tell whether the client itself has written it
                raise ConfigError(f"{error}. {OTHERWISE.format(topic=self._topic)}") from None
            if message is None or message.client != self._client:
                passed += 1
            else:
                self._there.append(message)
        if passed:
            self._say(
                f"WARNING: {passed} messages under this client's id on {self._topic} are no "
                "accounts of it and are passed over; the operator must see to who may write there"
            )
        self._newest = _facts(self._there[-1]) if self._there else None
        return claimed

    def take_over(self, source: str, *, begun: bool, other_data: bool) -> None:
        """Charge what the topic says this client has spent on a source; see `Heritage.take_topic`.

        ConfigError if nobody can tell whether its records were released elsewhere.
        """
        changed = self._heritage.take_topic(source, self._there, begun=begun, other_data=other_data)
        if other_data and (excused := self._heritage.excused(source)):
            self._say(
                f"WARNING: {excused} spends of this client on source {source!r} that {self._topic} "
                "has told do not count any more: --other-data says that they were for other records"
            )
        elif changed:
            self._say(
                f"WARNING: {self._topic} has {changed} spends of this client on source {source!r} "
                "that this folder did not know; they count now"
            )

    def publish(self) -> None:
        """Write the account, if the topic's newest says something else.

        It must be there before a release leaves that it speaks of.
        """
        own = hide(self._heritage.account())
        others = [entry for message in self._there for entry in message.sources]
        message = msgspec.structs.replace(own, sources=merge([*own.sources, *others]))
        if len(write_spends(message)) > MOST:
            self._say(
                f"WARNING: {self._topic} holds too much under this client's id: own spends alone "
                "stay"
            )
            message = own
        if not message.sources or _facts(message) == self._newest:
            return
        write_one(
            self._settings, self._topic, otherwise=fault("written"), patience=PATIENCE,
            key=self._client.encode(), value=write_spends(message),
        )  # fmt: skip
        self._newest = _facts(message)


def fault(done: str) -> str:
    """Say that the topic cannot be read or written; `{what}` and `{fault}` are left to be named."""
    return (
        f"{{what}} cannot be {done} ({{fault}}); nothing is lost: start this client again when "
        "Kafka answers"
    )


def _facts(message: SpendsMessage) -> list[SourceSpends]:
    """Return what is worth another message: not that there are more releases."""
    return [
        msgspec.structs.replace(entry, spends=[*map(_cost, entry.spends)])
        for entry in message.sources
    ]
