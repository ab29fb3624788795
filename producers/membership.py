"""A client among those that its study admits: its MAC, and whose words it believes."""

from __future__ import annotations

from collections.abc import Callable

from infra.admissions import read_roll
from infra.keyring import pin, read_client
from pipeline.errors import ConfigError
from pipeline.messages.form import HEADER
from pipeline.release.task import Task
from pipeline.settings import Settings
from pipeline.trust.mac import GENERATION, Stamp
from pipeline.trust.signed import check_signed


class Membership:
    """What one client has agreed on with an authenticated study.

    say: Told when the study's key is pinned, or changes.

    stamp: Puts the MAC on a release as it leaves; it follows the study's newest key.

    ConfigError if the client has no key file, is not admitted under that key, or was revoked, or if
    the study's key is not the known one; BrokerError if Kafka fails.
    """

    def __init__(
        self, task: Task, settings: Settings, client: str, say: Callable[[str], None]
    ) -> None:
        self._study, self._client, self._settings, self._say = task.study, client, settings, say
        self._pair = read_client(settings, client)
        self._roll = read_roll(task.study, settings, say)
        self._stamps: dict[int, Stamp] = {}
        self._check()
        self.stamp = self._newest()

    def take(self, key: bytes | None, value: bytes | None) -> None:
        """Take what the clients topic says next; ConfigError if this client is revoked."""
        self._roll.take(key, value)
        self._check()
        newest = self._newest()
        if newest != self.stamp:
            self.stamp = newest
            pin(self._settings, self._study.name, self._roll.publics[-1])
            self._say(f"study {self._study.name!r} has a new key: generation {newest.generation}")

    def made(self, payload: bytes) -> bool:
        """Whether this client has sent a release: nobody else but the study can make its MAC."""
        number = int.from_bytes(payload[GENERATION], "little")
        known = {link.generation for link in self._roll.keys.chain} if self._roll.keys else set()
        return len(payload) > HEADER.itemsize and number in known and self._of(number).fits(payload)

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
                f"client {self._client!r} of study {name!r} was revoked by the operator, who alone "
                "can take it back: `veilstream client admit`. What waits is kept"
            )
        if known.key != key:
            raise ConfigError(
                f"client {self._client!r} of study {name!r} is admitted under another key than "
                "this one's: put its own key file back, or let the operator admit this one"
            )

    def _newest(self) -> Stamp:
        keys = self._roll.keys
        return self._of(keys.chain[-1].generation if keys else 1)

    def _of(self, generation: int) -> Stamp:
        if generation not in self._stamps and self._roll.keys is not None:
            link = next(x for x in self._roll.keys.chain if x.generation == generation)
            key = self._pair.mac_key(
                bytes.fromhex(link.key),
                study=self._study.name, client=self._client, generation=generation,
            )  # fmt: skip
            self._stamps[generation] = Stamp(key, generation)
        return self._stamps[generation]
