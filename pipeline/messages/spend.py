"""What goes over the ledger topic as JSON: what a client's studies have spent, and what it claims.

Nothing in it is computed from records. A source has a hash for its name, because file names may say
more than anybody should read; salted with the client id, so that two clients' equal names do not
show. It hides a name from the eye, not from whoever can guess it. Accounts of spends may stand in a
file, too.

Before releases leave, a client claims how many its ledger has made, and of how many slots, under a
key of their own, so that compaction keeps the newest of each study. A copy of the client's database
cannot know what the original has claimed since: that is how it is found out. The MAC is under a
secret of the ledger, which all copies have.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from pipeline.errors import ConfigError, PayloadError
from pipeline.messages.topics import Topic, settings_of
from pipeline.privacy import events
from pipeline.privacy.accounting import event_of
from pipeline.privacy.events import Event, NonPrivate
from pipeline.settings import Settings
from pipeline.study.model import Study
from pipeline.trust import check_plain, derived, is_mac, mac

#: What hashed names begin with; no name of a source does.
HASHED = "hash:"

_Ledger = Annotated[str, Meta(pattern="^[0-9a-f]{16}$")]
_Name = Annotated[str, Meta(min_length=1, max_length=1000)]
_Share = Annotated[float, Meta(ge=0, lt=1)]
_Positive = Annotated[float, Meta(gt=0, le=1e9)]
_Count = Annotated[int, Meta(ge=0, le=2**53)]
_Records = Annotated[int, Meta(ge=1, le=2**53)]
_Neighbours = Literal["zero-out", "replace-one"]


class _Promise(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What every version says first: who released, for which study, under which promise."""

    ledger: _Ledger
    study: _Name
    mechanism: _Name
    epsilon: _Positive | None
    delta: _Share | None
    unit_records: _Records | None
    neighbours: _Neighbours | None


class Spend(_Promise, frozen=True, forbid_unknown_fields=True):
    """What one study has cost one record.

    ledger: Id of the ledger that released it.
    noise_per_record: Whether every record has noise of its own.
    slots: Record slots of a release.
    releases: How many there were when this was written.
    event: What all of them cost a record together.
    """

    noise_per_record: bool
    slots: _Records
    releases: _Count
    event: Event

    def __post_init__(self) -> None:
        """Refuse a cost that does not say against which change it protects."""
        if self.event != NonPrivate() and self.neighbours is None:
            raise ValueError(
                "`neighbours` must be zero-out or replace-one where an `event` protects anybody"
            )


