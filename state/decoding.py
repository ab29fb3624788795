"""Numbers and names as Redis gives them back; one that is none of ours is a fault of the state."""

from __future__ import annotations

from collections.abc import Mapping

from pipeline.errors import StateError


def number_of(data: bytes | None) -> int:
    """Return a stored number; 0 where nothing is stored.

    StateError if it cannot be read.
    """
    try:
        return int(data or b"0")
    except ValueError as error:
        raise StateError(
            "a number of the stored state cannot be read; run `veilstream state rebuild`"
        ) from error


def text_keys(fields: Mapping[bytes, bytes]) -> dict[str, bytes]:
    """Return the fields of a hash by their names; StateError if a name cannot be read."""
    return {_text(name): data for name, data in fields.items()}


def _text(name: bytes) -> str:
    try:
        return name.decode()
    except UnicodeDecodeError as error:
        raise StateError(
            "the stored state has a name that is no text; run `veilstream state rebuild`"
        ) from error
