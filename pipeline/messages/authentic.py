"""Whether a release is believed, and why not: a function of the log below it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

import msgspec
import numpy as np

from pipeline.errors import ConfigError, PayloadError, StateError
from pipeline.messages.admission import Admission, Entry, Retirement, Word, read_word
from pipeline.messages.release import Incoming
from pipeline.messages.topics import partition_of
from pipeline.release.budget import above_share
from pipeline.release.layout import HEADER, NO_PARTITION, Rows, ends_of
from pipeline.release.model import Model
from pipeline.release.task import Task, form_of
from pipeline.trust import (
    LAST_GENERATION,
    MAC_SIZE,
    MARK_SIZE,
    Pair,
    check_signed,
    mac,
    signed,
)
from pipeline.types import Integers

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


#: Keys of clients and tickets of models that are kept at hand.
KEPT = 1 << 16
#: More than any generation.
_KEYS = LAST_GENERATION + 1
#: Stands for a client without one: what it gives is not looked at.
_NO_KEY = hashlib.blake2b(digest_size=MAC_SIZE)


class Admitted(msgspec.Struct, frozen=True, array_like=True):
    """What is known of a client at some offset of its partition.

    serial: Of the newest word about it.
    key: Its public key, 64 bytes; empty once it is revoked.
    since: As `Admission.since`.
    """

    serial: int
    key: bytes
    since: int = 0


class Authenticator:
    """A study's keys at work: the side of the worker.

    pairs: All generations that the study ever had; the last one signs.
    least: Generations below it sign no model and no word that is believed.
    again: Returns pairs that have been added since, for what is under one that is not known.

    ConfigError if there is no pair.
    """

    def __init__(
        self,
        task: Task,
        pairs: Sequence[Pair],
        least: int = 1,
        again: Callable[[], Sequence[Pair]] = tuple,
    ) -> None:
        if not pairs:
            raise ConfigError("the study has no key: run `veilstream study keys`")
        self._study, self._revision, self._limits = task.study.name, task.revision, task.study
        self._again, self._partitions = again, task.study.stream.partitions
        self._pairs = {pair.generation: pair for pair in pairs}
        self._newest = max(pairs, key=lambda pair: pair.generation)
        self.least = least
        self._macs: dict[tuple[str, bytes, int], hashlib.blake2b] = {}
        self._known: dict[bytes, int] = {}
        self._words: dict[tuple[bytes, int], Word] = {}
        self._number, offsets = form_of(task).layout.number, HEADER.fields
        begin = offsets["version"][1]  # type: ignore[index]
        # where nothing is noised, a client may linearise at a fit of its own
        length = 8 * task.layout.point.length if task.study.noised else 0
        # in words of eight bytes
        self._place = slice(begin // 8, (HEADER.itemsize + length) // 8)
        start = task.first_model
        self._start = self._text(start.version, start.watermark, None, start, bytes(MAC_SIZE))

    @property
    def generation(self) -> int:
        """The newest generation."""
        return self._newest.generation

    @property
    def publics(self) -> list[bytes]:
        """The public keys whose signatures are believed."""
        return self._since(self.least)

    def sign(self, payload: bytes) -> bytes:
        """Return JSON with the study's signature."""
        return signed(payload, self._newest)

    def check(self, payload: bytes) -> None:
        """Refuse JSON that the study has not signed; PayloadError."""
        try:
            check_signed(payload, self.publics)
        except PayloadError as error:
            if not self._may_be_newer(error):
                raise
            check_signed(payload, self.publics)

    def word(self, payload: bytes, least: int) -> Word:
        """Read an admission, a revocation or a retirement; PayloadError if it is none.

        least: The oldest generation that may still sign.
        """
        try:
            return self._word(payload, least)
        except PayloadError as error:
            if not self._may_be_newer(error):
                raise
            return self._word(payload, least)

    def _word(self, payload: bytes, least: int) -> Word:
        # one that somebody repeats must not cost a signature each time
        place = hashlib.blake2b(payload, digest_size=32).digest(), least
        if place not in self._words:
            _keep_room(self._words, 1 << 12)
            self._words[place] = self._signed_word(payload, least)
        return self._words[place]

    def _signed_word(self, payload: bytes, least: int) -> Word:
        word = read_word(payload, self._study, self._since(least))
        if isinstance(word, Retirement):
            # an old key cannot retire itself in favour of one that its thief made
            check_signed(payload, self._since(word.generation))
        return word

    def _may_be_newer(self, error: PayloadError) -> bool:
        # without a signature nobody has us look at the file
        return error.reason == "forged" and self._reload()

    def _reload(self) -> bool:
        """Whether the key file has pairs that were not known: a command may sign with them at once.

        ConfigError if the file cannot be read as it is now.
        """
        before = len(self._pairs)
        self._pairs |= {pair.generation: pair for pair in self._again()}
        return len(self._pairs) > before

    def _since(self, generation: int) -> list[bytes]:
        return [pair.public for pair in self._pairs.values() if pair.generation >= generation]

    def ticketed(self, model: Model) -> Model:
        """Return a model with its ticket, or with one for each partition."""
        pair = self._newest
        parts = tuple(
            replace(
                part,
                ticket=self._ticket(
                    pair,
                    self._text(
                        model.version, model.watermark, part.partition_watermark,
                        model if part.lattice is None else replace(model, lattice=part.lattice),
                        b"",
                    ),
                ),
            )
            for part in model.parts
        )  # fmt: skip
        text = self._text(model.version, model.watermark, model.partition_watermark, model, b"")
        return replace(model, ticket=self._ticket(pair, text), parts=parts)

    def believed(
        self,
        incoming: Incoming,
        payloads: Sequence[bytes | None],
        times: Integers,
        admitted: Mapping[str, Admitted],
        least: int,
        partition: int,
    ) -> Incoming:
        """Return the releases of a batch that are believed; the others join the faults.

        payloads: The whole batch, by place.
        times: Of their records, milliseconds since 1970, shape (n,).
        admitted: Clients of the partition, as the log has admitted them so far.
        least: The oldest generation that still counts.
        partition: Where they are: a client counts in one, or it could count in each.
        """
        rows = incoming.rows
        if not len(rows):
            return incoming
        places = incoming.places.tolist()
        sent = payloads if len(places) == len(payloads) else [payloads[n] for n in places]
        # who under which key of the study, as one number
        senders = incoming.clients * _KEYS + rows["reserved"]
        keys: list[hashlib.blake2b] = []
        since = list[int]()
        bad: dict[int, PayloadError] = {}
        refused: dict[int, str] = {}
        each, sender = np.unique(senders, return_inverse=True)
        for place, (client, generation) in enumerate(divmod(key, _KEYS) for key in each.tolist()):
            name = incoming.names[client]
            key: hashlib.blake2b | str = "wrong-partition"
            known = admitted.get(name)
            since.append(0 if known is None else known.since)
            if partition_of(name.encode(), self._partitions) == partition:
                key = self._key(name, known, generation, least)
            if isinstance(key, str):
                refused[place], key = key, _NO_KEY
            keys.append(key)
        hashers = sender.tolist()
        if refused:
            bad = {at: FAULTS[refused[who]] for at, who in enumerate(hashers) if who in refused}
        digests = [
            # no function call for each: this is most of what authentication costs a worker
            (hashed := keys[who].copy()).update(payload[:-MAC_SIZE] + mark) or hashed.digest()  # type: ignore[index]
            for who, payload, mark in zip(
                hashers, sent, marks(times[incoming.places], np.array(since)[sender]), strict=True
            )
        ]
        # all at once: no time tells how much of one MAC was right
        expected = np.frombuffer(b"".join(digests), "<u8").reshape(-1, MAC_SIZE // 8)
        for at in np.flatnonzero((expected != rows["mac"]).any(axis=1)).tolist():
            bad.setdefault(at, FAULTS["forged"])
        for at in self._unpublished(rows, set(bad), least):
            bad[at] = FAULTS["unpublished-model"]
        ends = ends_of(rows, self._limits.window.records)
        for at in above_share(self._limits, ends, rows["model_watermark"]).tolist():
            bad.setdefault(at, FAULTS["share"])
        return incoming.without(bad)

    def _unpublished(self, rows: Rows, bad: set[int], least: int) -> list[int]:
        """Return which releases have no ticket of ours."""
        texts = np.ascontiguousarray(rows.view("<i8").reshape(len(rows), -1)[:, self._place])
        each = texts.view(f"V{texts.itemsize * texts.shape[1]}").ravel().tolist()
        # a stranger's ticket is not worth a MAC of ours
        left = [at for at in range(len(rows)) if at not in bad] if bad else range(len(rows))
        # one look for each model: few where all keep up, and any number where a client does not
        lacking = {text for text in {each[at] for at in left} if not self._published(text, least)}
        return [at for at in left if each[at] in lacking] if lacking else []

    def _key(
        self, name: str, client: Admitted | None, generation: int, least: int
    ) -> hashlib.blake2b | str:
        """Return a MAC that has been given its key, or the reason why there is none."""
        if client is None or not client.key:
            return "not-admitted" if client is None else "revoked"
        if generation not in self._pairs:
            self._reload()
        pair = self._pairs.get(generation)
        if pair is None or generation < least:
            return "old-key"
        place = name, client.key, generation
        if place not in self._macs:
            _keep_room(self._macs)
            try:
                key = pair.mac_key(
                    client.key, study=self._study, client=name, generation=generation
                )
            except ConfigError:
                # nobody agrees on a key with such a public part, and the log is folded all the same
                return "forged"
            self._macs[place] = hashlib.blake2b(key=key, digest_size=MAC_SIZE)
        return self._macs[place]

    def _published(self, text: bytes, least: int) -> bool:
        """Whether a ticket is one of ours; those that are, are remembered."""
        if self._known.get(text, 0) >= least:
            return True
        # the start has one text, or its clients would choose the age of what they send
        if text[:8] == bytes(8):
            return text == self._start
        fixed, ticket, point = text[:24], text[24 : 24 + MAC_SIZE], text[24 + MAC_SIZE :]
        for generation, pair in self._pairs.items():
            if generation >= least and self._ticket(pair, fixed + point) == ticket:
                _keep_room(self._known)
                self._known[text] = generation
                return True
        return self._reload() and self._published(text, least)

    def _text(
        self, version: int, watermark: int, own: int | None, model: Model, ticket: bytes
    ) -> bytes:
        """Return what a release says of its model, byte by byte."""
        numbers = [version, watermark, NO_PARTITION if own is None else own]
        point = model.lattice.astype("<i8").tobytes() if self._number == "<i8" else b""
        return b"".join(n.to_bytes(8, "little", signed=True) for n in numbers) + ticket + point

    def _ticket(self, pair: Pair, text: bytes) -> bytes:
        names = f"{self._study}\0{self._revision}\0".encode()
        return mac(pair.ticket_key, names + text)


def marks(times: Integers, since: Integers) -> list[bytes]:
    """Return what MACs are over beside payloads, each `MARK_SIZE` bytes or none: see `Stamp`."""
    both = np.stack([times, since], axis=1).astype("<i8").tobytes()
    ends = zip(range(0, len(both), MARK_SIZE), since.tolist(), strict=True)
    return [both[at : at + MARK_SIZE] if bound else b"" for at, bound in ends]


def _keep_room(held: dict, kept: int = KEPT) -> None:  # type: ignore[type-arg]
    """Drop the older half of what is kept, once it is full."""
    if len(held) >= kept:
        for key in list(islice(held, kept // 2)):
            del held[key]


_FAULTS = {
    "not-admitted": "no admission of this client is in the log before it; the operator runs "
    "`veilstream client admit`, or `veilstream study recover` where this topic was made anew",
    "revoked": "this client was revoked before it; `veilstream client admit` takes it back",
    "old-key": "made under a key of the study that this worker has not, or that is retired: start "
    "the client again, or give the worker the newest key file",
    "wrong-partition": "it is in another partition than its client's id leads to",
    "forged": "its MAC is not that of the client whose name it bears, at the time of this record "
    "and under its present admission",
    "unpublished-model": "its model was not published by this study",
    "share": "above this client's share of all releases at its model (trust.largest_share): its "
    "producer must be one that waits for others, as those of this version do",
}
FAULTS = {reason: PayloadError(reason, detail) for reason, detail in _FAULTS.items()}
