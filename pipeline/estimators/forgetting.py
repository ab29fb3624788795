"""Forgetting: old releases fade, and nothing in the state is multiplied.

The state keeps its sums apart by bucket, an eighth of a half-life each; an estimate weighs bucket b
by 2^-((newest - b) / 8). Which bucket a release falls into is said by its own record of the log, so
order, batches and partitions change nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from pipeline.study.model import Forgetting, Study

#: Buckets in one half-life.
PER_HALF_LIFE = 8
#: Buckets that are kept: the one beyond them would weigh 2^-10.
KEPT = 80
#: (sum w)^2 / sum w^2 of a steady stream, in what comes in one half-life: 2 / log 2.
EFFECTIVE_HALF_LIVES = 2 / math.log(2)
#: No weight is smaller: where the newest bucket says nothing, older ones must not all be zero.
LEAST_WEIGHT = 2.0**-500


def counted_slots(study: Study, records: float) -> float:
    """Return on how many record slots an estimate rests after so many."""
    forgetting = study.estimator.forgetting
    if forgetting is None or forgetting.of == "seconds":
        return max(float(records), 1.0)
    return min(float(records), EFFECTIVE_HALF_LIVES * forgetting.half_life)


def bucket_of(forgetting: Forgetting | None, *, watermark: int, milliseconds: int) -> int:
    """Return the bucket of a release, >= 0; without forgetting there is one.

    watermark: Record slots that had been folded when the model of the release was published, >= 0.
    milliseconds: Time of its record in the log, since 1970; what lies before that counts as 0.
    """
    if forgetting is None:
        return 0
    passed = watermark if forgetting.of == "records" else max(milliseconds, 0) / 1000
    return math.floor(PER_HALF_LIFE * passed / forgetting.half_life)


def bucket_weights(
    forgetting: Forgetting | None, buckets: Iterable[int], *, slots: int
) -> dict[int, float]:
    """Return the weight of each bucket, in [`LEAST_WEIGHT`, 1].

    slots: Record slots that have come in all partitions. A model cannot have seen more: a release
        that says so counts as new, and does not age the others.
    """
    present = sorted(buckets)
    if forgetting is None or not present:
        return dict.fromkeys(present, 1.0)
    newest = present[-1]
    if forgetting.of == "records":
        newest = min(newest, bucket_of(forgetting, watermark=slots, milliseconds=0))
    ages = {b: max(newest - b, 0) / PER_HALF_LIFE for b in present}
    return {b: max(2.0**-age, LEAST_WEIGHT) for b, age in ages.items()}


def effective(total: float, squares: float) -> float:
    """Return (sum w n)^2 / sum w^2 n: how many records, or releases, of weight 1 tell as much.

    total, squares: sum w n and sum w^2 n, both >= 0.
    """
    # in this order, equal weights of 1 give the number itself, without rounding
    return total * (total / squares) if squares > 0 else 0.0
