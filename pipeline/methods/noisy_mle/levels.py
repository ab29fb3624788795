"""What a ridge adds to the residuals of a level's records, which the model's curvature lacks.

A ridge holds a level's coefficient back, so that its records' responses m are off on average: the
score is zero where share * m = ridge * theta. Squared residuals are then larger than the curvature
by m (1 - 2 q) for classes, q the chance that is estimated, and by m^2 for numbers: the product with
the share needs no share for classes, however rare the level is. Exact where a model has levels
alone; numbers beside them enter by the mean predictor of a level's records.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from pipeline.methods.noisy_mle.task import SiteTask
from pipeline.types import Matrix

if TYPE_CHECKING:
    from pipeline.methods.noisy_mle.solving import Fit

#: Below so many deviations of its noise the curvature of a level says nothing of its records.
KNOWN = 2.0


def held_back(task: SiteTask, fit: Fit) -> Matrix:
    """Return what a record's score varies beyond the model, in mean, shape (d, d)."""
    size, curvature, theta = task.size, fit.curvature, fit.coefficients
    added, pulls = np.zeros((size, size)), task.penalty * theta
    low, high = task.encoding.ends
    levels = 1 + np.flatnonzero((low == 0) & (high == 1))
    spread = np.diag(curvature) / max(float(curvature[0, 0]), 1e-12)
    spread[[0, *levels]] = 0.0
    noise = fit.size / math.sqrt(size)
    for column in levels.tolist():
        pull, share = float(pulls[column]), float(curvature[column, column])
        known = share > KNOWN * noise and share > 0
        # the mean row of the level's records, whose entries are within -1 and 1
        row = np.clip(curvature[column] / share, -1, 1) if known else np.zeros(size)
        row[[0, column]] = 1.0
        if task.classes:
            more = max(0.0, -pull * math.tanh(float(row @ theta) / 2)) if known else abs(pull)
        else:
            off = abs(pull) / share if known else math.inf
            more = abs(pull) * min(off, task.loss.slope_bound)
        # numbers vary in a level as in all records
        added += more * (np.outer(row, row) + np.diag(np.maximum(spread - row**2, 0.0)))
    return added
