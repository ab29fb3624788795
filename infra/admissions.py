"""The clients topic of a study: who is admitted and revoked, said and read.

A word about a client goes into its partition of the releases topic first, where it holds for all
that follows; then the clients topic says so, and the client begins.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

from infra.kafka import PATIENCE_SECONDS, asking, close_producer, read_all, record_producer
from infra.keyring import StudyPairs, pin, pinned
from pipeline.errors import ConfigError, PayloadError
from pipeline.messages.admission import (
    KEYS,
    LAST_SERIAL,
    Admission,
    Entry,
    Link,
    Retirement,
    Standing,
    StudyKeys,
    link_text,
    read_keys,
    read_signed,
    write_signed,
)
from pipeline.messages.authentic import Admitted
from pipeline.messages.envelope import json_headers, rfc3339
from pipeline.messages.topics import Topics, partition_of
from pipeline.settings import Settings
from pipeline.study.model import Study
from pipeline.trust import can_agree

#: Why a client may be admitted and its releases may not count.
LOST = (
    "if its releases are dead letters all the same, the releases topic was made anew: stop the "
    "workers and run `veilstream study recover` (docs/guides/lost-log.md)"
)


def announce_keys(study: Study, settings: Settings, held: StudyPairs) -> None:
    """Write the study's public keys to its clients topic, unless they are there.

    ConfigError if newer keys are there: this key file is an old copy; BrokerError if Kafka fails.
    """
    said = refuse_old(study, settings, held)
    links: list[Link] = []
    for before, pair in zip([None, *held.pairs], held.pairs, strict=False):
        key = pair.public.hex()
        text = link_text(study.name, pair.generation, key)
        links.append(Link(pair.generation, key, "" if before is None else before.sign(text).hex()))
    message = StudyKeys(study.name, links, held.least)
    value = write_signed(message, held.newest)
    if said[-1:] != [value]:
        with Writer(study, settings) as writer:
            writer.send(Topics.of(study).clients.name, KEYS, value, "keys")


def refuse_old(study: Study, settings: Settings, held: StudyPairs) -> list[bytes | None]:
    """Refuse a copy of a study's key file that is not the newest; ConfigError, BrokerError.

    Returns all that the clients topic says of the study's keys.
    """
    topic = Topics.of(study).clients.name
    said = [value for key, value in read_all(settings, topic) if key == KEYS]
    ours = [pair.public.hex() for pair in held.pairs]
    for value in said:
        try:
            # whoever stole an older key can sign what seems to follow from that
            found = read_keys(value, study.name, held.root.public)
        except PayloadError:
            continue
        theirs = [link.key for link in found.chain]
        if theirs != ours[: len(theirs)] or found.least > held.least:
            raise ConfigError(
                f"the key file of study {study.name!r} here is an old copy: it ends with key "
                f"{ours[-1][:16]}..., and the study has said {theirs[-1][:16]}... The operator "
                "must copy the newest file here, or name it in VEILSTREAM_STUDY_KEY; nothing was "
                "folded or said with this one"
            )
    return said


def tell(
    study: Study, settings: Settings, held: StudyPairs, client: str, public: bytes | None
) -> Standing:
    """Admit a client under a public key, or revoke it, and return all that was said of it.

    public: None: revoke it.

    ConfigError if that is so already, or the key is none; BrokerError if Kafka fails.
    """
    if public is not None and not can_agree(public):
        raise ConfigError(
            f"the public key of client {client!r} is none that a client draws: do not admit it; "
            "its owner must run `veilstream client enrol --stolen`, which makes another"
        )
    roll = own_roll(study, settings, held)
    key = "" if public is None else public.hex()
    if roll.standing(client).key == key:
        is_so = "not admitted" if public is None else f"admitted under this key already; {LOST}"
        raise ConfigError(f"client {client!r} of study {study.name!r} is {is_so}")
    with Writer(study, settings) as writer:
        return _tell(writer, study, held, roll.standing(client), key)


def admit_new(
    study: Study, settings: Settings, held: StudyPairs, publics: Mapping[str, bytes]
) -> list[str]:
    """Admit clients of whom nothing was ever said, and return which these are; BrokerError."""
    roll = own_roll(study, settings, held)
    new = [client for client in publics if not roll.standing(client).entries]
    with Writer(study, settings) as writer:
        for client in new:
            _tell(writer, study, held, roll.standing(client), publics[client].hex())
    return new


def say_again(
    study: Study, settings: Settings, held: StudyPairs,
    admitted: Mapping[int, Mapping[str, Admitted]],
) -> list[str]:  # fmt: skip
    """Say of each client the newest that is known, where the clients topic ends with another word.

    An old record that somebody writes again is the only one that compaction leaves.

    admitted: By partition, as the log has it.

    Returns of whom; BrokerError if Kafka fails.
    """
    topic = Topics.of(study).clients.name
    records = list(read_all(settings, topic))
    roll, last = Roll(study, held.root.public), dict(records)
    for record in records:
        roll.take(*record)
    for number, clients in admitted.items():
        for client, known in clients.items():
            said = roll.standing(client)
            if known.serial > said.serial:
                # nobody says any more where the log has it: it holds from the word before on
                since = said.entries[-1].offset + 1 if said.entries else 0
                entry = Entry(known.serial, known.key.hex(), number, since, known.since)
                roll.clients[client] = Standing(study.name, client, [*said.entries, entry])
    found = [said for said in roll.clients.values() if not roll.says(last, said)]
    if found:
        with Writer(study, settings) as writer:
            for said in found:
                value = write_signed(said, held.newest)
                identity = f"client/{said.client}/{said.serial}"
                writer.send(topic, said.client.encode(), value, identity)
    return [said.client for said in found]


def tell_again(
    study: Study, settings: Settings, held: StudyPairs,
    admitted: Mapping[int, Mapping[str, Admitted]],
) -> list[str]:  # fmt: skip
    """Admit or revoke in the log whom the clients topic says so of, where the log has lost it.

    Revocations, too: else whoever has kept an admission could put it into the new log.

    admitted: By partition, as all of the log has it.

    Returns whom; BrokerError if Kafka fails.
    """
    roll, lost = own_roll(study, settings, held), list[Standing]()
    for client, said in roll.clients.items():
        known = admitted[partition_of(client.encode(), study.stream.partitions)].get(client)
        if said.serial > (known.serial if known else 0):
            lost.append(said)
    if lost:
        with Writer(study, settings) as writer:
            for said in lost:
                _tell(writer, study, held, said, said.key)
    return [said.client for said in lost]


def _tell(writer: Writer, study: Study, held: StudyPairs, before: Standing, key: str) -> Standing:
    topics, client = Topics.of(study), before.client.encode()
    # grows even where the clients topic was lost
    serial = min(LAST_SERIAL, max(before.serial + 1, int(time.time() * 1000)))
    if key and serial == LAST_SERIAL:
        raise ConfigError(
            f"client {before.client!r} cannot be admitted any more: somebody who had a key of the "
            "study has used up its serials. Revoke it with `veilstream client revoke`, and admit "
            "its owner under another id"
        )
    # it goes on where the log has lost that it is admitted, and else begins anew
    since = before.entries[-1].since if key and key == before.key else serial
    word = write_signed(Admission(study.name, before.client, serial, key, since), held.newest)
    identity = f"client/{before.client}/{serial}"
    at = writer.send(topics.releases.name, client, word, identity)
    entry = Entry(serial, key, at.partition, at.offset, since)
    after = Standing(study.name, before.client, [*before.entries, entry])
    writer.send(topics.clients.name, client, write_signed(after, held.newest), identity)
    return after


def retire(study: Study, settings: Settings, held: StudyPairs) -> dict[int, int]:
    """Say in every partition that nothing counts any more under older keys, and return where.

    BrokerError if Kafka fails.
    """
    topic, serial = Topics.of(study).releases, int(time.time() * 1000)
    word = write_signed(Retirement(study.name, serial, held.least), held.newest)
    with Writer(study, settings) as writer:
        return {
            number: writer.send(
                topic.name, KEYS, word, f"keys/{held.least}", partition=number
            ).offset
            for number in range(topic.partitions)
        }


class Writer:
    """A producer of single records, each acknowledged before the next."""

    def __init__(self, study: Study, settings: Settings) -> None:
        self._study, self._settings = study, settings
        self._partitions = {Topics.of(study).releases.name: study.stream.partitions}

    def __enter__(self) -> Writer:
        with asking(self._settings, "the cluster", "Write"):
            self._producer = record_producer(self._settings)
        return self

    def __exit__(self, *_: object) -> None:
        close_producer(self._producer)

    def send(
        self, topic: str, key: bytes, value: bytes, identity: str, *, partition: int | None = None
    ) -> Any:
        """Send a record and return where it is; BrokerError."""
        kind = identity.partition("/")[0]
        marks = json_headers(f"{kind}/1", self._study.name, identity, rfc3339(time.time()))
        if partition is None:
            partition = partition_of(key, self._partitions.get(topic, 1))
        with asking(self._settings, f"topic {topic}", "Write"):
            sent = self._producer.send(
                topic, key=key, value=value, headers=marks, partition=partition
            )
            return sent.get(timeout=PATIENCE_SECONDS)


log = logging.getLogger("veilstream.trust")


class Roll:
    """What the clients topic says, as far as it is believed.

    study: The study, whose [trust] may name its key.
    known: A key of the study that is known already; None: the first one is believed.

    keys: The study's own keys; None before they are known.
    clients: What is said of each client.
    refused: Records that are not believed.
    """

    def __init__(self, study: Study, known: bytes | None) -> None:
        named = study.trust.key if study.trust is not None else None
        self._study, self._known = study.name, known if named is None else bytes.fromhex(named)
        self.keys: StudyKeys | None = None
        self.clients: dict[str, Standing] = {}
        self.refused = 0
        self._waiting: list[tuple[bytes | None, bytes | None]] = []

    @property
    def publics(self) -> list[bytes]:
        """Public keys whose signatures are believed, oldest first."""
        if self.keys is None:
            return []
        chain, least = self.keys.chain, self.keys.least
        return [bytes.fromhex(link.key) for link in chain if link.generation >= least]

    @property
    def cause(self) -> str:
        """How what is not believed can have come there, in words."""
        other = "somebody else writes to it"
        if self.keys is None or self.keys.least == 1:
            return other
        return f"it is from before `veilstream study keys --stolen`, or {other}"

    def standing(self, client: str) -> Standing:
        """Return what is said of a client; nothing if it is not known."""
        return self.clients.get(client, Standing(self._study, client, []))

    def says(self, last: Mapping[bytes | None, bytes | None], said: Standing) -> bool:
        """Whether the last record of a client, by key, says this and is believed."""
        try:
            return read_signed(last.get(said.client.encode()), Standing, self.publics) == said
        except PayloadError:
            return False

    def take(self, key: bytes | None, value: bytes | None) -> None:
        """Take the next record; whoever may write can add some, and none is taken back."""
        try:
            if key == KEYS:
                found = read_keys(value, self._study, self._known)
                if self.keys is None or _age(found) > _age(self.keys):
                    self.keys = found
                    # what they signed may have come before them
                    waiting, self._waiting = self._waiting, []
                    for record in waiting:
                        self.take(*record)
            elif self.keys is None:
                self._waiting.append((key, value))
            else:
                self._take_client(key, value)
        except PayloadError:
            if self.keys is not None and key != KEYS:
                self._waiting.append((key, value))
                del self._waiting[:-1000]
            self.refused += 1

    def _take_client(self, key: bytes | None, value: bytes | None) -> None:
        found = read_signed(value, Standing, self.publics)
        if found.study != self._study or found.client.encode() != key:
            # compaction keeps the last record of a key: under another one it would hide that one's
            raise PayloadError("forged", "the record is another client's, or another study's")
        if found.serial > self.standing(found.client).serial:
            self.clients[found.client] = found


def _age(keys: StudyKeys) -> tuple[int, int]:
    return len(keys.chain), keys.least


def read_roll(
    study: Study, settings: Settings, say: Callable[[str], None] = log.warning, *,
    begun: bool = True,
) -> Roll:  # fmt: skip
    """Read a study's clients topic, and pin its key on first use.

    begun: Whether it is an error that nobody has said any key yet; else the roll has none.

    ConfigError if nobody has said the study's key, or what is said does not follow from the key
    that is pinned; BrokerError if Kafka fails.
    """
    topic, known = Topics.of(study).clients.name, pinned(settings, study.name)
    roll = Roll(study, known)
    said = False
    for key, value in read_all(settings, topic):
        said |= key == KEYS
        roll.take(key, value)
    if roll.keys is None and not said and not begun:
        return roll
    if roll.keys is None:
        raise ConfigError(
            f"{topic} names no key of study {study.name!r} that follows from the one that is known "
            "here: the operator must run `veilstream study keys`, if it has none yet, and start a "
            "worker of it (again), which says its key; if the operator says that the key is a new "
            "one, put it into the study file as trust.key"
        )
    newest = roll.publics[-1]
    if known != newest:
        pin(settings, study.name, newest)
        if known is None and (study.trust is None or study.trust.key is None):
            say(
                f"this computer now trusts key {newest.hex()[:16]}... for study {study.name!r}, "
                "and no other. Kafka named it. Ask the operator whether it is theirs: "
                "`veilstream study keys` prints it. The operator can put it into the study file "
                "as trust.key"
            )
    return roll


def own_roll(study: Study, settings: Settings, held: StudyPairs) -> Roll:
    """Return what the clients topic says, as the study itself reads it; BrokerError."""
    # the newest key may not have been said yet
    roll = Roll(study, held.root.public)
    for record in read_all(settings, Topics.of(study).clients.name):
        roll.take(*record)
    return roll
