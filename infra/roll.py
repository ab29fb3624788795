"""The clients topic of a study as it is read, and how far it is believed."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from infra.connection import read_all
from infra.keyring import StudyPairs, pin, pinned
from pipeline.errors import ConfigError, PayloadError
from pipeline.messages.admission import KEYS, Standing, StudyKeys, read_keys, read_signed
from pipeline.messages.topics import Topics
from pipeline.settings import Settings
from pipeline.study.model import Study

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
    study: Study,
    settings: Settings,
    say: Callable[[str], None] = log.warning,
    *,
    begun: bool = True,
) -> Roll:
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
