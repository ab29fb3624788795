"""Delta of a model card that was estimated: never below that of the chain which it stands for.

Of the true matrix no more is known than that each of its rows is within `error` of the card's, in
total variation distance. t steps then miss by at most `error` times the sum of the card's own
Dobrushin coefficients of 0 to t - 1 steps (each difference of rows is carried on by the card's
steps, which shrink it); entries by no more than that. Both Deltas shrink over slots at least as
their products say, whatever the chain is.
"""

from __future__ import annotations

import numpy as np

from pipeline.methods.age_aware.chains import Chain
from pipeline.methods.age_aware.mixing import forward, rounded_up
from pipeline.types import Matrix, Vector


def safe_deltas(chain: Chain, slots: int, error: float) -> tuple[Vector, Vector]:
    """Return Delta towards the past (prior-free) and towards the future, shapes (slots + 1,).

    chain: As the card says.
    slots: Longest age.
    error: Most that a row of the true matrix may be from the card's, in [0, 1).
    """
    ages = np.arange(slots + 1, dtype=np.int64)
    kernels, own = chain.powers(ages), forward(chain, ages)
    missed = error * np.concatenate([[0.0], np.cumsum(own[:-1])])
    back = [_widest_ratio(kernel, off) for kernel, off in zip(kernels, missed, strict=True)]
    return _shrinking(rounded_up(np.array(back))), _shrinking(rounded_up(own + 2 * missed))


def _widest_ratio(kernel: Matrix, off: float) -> float:
    """Return tanh(ln(phi) / 4), phi the largest cross ratio of any matrix so near to this one."""
    low, high = kernel - off, np.minimum(kernel + off, 1.0)
    if low.min() <= 0.0:
        return 1.0
    over = (np.log(high)[:, None, :] - np.log(low)[None, :, :]).max(axis=2)
    np.fill_diagonal(over, 0.0)
    return float(np.tanh((over + over.T).max() / 4))


def _shrinking(found: Vector) -> Vector:
    """Return the least bounds that follow: after s and t slots at most a product is left."""
    found = np.minimum.accumulate(np.append(1.0, found[1:]))
    for age in range(2, len(found)):
        found[age] = min(found[age], (found[1:age] * found[age - 1 : 0 : -1]).min())
    return found
