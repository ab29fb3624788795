"""Lines of CSV that a spreadsheet shows and never computes."""

from __future__ import annotations

import csv
from collections.abc import Callable, Sequence
from typing import TextIO


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
