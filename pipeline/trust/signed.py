"""Signed JSON: the signature is the last member of the object, over all that is before it.

So a message carries its signature wherever it is kept: in a topic, in Redis, in a file. Nobody
needs a canonical form of JSON, and who knows nothing of signatures reads the object as ever.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from pipeline.errors import PayloadError
from pipeline.trust.keys import Pair, is_signed

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