class SourceSpends(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What studies have spent on one source, and the most that they may.

    source: Its name, or the hash of it.
    epsilon, delta: The limit; epsilon null: none.
    """

    source: _Name
    epsilon: _Positive | None
    delta: _Share
    unit_records: _Records
    neighbours: _Neighbours
    spends: list[Spend]


class SpendsMessage(
    msgspec.Struct, frozen=True, tag="spends/2", tag_field="type", forbid_unknown_fields=True
):
    """The account of one client.

    ledger: Id of the ledger that writes it.
    """

    client: _Name
    ledger: _Ledger
    sources: list[SourceSpends]


class _Spend1(_Promise, frozen=True, forbid_unknown_fields=True):
    """As `Spend`, with its cost as version 1 had it."""

    mu: _Positive | None
    pure: _Positive | None
    apart: bool
    slots: _Records
    releases: _Count

    def __post_init__(self) -> None:
        """As `Spend`."""
        if self.mu is not None and self.neighbours is None:
            raise ValueError("`neighbours` must be zero-out or replace-one where there is a `mu`")
        if self.mu is None and self.pure is not None:
            raise ValueError("`pure` must be null where `mu` is null")

    def newer(self) -> Spend:
        """Return it in this version."""
        values = msgspec.structs.asdict(self)
        own = values.pop("apart")
        event = event_of(values.pop("mu"), values.pop("pure"))
        return Spend(**values, noise_per_record=own, event=event)


class _Source1(SourceSpends, frozen=True, forbid_unknown_fields=True):
    spends: list[_Spend1]  # type: ignore[assignment]


class _Message1(
    msgspec.Struct, frozen=True, tag="spends/1", tag_field="type", forbid_unknown_fields=True
):
    client: _Name
    ledger: _Ledger
    sources: list[_Source1]

    def newer(self) -> SpendsMessage:
        """Return it in this version."""
        sources = [
            SourceSpends(
                one.source, one.epsilon, one.delta, one.unit_records, one.neighbours,
                [spend.newer() for spend in one.spends],
            )
            for one in self.sources
        ]  # fmt: skip
        return SpendsMessage(self.client, self.ledger, sources)


_DECODER = msgspec.json.Decoder(SpendsMessage | _Message1)
#: How a decoder tells a tag that it does not know: of an account, or of an event.
_UNKNOWN = re.compile(r"Invalid value ('(?:spends|[a-z-]+)/\d+')")


def read_spends(payload: bytes) -> SpendsMessage:
    """Read an account, of this version or the one before.

    Raises ConfigError if it is of a version, or has an event of a kind, that is not known here:
    what it says was spent must not pass for nothing; msgspec.DecodeError if it is no account at
    all, naming the field and what is allowed there.
    """
    try:
        # an export has a line for each member: JSON text holds no raw ends of lines
        check_plain(payload.replace(b"\n", b""))
        message = _DECODER.decode(payload)
    except PayloadError as error:
        raise msgspec.DecodeError(error.detail) from None
    except RecursionError:
        raise msgspec.DecodeError("it is nested too deeply") from None
    except msgspec.ValidationError as error:
        if unknown := _UNKNOWN.search(str(error)):
            raise ConfigError(
                f"an account of what a client has spent has {unknown[1]}, which this version does "
                "not know, so nobody can tell what was spent: use the version that wrote it"
            ) from None
        raise
    return message if isinstance(message, SpendsMessage) else message.newer()


def write_spends(message: SpendsMessage) -> bytes:
    """Write an account."""
    return msgspec.json.encode(message)


def hashed(client: str, source: str) -> str:
    """Return what stands for the name of a source on the topic."""
    key = hashlib.blake2b(client.encode(), digest_size=32).digest()
    return HASHED + hashlib.blake2b(source.encode(), key=key, digest_size=16).hexdigest()


def hide(message: SpendsMessage) -> SpendsMessage:
    """Return an account with hashes for the names of sources."""
    sources = [
        msgspec.structs.replace(entry, source=hashed(message.client, entry.source))
        for entry in message.sources
    ]
    return msgspec.structs.replace(message, sources=sources)


def worse(one: Spend, other: Spend) -> Spend:
    """Return what two statements of one study cost at most, so that neither lowers the other."""
    if NonPrivate() in (one.event, other.event):
        # a number counts against a limit; where there is none, nothing does
        return other if one.event == NonPrivate() else one
    event = events.worse(one.event, other.event)
    return msgspec.structs.replace(
        one if one.event == event else other,
        event=event,
        noise_per_record=one.noise_per_record and other.noise_per_record,
        neighbours="zero-out"
        if "zero-out" in (one.neighbours, other.neighbours)
        else "replace-one",
        releases=max(one.releases, other.releases),
    )


def merge(entries: Iterable[SourceSpends]) -> list[SourceSpends]:
    """Return one entry for each source, and in it the worst that any says of each study.

    Limits are those of the first.
    """
    found: dict[str, SourceSpends] = {}
    spends: dict[str, dict[tuple[str, str], Spend]] = {}
    for entry in entries:
        found.setdefault(entry.source, entry)
        held = spends.setdefault(entry.source, {})
        for spend in entry.spends:
            key = spend.ledger, spend.study
            held[key] = worse(held[key], spend) if key in held else spend
    return [
        msgspec.structs.replace(found[name], spends=[held[key] for key in sorted(held)])
        for name, held in sorted(spends.items())
    ]


#: Bytes of the topic that Kafka keeps as they came: some tens of thousands of claims.
SEGMENT = str(8 << 20)


def ledger_topic(study: Study, settings: Settings) -> Topic:
    """Return the topic of all clients' accounts: compacted, and replicated as a study's own."""
    copies = study.stream.replication
    # Kafka compacts whole segments alone, and each start reads all that is there
    config = settings_of(
        copies, cleanup_policy="compact", min_cleanable_dirty_ratio="0.1", segment_bytes=SEGMENT
    )
    return Topic(settings.ledger_topic, 1, copies, config)


_Hex = Annotated[str, Meta(pattern="^[0-9a-f]{16}$")]


class Claim(
    msgspec.Struct, frozen=True, tag="claim/1", tag_field="type", forbid_unknown_fields=True
):
    """What one run of a client claims for one study.

    run: Drawn at each start.
    releases: How many the study has under this ledger.
    slots: Record slots of its source that they hold, with those of the studies before it.
    line: The study, and those behind whose records it began, the newest first.
    """

    client: _Name
    ledger: _Hex
    run: _Hex
    releases: _Count
    slots: _Count
    line: Annotated[list[_Name], Meta(min_length=1)]

    @property
    def study(self) -> str:
        """The study that it is about."""
        return self.line[0]

    @property
    def key(self) -> bytes:
        """Its key on the topic."""
        return prefix(self.client, self.ledger) + self.study.encode()


_CLAIM = msgspec.json.Decoder(Claim)


def prefix(client: str, ledger: str) -> bytes:
    """Return what the keys of all claims of a ledger begin with; no client's id does."""
    return f"{client}\n{ledger}\n".encode()


def is_claim(key: bytes) -> bool:
    """Whether a key of the topic is that of a claim, and not a client's id."""
    return b"\n" in key


def write_claim(claim: Claim, secret: bytes) -> bytes:
    """Write a claim: JSON, and behind the end of its line the MAC in hexadecimal digits.

    secret: 32 bytes of the ledger.
    """
    body = msgspec.json.encode(claim) + b"\n"
    return body + mac(derived(secret, "claims"), body).hex().encode()


def read_claim(payload: bytes, secret: bytes) -> Claim | None:
    """Read a claim; None if this ledger has not made it."""
    body, end, code = payload.rpartition(b"\n")
    try:
        if is_mac(derived(secret, "claims"), body + end, bytes.fromhex(code.decode())):
            return _CLAIM.decode(body)
    except (ValueError, msgspec.DecodeError):
        pass
    return None
