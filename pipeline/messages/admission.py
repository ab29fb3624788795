"""Signed statements about a study: who may release, its own keys, its revision.

An admission or revocation is a record of the releases topic itself, in the client's partition: it
holds for what comes behind it there, so that whoever folds the log believes the same releases. The
clients topic, compacted, has for each client all of them with their offsets, for clients, for
people, and for a log whose beginning is gone.
"""

from __future__ import annotations

from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta

from pipeline.errors import PayloadError
from pipeline.messages.envelope import Headers, json_headers, rfc3339
from pipeline.release.task import Task
from pipeline.trust import (
    LAST_GENERATION,
    Pair,
    can_agree,
    check_plain,
    check_signed,
    is_signed,
    signed,
)

Public = Annotated[str, Meta(pattern=r"^[0-9a-f]{128}\Z")]
#: The last serial is for a revocation: whoever stole a key of the study can use up all others of a
#: client, and it can be shut out all the same.
LAST_SERIAL = 2**53 - 1
Serial = Annotated[int, Meta(ge=1, le=LAST_SERIAL)]
Generation = Annotated[int, Meta(ge=1, le=LAST_GENERATION)]
#: Key of the record of the study's own keys; a client id begins with a letter or digit.
KEYS = b"/keys"


class Enrolment(msgspec.Struct, frozen=True, tag="enrolment/1", tag_field="type"):
    """A client's public key, which it gives to the operator; signed by itself."""

    client: str
    key: Public


class Admission(msgspec.Struct, frozen=True, tag="admission/1", tag_field="type"):
    """From here on, releases of a client count under this key; an empty one revokes it.

    serial: Grows with each word about a client: an old one that is sent again says nothing.
    since: Serial of the admission with which the client came in under this key, and from which it
        was not revoked: MACs are over it, and over the times of records. 0: they are over payloads
        alone, as versions before this one say it.
    """

    study: str
    client: str
    serial: Serial
    key: Annotated[str, Meta(pattern=r"^([0-9a-f]{128})?\Z")]
    since: Annotated[int, Meta(ge=0, le=LAST_SERIAL)] = 0


class Retirement(msgspec.Struct, frozen=True, tag="retirement/1", tag_field="type"):
    """From here on, nothing counts under keys of the study older than this generation."""

    study: str
    serial: Serial
    generation: Generation


class Entry(msgspec.Struct, frozen=True):
    """An admission or revocation, and where in the releases topic it is."""

    serial: Serial
    key: str
    partition: int
    offset: int
    since: int = 0


class Standing(msgspec.Struct, frozen=True, tag="client/1", tag_field="type"):
    """All that was ever said of a client, oldest first."""

    study: str
    client: str
    entries: list[Entry]

    @property
    def key(self) -> str:
        """The public key that counts now; empty if the client is revoked."""
        return self.entries[-1].key if self.entries else ""

    @property
    def serial(self) -> int:
        """Of the newest word; 0 if there is none."""
        return self.entries[-1].serial if self.entries else 0


class Link(msgspec.Struct, frozen=True):
    """The study's public key of a generation, signed by the key before it."""

    generation: Generation
    key: Public
    signature: str = ""


class StudyKeys(msgspec.Struct, frozen=True, tag="keys/1", tag_field="type"):
    """The study's public keys, oldest first; what is older than `least` is not believed."""

    study: str
    chain: Annotated[list[Link], Meta(min_length=1)]
    least: Generation = 1


Word = Admission | Retirement
Kind = TypeVar("Kind")
_WORD: msgspec.json.Decoder[Word] = msgspec.json.Decoder(Word)
#: How long a word about one client is, at most: nothing longer is looked at.
LONGEST = 4096


def write_signed(message: msgspec.Struct, pair: Pair) -> bytes:
    """Return a message as signed JSON."""
    return signed(msgspec.json.encode(message), pair)


