"""Table "curved" of paper ldp-sgd: the bias of logistic and asymmetric losses, n = 200,000.

Noise moves the iterate to both sides, and the mean of a curved score over that cloud is not the
score at its centre. "bias / sd" is the length of the mean error over the root of the sum of the
coefficients' variances between replications. "exact CP" is the coverage of the sandwich of exact
means along the path, which noise leaves to nobody.

mu = 1, squared radius 2 and steps eta0 i^-0.501 unless a row says otherwise; averages after 5 %.
The logistic model has coefficients of 1/2.
Source: ldp-sgd; its theory has no bias of curved losses, which this measures.
"""

from __future__ import annotations

import math

import numpy as np

from benchmarks.papers.cells import Cell, mean_cell
from benchmarks.papers.ldp_sgd_methods import exact, intervals, mean_of, scaling, without
from benchmarks.papers.ldp_sgd_models import EXPECTILE, Array, Model
from benchmarks.papers.ldp_sgd_runs import replications
from benchmarks.papers.ldp_sgd_walk import Setting
from pipeline.losses import Logistic
from pipeline.types import Vector

RECORDS, BURN_IN = 200_000, 10_000
ROUNDING = 0.005
HALVES = Model(Logistic(), (0.5, 0.5, 0.5, 0.5))
SETTINGS = {
    "logistic, eta0 = 0.25": Setting(1.0, 0.25, burn_in=BURN_IN, model=HALVES),
    "logistic, eta0 = 0.5": Setting(1.0, 0.5, burn_in=BURN_IN, model=HALVES),
    "logistic, eta0 = 1": Setting(1.0, 1.0, burn_in=BURN_IN, model=HALVES),
    "logistic, eta0 = 2": Setting(1.0, 2.0, burn_in=BURN_IN, model=HALVES),
    "logistic, mu = 2, cap 0.003": Setting(2.0, burn_in=BURN_IN, cap=0.003, model=HALVES),
    "logistic, mu = 2, alpha 0.6": Setting(2.0, 1.0, 0.6, burn_in=BURN_IN, model=HALVES),
    "expectile 0.3, eta0 = 1": Setting(1.0, burn_in=BURN_IN, model=EXPECTILE),
}
COLUMNS = ("bias / sd", "exact CP", "RS CP", "PPI-0 CP")
#: What an independent implementation gave; its coefficients and burn-in are not known, so that no
#: cell is gated.
REFERENCE: dict[str, tuple[float | None, ...]] = {
    "logistic, eta0 = 0.25": (0.27, 94.5, 90.5, None),
    "logistic, eta0 = 0.5": (0.40, 93.2, 92.8, None),
    "logistic, eta0 = 1": (0.73, 87.8, 93.2, None),
    "logistic, eta0 = 2": (1.13, None, 83.8, None),
    "logistic, mu = 2, cap 0.003": (0.32, None, 94.0, 93.5),
    "expectile 0.3, eta0 = 1": (0.56, None, 91.0, None),
}


def curved(*, count: int) -> list[Cell]:
    """Return biases and coverages."""
    cells = []
    for row, setting in SETTINGS.items():
        runs = replications(setting, (RECORDS,), count, seed=21)[RECORDS]
        errors = np.array([mean_of(run) for run in runs]) - setting.model.truth
        values = [over_deviation(errors)]
        values += [intervals(method, runs)[0] for method in (exact, scaling, without)]
        reference = REFERENCE.get(row, (None,) * len(COLUMNS))
        cells += [
            mean_cell(("curved", row, column), found, reference=known, rounding=ROUNDING)
            for column, found, known in zip(COLUMNS, values, reference, strict=True)
        ]
    return cells


def over_deviation(errors: Array) -> Vector:
    """Return values with the bias over the deviation as their mean, and its error to first order.

    Parameters
    ----------
    errors
        Of each replication, shape (R, d).
    """
    bias, total = errors.mean(axis=0), float(errors.var(axis=0, ddof=1).sum())
    # the squared length of a mean is too large by its variance
    square = max(float(bias @ bias) - total / len(errors), 0.0)
    towards = (errors - bias) @ bias / np.linalg.norm(bias)
    found: Vector = (math.sqrt(square) + towards) / math.sqrt(total)
    return found
