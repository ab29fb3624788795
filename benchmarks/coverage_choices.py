"""Tables on two choices of the estimator: how many epochs to rest on, and the sandwich's middle."""

from __future__ import annotations

from concurrent.futures import Executor
from functools import lru_cache, partial
from unittest import mock

import numpy as np
from scipy.linalg import sqrtm

from benchmarks.covered import Seen, brief, summary_of, told
from benchmarks.streams import Cell, one_stream, target_of, task_of
from pipeline.methods.renewable import estimate as private_estimate
from pipeline.methods.renewable.solution import solve_over
from pipeline.stream.merge import estimate_of
from pipeline.types import Matrix

EPOCHS = {"chosen": 0, "all": 10**6, "last 2": 2, "last 3": 3, "last 4": 4}
EPOCH_ROWS = (
    Cell(5, 200, 50, 1.0),
    Cell(5, 50, 400, 1.0),
    Cell(20, 1000, 50, 1.0),
    Cell(20, 200, 400, 1.0),
    Cell(20, 200, 50, 1.0),
)
MIDDLE_ROWS = (
    Cell(5, 200, 50, 1.0),
    Cell(5, 200, 50, 2.0),
    Cell(5, 500, 20, 1.0),
    Cell(10, 500, 50, 1.0),
    Cell(20, 1000, 50, 1.0),
)


def epochs_table(pool: Executor, streams: int) -> list[dict[str, object]]:
    """Cover with the last estimate resting on so many epochs."""
    print("\nepochs of the last estimate: coverage +- error / relative error")
    rows = []
    for cell in EPOCH_ROWS:
        seen = list(pool.map(with_epochs, [cell] * streams, range(streams)))
        target = target_of(cell)
        found = {name: summary_of([s[name] for s in seen], target) for name in EPOCHS}
        rows.append({"cell": cell.label, **found})
        parts = [f"{name}: {brief(row)}" for name, row in found.items()]
        floored = found["all"]["floored"]
        print(f"  {cell.label:44} floored {floored:4.1f}  {'  '.join(parts)}", flush=True)
    return rows


def with_epochs(cell: Cell, seed: int) -> dict[str, Seen]:
    """Tell of the last estimate of a stream for each number of epochs, ready or not.

    The stream itself ran with the estimator's own number.
    """
    partition, _ = one_stream(cell, seed)
    task, target, found = task_of(cell), target_of(cell), {}
    for name, epochs in EPOCHS.items():
        fixed = partial(solve_over, epochs=epochs) if epochs else private_estimate.solve
        with mock.patch.object(private_estimate, "solve", fixed):
            found[name] = told(estimate_of(task, [partition]), target)
    return found


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
