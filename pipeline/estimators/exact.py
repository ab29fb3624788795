"""The exact fit of a study to records that can all be read, with its intervals: no privacy.

It minimises what the private estimate aims at, so its intervals are what privacy is compared with:
M-estimation, theta +- z sqrt(diag(B^-1 M B^-1)) with B the curvature and M the sum of the scores'
products, both with the penalty in them (Huber 1967; Theorem 5.21 of van der Vaart 1998).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from pipeline.estimators.estimate import Estimate, class_weights, dispersion_of
from pipeline.estimators.objective import Read, Rows
from pipeline.estimators.pooled import study_rows, target
from pipeline.linalg import condition_number, sandwich
from pipeline.losses import Loss
from pipeline.records.encode import Arrays
from pipeline.release.task import Task
from pipeline.types import Matrix, Vector

#: How its intervals are made.
INTERVAL = "sandwich, all records at once"
#: Intervals need this many records for each coefficient.
RECORDS_PER_COEFFICIENT = 10
#: Records of a sample that a fit starts from, at most twice as many; and passes that it then takes.
SAMPLE, FEW = 20_000, 40


@dataclass(frozen=True, slots=True)
class Spread:
    """How precise a pooled fit is.

    covariance, bread: Of the coefficients, and the summed curvature with the penalty; shape (d, d).
    dispersion: Mean squared slope over mean curvature, as `Estimate` has it.
    records: How many rows there were.
    """

    covariance: Matrix
    bread: Matrix
    dispersion: float | None
    records: int


def spread_of(loss: Loss, read: Read, penalty: Vector, point: Vector) -> Spread:
    """Return the sandwich of a pooled fit, in one pass over the rows.

    Where a loss bends in a kink and features have few levels, many rows can lie at the kink at
    once; then estimates are not normal and intervals are too short (docs/methods/renewable.md).

    penalty, point: As given to `pooled_fit`, and as found by it; shape (d,).

    Raises NumericError if the rows do not determine all coefficients.
    """
    size, records = len(point), 0
    bread, meat = np.zeros((2, size, size))
    for part in read():
        design, predictor = part.design, part.design @ point
        weights = 1.0 if part.weights is None else part.weights
        scores = (weights * loss.slope(predictor, part.responses))[:, None] * design
        scores = scores + penalty * point
        bread += (design.T * (weights * loss.sharp_curvature(predictor, part.responses))) @ design
        meat += scores.T @ scores
        records += len(part.responses)
    bread += records * np.diag(penalty)
    # the intercept is first and has no penalty, so these are sums of squared slopes and curvatures
    dispersion = dispersion_of(float(meat[0, 0]), float(bread[0, 0]))
    return Spread(sandwich(bread, meat), bread, dispersion, records)


def exact_fit(task: Task, read: Callable[[], Iterable[Arrays]]) -> Estimate:
    """Fit a study to all its records, with intervals; `read` is called once for each pass.

    Raises NumericError if the records do not determine the coefficients; DataError if there is
    none.
    """
    records = positive = 0
    for part in read():
        records += int(np.count_nonzero(~np.isnan(part.responses)))
        positive += int(np.count_nonzero(part.responses > 0))
    weights = (1.0, 1.0)
    if task.classes:
        weights = class_weights(records - positive, positive, task.largest_weight)
    return counted_fit(task, read, records, weights)


def counted_fit(
    task: Task, read: Callable[[], Iterable[Arrays]], records: int, weights: tuple[float, float]
) -> Estimate:
    """Return the same of records that have been counted.

    Many of them are fitted from the fit of every k-th one on, so that few passes suffice.

    records: How many have a response.
    weights: Of the negative and the positive class.

    Raises NumericError as `exact_fit`, or if the passes do not suffice; DataError as it.
    """

    def rows() -> Iterator[Rows]:
        for part in read():
            known = ~np.isnan(part.responses)
            yield study_rows(task, part.features[known], part.responses[known], weights)

    step = records // SAMPLE
    if step < 2:
        point = target(task, rows).coefficients
    else:
        sample = list(_every(rows(), step))
        near = target(task, lambda: sample).coefficients
        point = target(task, rows, start=near, share=1e-3, passes=FEW).coefficients
    return exact_estimate(task, point, spread_of(task.loss, rows, task.penalty, point), weights)


def _every(parts: Iterable[Rows], step: int) -> Iterator[Rows]:
    """Yield every k-th of all rows, from the first one on."""
    start = 0
    for part in parts:
        chosen = slice(-start % step, None, step)
        weights = None if part.weights is None else part.weights[chosen].copy()
        yield Rows(part.design[chosen].copy(), part.responses[chosen].copy(), weights)
        start += len(part.responses)


def exact_estimate(
    task: Task, point: Vector, spread: Spread, weights: tuple[float, float]
) -> Estimate:
    """Return a pooled fit and its spread as an estimate; no noise has a part in its variance."""
    needed = RECORDS_PER_COEFFICIENT * task.size
    enough = spread.records >= needed
    return Estimate(
        coefficients=point,
        covariance=spread.covariance if enough else None,
        privacy_covariance=np.zeros_like(spread.covariance) if enough else None,
        weights=weights,
        status="ready" if enough else "warming",
        reason="" if enough else f"intervals need {needed} records; {spread.records} have come",
        records=spread.records,
        releases=0,
        condition=condition_number(spread.bread),
        effective_records=float(spread.records),
        dispersion=None if task.classes else spread.dispersion,
        interval=INTERVAL,
    )
