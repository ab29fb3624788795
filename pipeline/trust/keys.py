"""The key pairs of a study and of a client, each drawn as one seed.

A study signs with Ed25519, agrees with each client on a MAC key by X25519, and puts tickets on its
models. A study that changes its keys keeps the old ones: releases and models under them stay in the
log. They are told apart by their generation, 1, 2, ...
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from functools import cached_property

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from pipeline.errors import ConfigError

#: Bytes of a seed, of each public part and of a key for a MAC.
SIZE = 32
#: Generations fit the header of a release.
LAST_GENERATION = 2**15 - 1


def derived(secret: bytes, *purpose: str) -> bytes:
    """Return 32 bytes that follow from a secret, for one purpose (HKDF-SHA256, RFC 5869)."""
    # each part with its length: "a", "bc" is not "ab", "c"
    parts = [part.encode() for part in ("veilstream", *purpose)]
    info = b"".join(len(part).to_bytes(4, "little") + part for part in parts)
    return HKDF(algorithm=SHA256(), length=SIZE, salt=None, info=info).derive(secret)


@dataclass(frozen=True)
class Pair:
    """The private keys of a study's generation, or of a client.

    seed: 32 secret bytes, from which all its keys follow.
    generation: Of a study, from 1; clients have one pair for ever.
    """

    seed: bytes
    generation: int = 1

    @classmethod
    def drawn(cls, generation: int = 1) -> Pair:
        """Draw a pair."""
        return cls(secrets.token_bytes(SIZE), generation)

    def __repr__(self) -> str:
        """Show whose it is, and no secret."""
        return f"Pair({self.public.hex()[:16]}..., generation={self.generation})"

    @cached_property
    def public(self) -> bytes:
        """The public parts: 32 bytes that check signatures, 32 to agree on keys with."""
        signs, agrees = self._signs.public_key(), self._agrees.public_key()
        return signs.public_bytes_raw() + agrees.public_bytes_raw()

    @cached_property
    def ticket_key(self) -> bytes:
        """The key of the MAC over published models, which only the study's workers know."""
        return derived(self.seed, "ticket")

    @cached_property
    def state_key(self) -> bytes:
        """The key of the MACs over what the study's workers store."""
        return derived(self.seed, "state")

    def sign(self, text: bytes) -> bytes:
        """Return the signature of some bytes, 64 bytes."""
        return self._signs.sign(text)

    def mac_key(self, other: bytes, *, study: str, client: str, generation: int) -> bytes:
        """Return the key of a client's MACs, the same for study and client.

        other: Public parts of the other side.
        generation: Of the study's pair.

        Raises ConfigError if no key can be agreed on with these public parts.
        """
        try:
            shared = self._agrees.exchange(X25519PublicKey.from_public_bytes(other[SIZE:]))
        except ValueError as error:
            raise ConfigError(
                "the client's public key cannot be used; its owner must enrol it again "
                "(`veilstream client enrol --stolen`), and the operator admit what that "
                "prints"
            ) from error
        return derived(shared, "release", study, client, str(generation))

    @cached_property
    def _signs(self) -> Ed25519PrivateKey:
        return Ed25519PrivateKey.from_private_bytes(derived(self.seed, "sign"))

    @cached_property
    def _agrees(self) -> X25519PrivateKey:
        return X25519PrivateKey.from_private_bytes(derived(self.seed, "agree"))


def can_agree(public: bytes) -> bool:
    """Whether keys can be agreed on with these public parts: some points have a low order.

    RFC 7748, section 6.1: with them every secret gives zeros.
    """
    try:
        Pair(bytes(SIZE)).mac_key(public, study="", client="", generation=1)
    except ConfigError:
        return False
    return True


def is_signed(text: bytes, signature: bytes, public: bytes) -> bool:
    """Whether a signature of some bytes was made by the pair with these public parts."""
    try:
        Ed25519PublicKey.from_public_bytes(public[:SIZE]).verify(signature, text)
    except (InvalidSignature, ValueError):
        return False
    return True
