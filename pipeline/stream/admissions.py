"""Who is admitted at an offset of a partition: a function of the log below it."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from pipeline.errors import StateError
from pipeline.messages.admission import Admission, Entry, Retirement, Word
from pipeline.messages.authentic import Admitted

#: What begins a stored name: no client that may be admitted has it in front of its id.
MARK = "/"
#: The stored name of the oldest generation of the study's keys that counts.
_LEAST = MARK + MARK


@dataclass(slots=True)
class Admissions:
    """The clients of one partition that were admitted or revoked.

    clients: By id.
    least: The oldest generation of the study's keys that counts.
    changed: Stored names of what has changed since it was last stored.
    """

    clients: dict[str, Admitted] = field(default_factory=dict)
    least: int = 1
    changed: set[str] = field(default_factory=set)

    def changed_by(self, word: Word) -> bool:
        """Whether a word says something new."""
        if isinstance(word, Retirement):
            return word.generation > self.least
        known = self.clients.get(word.client)
        return known is None or word.serial > known.serial

    def take(self, word: Word) -> None:
        """Take the next word of the log; one that is older than what is known says nothing."""
        if isinstance(word, Retirement):
            self.retire(word.generation)
        else:
            self.enter(word.client, word)

    def retire(self, least: int) -> None:
        """Note that generations below this one count no more."""
        if least > self.least:
            self.least = least
            self.changed.add(_LEAST)

    def enter(self, client: str, said: Admission | Entry) -> None:
        """Note what a word says of a client, unless a newer one is known."""
        known = self.clients.get(client)
        if known is None or said.serial > known.serial:
            self.clients[client] = Admitted(said.serial, bytes.fromhex(said.key), said.since)
            self.changed.add(MARK + client)

    def fields(self, *, everything: bool) -> dict[str, bytes]:
        """Return what is stored: all, or what changed."""
        names = {MARK + name for name in self.clients} if everything else self.changed - {_LEAST}
        found = {
            name: msgspec.msgpack.encode(known)
            for name in sorted(names)
            if (known := self.clients.get(name.removeprefix(MARK))) is not None
        }
        if self.least > 1 and (everything or _LEAST in self.changed):
            found[_LEAST] = msgspec.msgpack.encode((self.least, b""))
        return found

    @classmethod
    def decode(cls, fields: dict[str, bytes]) -> Admissions:
        """Read what `fields` gave; StateError if it is not that."""
        found = cls()
        try:
            for name, data in fields.items():
                said = msgspec.msgpack.decode(data, type=Admitted)
                if name == _LEAST:
                    found.least = said.serial
                else:
                    found.clients[name.removeprefix(MARK)] = said
        except msgspec.DecodeError as error:
            raise StateError(
                "a stored admission cannot be read; run `veilstream state rebuild`"
            ) from error
        return found
