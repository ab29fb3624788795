"""The MAC of a release and the ticket of a model: keyed BLAKE2b (RFC 7693), 16 bytes.

It is a function of key and bytes alone: there is no nonce that a restored client could repeat, and
bytes that are sent again are the same.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass

#: Bytes of a MAC and of a ticket.
SIZE = 16
#: Where the header of a release has the generation of the study's key, as `release.form` says.
GENERATION = slice(6, 8)


def mac(key: bytes, body: bytes) -> bytes:
    """Return the MAC of some bytes under a key of 32."""
    return hashlib.blake2b(body, key=key, digest_size=SIZE).digest()


def is_mac(key: bytes, body: bytes, claimed: bytes) -> bool:
    """Whether a claimed MAC is that of the bytes, found out in a time that tells nothing."""
    return hmac.compare_digest(mac(key, body), claimed)


@dataclass(frozen=True, slots=True)
class Stamp:
    """What a client puts on its releases as they leave.

    key: For the MAC.
    generation: Of the study's pair that it was agreed with.
    """

    key: bytes
    generation: int

    def __call__(self, payload: bytes) -> bytes:
        """Return a release with generation and MAC; calling it twice changes nothing."""
        number = self.generation.to_bytes(2, "little")
        body = payload[: GENERATION.start] + number + payload[GENERATION.stop : -SIZE]
        return body + mac(self.key, body)

    def fits(self, payload: bytes) -> bool:
        """Whether a release has the MAC that this stamp makes."""
        return is_mac(self.key, payload[:-SIZE], payload[-SIZE:])
