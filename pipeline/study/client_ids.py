"""What a client may be called.

The id is the key of its releases, part of a header and of a file name, and stands in the lines
that people read: it holds nothing that one of these would cut, quote or obey.
"""

from __future__ import annotations

import re

#: What a release can carry, and a file name can hold.
LONGEST = 200
#: For errors.
RULE = (
    f"an id has 1 to {LONGEST} characters, letters from a to z, digits, '.', '_' and '-', and "
    "begins with a letter or digit"
)
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def is_plain(client: str) -> bool:
    """Whether a new client may have this id."""
    return len(client) <= LONGEST and _ID.fullmatch(client) is not None
