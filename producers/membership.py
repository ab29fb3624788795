"""A client among those that its study admits: its MAC, and whose words it believes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from infra.admissions import read_roll
from infra.keyring import former, pin, read_client
from pipeline.errors import ConfigError
from pipeline.messages.admission import Entry, Retirement, Word, read_word
from pipeline.release.layout import HEADER
from pipeline.settings import Settings
from pipeline.study.model import Study
from pipeline.trust.crypto import GENERATION, Stamp, check_signed


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
