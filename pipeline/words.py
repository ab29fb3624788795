"""Counts in words, for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def counted(number: int, noun: str, several: str | None = None) -> str:
    """Return a number with its noun, such as "1 record" and "2 records".

    several: The noun of several, where it is not the first with an s.
    """
    return f"{number} {noun}" if number == 1 else f"{number} {several or noun + 's'}"


def listed(names: Sequence[str], noun: str) -> str:
    """Return how many there are, and the first of them by name."""
    first = ", ".join(sorted(names)[:10])
    return f"{counted(len(names), noun)}: {first}{', ...' if len(names) > 10 else ''}"


def clipped_line(clipped: Mapping[str, int]) -> str:
    """Return how many values of which columns were outside their public ranges."""
    named = ", ".join(f"{name} {count}" for name, count in clipped.items() if count)
    return (
        f"{counted(sum(clipped.values()), 'value')} outside the public ranges, cut to them: {named}"
    )