def read_word(payload: bytes, study: str, publics: list[bytes]) -> Word:
    """Read what a study says in its releases topic.

    PayloadError if it is no such word, of another study, or not signed by one of these keys.
    """
    if len(payload) > LONGEST:
        raise PayloadError("too-large", f"more than {LONGEST} bytes")
    check_signed(payload, publics)
    try:
        word = _WORD.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise PayloadError(
            "undecodable",
            "the study signed this message, but this version does not know its form; "
            "update this program",
        ) from None
    if word.study != study:
        raise PayloadError("wrong-study", "the study's key signed this for another study")
    if isinstance(word, Admission) and word.key and word.serial == LAST_SERIAL:
        raise PayloadError(
            "undecodable",
            "the study signed this admission with a serial number that only a last "
            "revocation may have; nobody is admitted by it",
        )
    return word


def read_signed(payload: bytes | None, kind: type[Kind], publics: list[bytes]) -> Kind:
    """Read a message of one kind.

    PayloadError if it is none, has characters that are not text, or is not signed by these keys.
    """
    payload = payload or b""
    check_plain(payload)
    check_signed(payload, publics)
    try:
        return msgspec.json.decode(payload, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise PayloadError(
            "undecodable",
            "this version does not know the form of this message; sender and reader must "
            "run versions that fit together",
        ) from None


def read_enrolment(payload: bytes) -> Enrolment:
    """Read what `veilstream client enrol` printed; PayloadError if it is not that, or not whole."""
    try:
        found = msgspec.json.decode(payload.strip(), type=Enrolment)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise PayloadError("undecodable", "this is not an enrolment of a client") from None
    check_plain(payload.strip())
    public = bytes.fromhex(found.key)
    check_signed(payload.strip(), [public])
    if not can_agree(public):
        raise PayloadError(
            "forged",
            "its public key is none that a client draws: the client's owner must run "
            "`veilstream client enrol --stolen`, which makes another",
        )
    return found


def link_text(study: str, generation: int, key: str) -> bytes:
    """Return what the key of one generation signs of the next."""
    return f"veilstream key {generation} of {study} is {key}\n".encode()


def read_keys(payload: bytes | None, study: str, pinned: bytes | None) -> StudyKeys:
    """Read the record of a study's keys.

    pinned: A key of the study that is known already; None: the first one is believed.

    PayloadError if it is none of this study, or does not follow from the pinned key.
    """
    try:
        found = msgspec.json.decode(payload or b"", type=StudyKeys)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise PayloadError("undecodable", "the record of the study's keys cannot be read") from None
    check_plain(payload or b"")
    if found.study != study:
        raise PayloadError("wrong-study", "the record of keys belongs to another study")
    keys = [bytes.fromhex(link.key) for link in found.chain]
    check_signed(payload or b"", keys[-1:])
    if pinned is not None and pinned not in keys:
        raise PayloadError("forged", "the record of keys does not follow from the pinned key")
    begin = 0 if pinned is None else keys.index(pinned)
    for before, link in zip(keys[begin:], found.chain[begin + 1 :], strict=False):
        text = link_text(study, link.generation, link.key)
        if not is_signed(text, bytes.fromhex(link.signature or "00"), before):
            raise PayloadError("forged", "a key of the study was not signed by the one before it")
    return found


class StudyMessage(msgspec.Struct, frozen=True, tag="study/1", tag_field="type"):
    """The revision that workers of a study fold; releases of any other become dead letters."""

    study: str
    study_revision: str
    published_at: str


_DECODER = msgspec.json.Decoder(StudyMessage)


def write_study(task: Task, published_at: float) -> tuple[bytes, Headers]:
    """Return a study's record as JSON, and its headers; the time in seconds since 1970."""
    study, at = task.study.name, rfc3339(published_at)
    marks = json_headers("study/1", study, task.revision, at)
    return msgspec.json.encode(StudyMessage(study, task.revision, at)), marks


class Known:
    """What the records of a study's topic say so far: the newest that can be read counts.

    revision: The revision of the study; None if there is none.
    ignored: How many records were no record of this study.
    """

    def __init__(self, study: str) -> None:
        self._study = study
        self.revision: str | None = None
        self.ignored = 0

    def take(self, payload: bytes | None) -> None:
        """Take the next record; an empty one takes back what was said."""
        if payload is None:
            self.revision = None
            return
        try:
            check_plain(payload)
            message = _DECODER.decode(payload)
        except (PayloadError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            self.ignored += 1
            return
        if message.study == self._study:
            self.revision = message.study_revision
        else:
            self.ignored += 1
