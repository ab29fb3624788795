"""A table on a choice of the estimator: the sandwich's middle."""

from __future__ import annotations

from concurrent.futures import Executor
from functools import lru_cache

import numpy as np
from scipy.linalg import sqrtm

from benchmarks.covered import Seen, brief, summary_of, told
from benchmarks.streams import Cell, one_stream, target_of, task_of
from pipeline.types import Matrix

MIDDLE_ROWS = (
    Cell(5, 200, 50, 1.0),
    Cell(5, 200, 50, 2.0),
    Cell(5, 500, 20, 1.0),
    Cell(10, 500, 50, 1.0),
    Cell(20, 1000, 50, 1.0),
)


def middle_table(pool: Executor, streams: int) -> list[dict[str, object]]:
    """Cover with the spread between releases and with the true variance."""
    print("\nmiddle of the sandwich: true, between releases, ratio of standard errors")
    rows = []
    for cell in MIDDLE_ROWS:
        pairs = list(pool.map(both_middles, [cell] * streams, range(streams)))
        target = target_of(cell)
        between = summary_of([told_between for told_between, _ in pairs], target)
        true = summary_of([told_true for _, told_true in pairs], target)
        ratio = None
        if between["coverage"] is not None:
            ratio = float(
                np.mean([np.mean(b["errors"] / t["errors"]) for b, t in pairs if b["ready"]])  # type: ignore[operator]
            )
        rows.append({"cell": cell.label, "true": true, "between": between, "ratio": ratio})
        print(
            f"  {cell.label:44} {brief(true)}   {brief(between)}   "
            f"{'-' if ratio is None else f'{ratio:.3f}'}",
            flush=True,
        )
    return rows


def both_middles(cell: Cell, seed: int) -> tuple[Seen, Seen]:
    """Tell of the last estimate as it is, and with the true variance of the summed gradient."""
    _, estimate = one_stream(cell, seed)
    target = target_of(cell)
    between = told(estimate, target)
    if estimate.privacy_covariance is None or not between["ready"]:
        return between, between
    # bread^-1 noise bread^-1 is known, and so is the noise: that gives the bread
    assert estimate.effective_records is not None
    releases = estimate.effective_records / cell.records
    variance = releases * task_of(cell).update_channels.gradient.standard_deviation ** 2
    inverse = np.real(sqrtm(estimate.privacy_covariance / variance))
    sampling = releases * cell.records * inverse @ meat_of(cell) @ inverse
    covariance = sampling + estimate.privacy_covariance
    errors = np.sqrt(np.diag(covariance))
    covered = np.abs(estimate.coefficients - target) <= errors * 1.959964
    return between, {**between, "errors": errors, "covered": covered}


@lru_cache(maxsize=16)
def meat_of(cell: Cell) -> Matrix:
    """Return the variance of a record's gradient at the target, shape (d, d)."""
    x, y = cell.population.draw(np.random.default_rng(99), 400_000)
    design, target = np.column_stack([np.ones(len(y)), x]), target_of(cell)
    scores = design * task_of(cell).loss.slope(design @ target, y)[:, None]
    matrix: Matrix = np.cov(scores, rowvar=False)
    return matrix
