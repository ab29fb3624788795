"""Whether two classes can be told apart without error: then, without a ridge, no best fit exists.

Some w other than zero has y (1, x)' w >= 0 for every record, with > 0 for one, exactly if the loss
falls for ever along it. The largest sum of y (1, x)' w over the box |w| <= 1 is a linear program.
Source: Albert and Anderson (1984), complete and quasi-complete separation.
"""

from __future__ import annotations

import numpy as np

from pipeline.estimators.modes.objective import Records

#: What the best w must gain on average, with columns scaled to at most 1: the solver rounds.
LEAST_GAIN = 1e-9


def separable(records: Records) -> bool:
    """Whether a hyperplane has each class on its own side, records on it allowed."""
    # a quarter of a second to import, and every command imports this module
    from scipy.optimize import linprog  # noqa: PLC0415

    scale = np.maximum(np.max(np.abs(records.design), axis=0), np.finfo(float).tiny)
    rows = records.design / scale * records.responses[:, None]
    found = linprog(-rows.mean(axis=0), A_ub=-rows, b_ub=np.zeros(len(rows)), bounds=(-1, 1))
    return found.fun is not None and bool(found.fun < -LEAST_GAIN)
