"""What a client claims before releases leave: how many its ledger has made, and of how many slots.

Public facts as JSON on the ledger topic, under a key of their own, so that compaction keeps the
newest of each study. A copy of the client's database cannot know what the original has claimed
since: that is how it is found out. The MAC is under a secret of the ledger, which all copies have.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from pipeline.trust.crypto import derived, is_mac, mac

_Hex = Annotated[str, Meta(pattern="^[0-9a-f]{16}$")]
_Name = Annotated[str, Meta(min_length=1, max_length=1000)]
_Count = Annotated[int, Meta(ge=0, le=2**53)]


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


_DECODER = msgspec.json.Decoder(Claim)


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
            return _DECODER.decode(body)
    except (ValueError, msgspec.DecodeError):
        pass
    return None
