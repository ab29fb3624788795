"""Counts and numbers for people, and lines of CSV that a spreadsheet shows and never computes."""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping, Sequence
from typing import TextIO

#: Seconds of a unit of time, by the letter that people write.
SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


def counted(number: int, noun: str, several: str | None = None) -> str:
    """Return a number with its noun, such as "1 record" and "2 records".

    several: The noun of several, where it is not the first with an s.
    """
    return f"{number} {noun}" if number == 1 else f"{number} {several or noun + 's'}"


def listed(names: Sequence[str], noun: str) -> str:
    """Return how many there are, and the first of them by name."""
    first = ", ".join(sorted(names)[:10])
    return f"{counted(len(names), noun)}: {first}{', ...' if len(names) > 10 else ''}"


def digits(number: float | None) -> str:
    """Return a number by its leading digits; "-" for none."""
    return "-" if number is None else f"{number:.4g}"


def percent(share: float | None) -> str:
    """Return a share in whole percent; "-" for none."""
    return "-" if share is None else f"{share:.0%}"


def rounded_up(count: int, digits: int) -> int:
    """Return a guess of a number without digits that it does not know, rounded up."""
    unit: int = 10 ** max(len(str(count)) - digits, 0)
    return -(-count // unit) * unit


def clipped_line(clipped: Mapping[str, int]) -> str:
    """Return how many values of which columns were outside their public ranges."""
    named = ", ".join(f"{name} {count}" for name, count in clipped.items() if count)
    return (
        f"{counted(sum(clipped.values()), 'value')} outside the public ranges, cut to them: {named}"
    )


def csv_lines(out: TextIO) -> Callable[[Sequence[object]], None]:
    """Return what writes a line of cells.

    Names come from a study's file or a source: text that a spreadsheet would take for a formula has
    an apostrophe before it. Numbers, also as text, stay as they are.
    """
    writer = csv.writer(out, lineterminator="\n")

    def put(cells: Sequence[object]) -> None:
        writer.writerow([_still(cell) for cell in cells])

    return put


def _still(cell: object) -> object:
    if not isinstance(cell, str) or len(cell) < 2 or cell[0] not in "=+-@\t\r":
        return cell
    try:
        float(cell)
    except ValueError:
        return "'" + cell
    return cell
