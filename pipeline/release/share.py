"""How many releases one client may make: `trust.largest_share`, which a release tells by itself."""

from __future__ import annotations

import math

import numpy as np

from pipeline.study.model import Study
from pipeline.types import Integers

#: So much is no release: 0.29 times 100 is 29, and not what floats make of it.
_ROUNDING = 1e-9


def most_releases(study: Study, watermark: int) -> int | None:
    """Return how many releases one client may have made with the next one; None: any number.

    A release of more slots than `window.records` counts as so many of that size.

    watermark: Of the model at which that is taken: the record slots that had come from all.
    """
    limit = study.largest_share
    if limit is None:
        return None
    came = max(watermark // study.window.records, limit.after)
    return math.floor(limit.share * came + _ROUNDING)


def least_clients(study: Study) -> int | None:
    """Return with how many clients a study cannot stand still; None: with any number.

    With n of them it stands still where so many releases c have come that each has its part of
    them, n floor(share c) <= c: parts are whole numbers, so that a share above 1 / n may not do
    (docs/decisions/0023-a-share-told-by-a-release.md).
    """
    limit = study.largest_share
    if limit is None:
        return None
    part, least = math.floor(limit.share * limit.after + _ROUNDING), 1
    # with more than (part + 1) / (share part) clients no larger part stands still either
    while (part + 1) / (limit.share * part) > least:
        last = math.ceil((part + 1) / limit.share - _ROUNDING) - 1
        least = max(least, last // part + 1)
        part += 1
    return least


def standstill(study: Study, clients: int | None = None) -> str:
    """Return a warning of a share at which a study can stand still; empty if there is none.

    clients: How many there will be; None: the fewest whose shares are more than all.
    """
    limit, least = study.largest_share, least_clients(study)
    if limit is None or least is None:
        return ""
    clients = clients or math.floor(1 / limit.share) + 1
    if clients >= least:
        return ""
    return (
        f"trust.largest_share: with {clients} clients the study can stand still for ever, each at "
        f"its share of {limit.share:g} in whole releases: it takes {least} clients that all go on. "
        "Raise share, to about twice one nth for n clients, or after"
    )


def above_share(study: Study, ends: Integers, watermarks: Integers) -> Integers:
    """Return which releases of a batch are more than their clients may make, as places in it.

    Each tells how many slots its client has released, which no client can say too few of, and names
    a model, which tells how many had come from all. So it needs no memory of what came before it to
    judge one.

    ends, watermarks: Slots of their clients, each release included, and the watermarks of their
        models, shape (n,).
    """
    if study.largest_share is None:
        return np.empty(0, dtype=np.int64)
    told, which = np.unique(watermarks, return_inverse=True)
    most = [most_releases(study, watermark) for watermark in told.tolist()]
    return np.flatnonzero(ends > study.window.records * np.array(most)[which])
