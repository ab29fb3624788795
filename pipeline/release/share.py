"""How many releases one client may make: `trust.largest_share`, which a release tells by itself."""

from __future__ import annotations

import math

import numpy as np

from pipeline.study import Study
from pipeline.types import Integers

#: So much is no release: 0.29 times 100 is 29, and not what floats make of it.
_ROUNDING = 1e-9


def most_releases(study: Study, watermark: int) -> int | None:
    """Return how many releases one client may have made with the next one; None: any number.

    watermark: Of the model at which that is taken: the record slots that had come from all.
    """
    limit = study.largest_share
    if limit is None:
        return None
    came = max(watermark // study.window.records, limit.after)
    return math.floor(limit.share * came + _ROUNDING)


def above_share(study: Study, seqs: Integers, watermarks: Integers) -> Integers:
    """Return which releases of a batch are more than their clients may make, as places in it.

    A client's releases are numbered from 0, so that no more of them count than the highest number
    tells; and each names a model, which tells how many had come from all. So it needs no memory of
    what came before it to judge one.

    seqs, watermarks: Their numbers and the watermarks of their models, shape (n,).
    """
    if study.largest_share is None:
        return np.empty(0, dtype=np.int64)
    told, which = np.unique(watermarks, return_inverse=True)
    most = [most_releases(study, watermark) for watermark in told.tolist()]
    return np.flatnonzero(seqs >= np.array(most)[which])
