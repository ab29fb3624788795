"""Whether columns go with the order of the records: a file that is sorted, or one that drifts.

Estimates take records as independent of their place in the stream: the newest releases count most,
at models that came from earlier ones. A file that is sorted by its response is no such stream.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from scipy.special import ndtri

from pipeline.types import Vector

#: Records are cut into so many consecutive parts, if each has so many.
PARTS, LEAST = 10, 20
#: Parts differ where a larger share of what sorting could put between them is, and one larger than
#: chance makes once in so many columns.
SHARE, CHANCE = 0.1, 1e6
#: So many columns are named.
NAMED = 5
#: What to do about it.
ORDERED = (
    "records are not in a random order. Clients release them as they come, and estimates follow "
    "the newest: such a stream may have no intervals, or those of its last part. If the order is "
    "of the file alone (sorted, or site after site), shuffle it before it is released, but for its "
    "heading; if it is the order of time, records drift: estimator.forgetting, or a feature that "
    "says what changes"
)


def going_with_the_order(columns: Mapping[str, Vector]) -> dict[str, float]:
    """Return columns that go with the place of a record, those that do most first.

    columns: By name, shape (n,) each; what is not finite is left out.

    Returns: The share of what sorting by the column could put between consecutive parts that is
    between them, in (0, 1].
    """
    found = {name: _moving(column[np.isfinite(column)]) for name, column in columns.items()}
    ranked = sorted(found.items(), key=lambda item: -item[1])
    return {name: share for name, share in ranked[:NAMED] if share}


def told(going: Mapping[str, float]) -> dict[str, str]:
    """Return what each share means, in words."""
    return {
        name: (
            f"{share:.0%} of what sorting by it could put between {PARTS} consecutive parts is "
            "between them"
        )
        for name, share in going.items()
    }


def _moving(column: Vector) -> float:
    """Return the share of the variance that is between consecutive parts, 0 if it may be chance.

    Of the largest share that there can be, as of a rare class most of the variance is within parts
    whatever the order is.
    """
    if len(column) < PARTS * LEAST or not np.ptp(column):
        return 0.0
    total = float(np.var(column)) * len(column)
    share, most = (_between(each) / total for each in (column, np.sort(column)))
    # of independent records it is chi squared, by the cube root of Wilson and Hilferty
    free = PARTS - 1
    root = 1 - 2 / (9 * free) - float(ndtri(1 / CHANCE)) * math.sqrt(2 / (9 * free))
    return share / most if share > max(SHARE * most, free * root**3 / len(column)) else 0.0


def _between(column: Vector) -> float:
    """Return the sum of squares that is between consecutive parts."""
    middle = float(np.mean(column))
    return sum(
        len(part) * (float(np.mean(part)) - middle) ** 2 for part in np.array_split(column, PARTS)
    )
