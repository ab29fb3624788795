"""Who is believed: key pairs, the MAC of a release, the ticket of a model, signed statements.

Pure functions over bytes; files of keys are `infra.keyring`, topics are the agents' and producers'.

Each key pair is drawn as one seed. A study signs with Ed25519, agrees with each client on a MAC key
by X25519, and puts tickets on its models. A study that changes its keys keeps the old ones:
releases and models under them stay in the log. They are told apart by their generation, 1, 2, ...

The MAC of a release and the ticket of a model are keyed BLAKE2b (RFC 7693), 16 bytes: a function
of key and bytes alone, so that there is no nonce that a restored client could repeat.

Signed JSON has its signature as the last member, over all that is before it. So a message carries
its signature wherever it is kept: in a topic, in Redis, in a file. Nobody needs a canonical form of
JSON, and who knows nothing of signatures reads the object as ever.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from pipeline.errors import ConfigError, PayloadError

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


#: Bytes of a MAC and of a ticket.
MAC_SIZE = 16
#: Bytes of the time of a release's record and of its client's admission, as its MAC is over them.
MARK_SIZE = 16
#: Where the header of a release has the generation of the study's key, as `release.layout` says.
GENERATION = slice(6, 8)


def mac(key: bytes, body: bytes) -> bytes:
    """Return the MAC of some bytes under a key of 32."""
    return hashlib.blake2b(body, key=key, digest_size=MAC_SIZE).digest()


def is_mac(key: bytes, body: bytes, claimed: bytes) -> bool:
    """Whether a claimed MAC is that of the bytes, found out in a time that tells nothing."""
    return hmac.compare_digest(mac(key, body), claimed)


@dataclass(frozen=True, slots=True)
class Stamp:
    """What a client puts on its releases as they leave.

    key: For the MAC.
    generation: Of the study's pair that it was agreed with.
    since: As `Admission.since`: from 1 on, a MAC is over it and the time of the record.
    """

    key: bytes
    generation: int
    since: int = 0

    def __call__(self, payload: bytes, time: int = 0) -> bytes:
        """Return a release with generation and MAC; calling it twice changes nothing.

        time: Of its record, milliseconds since 1970.
        """
        number = self.generation.to_bytes(2, "little")
        body = payload[: GENERATION.start] + number + payload[GENERATION.stop : -MAC_SIZE]
        return body + mac(self.key, body + self._mark(time))

    def fits(self, payload: bytes, time: int = 0) -> bool:
        """Whether a release has the MAC that this stamp makes; `time` as it takes it."""
        return is_mac(self.key, payload[:-MAC_SIZE] + self._mark(time), payload[-MAC_SIZE:])

    def _mark(self, time: int) -> bytes:
        if not self.since:
            return b""
        return b"".join(n.to_bytes(8, "little", signed=True) for n in (time, self.since))


#: What is signed begins with this: no signature of another protocol is one of ours.
CONTEXT = b"veil-signed 1\n"
_MEMBER = re.compile(rb',"signature":"([0-9a-f]{128})"\}\Z')
#: What a terminal would obey, written out or escaped: controls, and marks that turn text around.
_CONTROL = re.compile(
    rb"[\x00-\x1f\x7f]|\xc2[\x80-\x9f]|\xe2\x80[\xa8-\xae]|\xe2\x81[\xa6-\xa9]"
    rb"|\\[bfnrt]|\\u(?:00[01][0-9a-f]|007f|00[89][0-9a-f]|202[89a-e]|206[6-9])",
    re.IGNORECASE,
)


def signed(payload: bytes, pair: Pair) -> bytes:
    """Return a JSON object, not empty, with its signature."""
    return payload[:-1] + b',"signature":"' + pair.sign(CONTEXT + payload).hex().encode() + b'"}'


def check_signed(payload: bytes, publics: Iterable[bytes]) -> None:
    """Refuse a message that none of these public keys has signed.

    Raises PayloadError: "unsigned" or "forged".
    """
    found = _MEMBER.search(payload)
    if found is None:
        raise PayloadError("unsigned", "the message has no signature of the study")
    text = CONTEXT + payload[: found.start()] + b"}"
    signature = bytes.fromhex(found[1].decode())
    if not any(is_signed(text, signature, public) for public in publics):
        raise PayloadError("forged", "the signature is not that of this study's key")


def check_plain(payload: bytes) -> None:
    """Refuse JSON with characters that a terminal obeys: nothing of ours has any.

    Raises PayloadError: "control-characters".
    """
    if _CONTROL.search(payload):
        raise PayloadError("control-characters", "the message holds characters that are not text")
