"""The one reference solver: what minimises a penalised loss over rows that can all be read.

The losses may have no curvature at the start and jumps in their second derivative, so this is a
Newton method on the generalised Hessian, held by a share of the majoriser: with all of it every
step descends, and the share falls tenfold with every step that does, so that the end is a plain
Newton method. It needs sums alone: rows are read anew for each pass, and memory does not grow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from pipeline.errors import NumericError
from pipeline.estimators.objective import Objective, Read, Rows
from pipeline.linalg import solve_positive
from pipeline.losses import Loss
from pipeline.release.task import Task
from pipeline.types import Matrix, Vector

#: Score at which a fit has converged: divided by the least curvature per record it bounds the
#: error of the coefficients.
TOLERANCE = 1e-10
#: Passes over the rows, at most.
PASSES = 500
#: The share of the majoriser never falls below this, so that no matrix is singular.
LEAST_SHARE = 1e-12
#: Beyond this one, no step descends that rounding could tell.
MOST_SHARE = 1e6


@dataclass(frozen=True, slots=True)
class Pooled:
    """A pooled fit: coefficients (d,), Newton steps taken, and the score that is left."""

    coefficients: Vector
    steps: int
    score: float


def pooled_fit(
    loss: Loss,
    read: Read,
    penalty: Vector,
    *,
    start: Vector | None = None,
    share: float = 1.0,
    passes: int = PASSES,
    tolerance: float = TOLERANCE,
) -> Pooled:
    """Minimise (sum w V) / n + penalty' theta^2 / 2 over rows.

    read: Called once for each pass.
    penalty: For each coefficient, >= 0, shape (d,).
    start, share: Where to begin, by default at zero, and with which share of the majoriser: a start
        that is near the end needs little.
    tolerance: Of the score of the result.

    Raises NumericError if there is no unique minimiser (one class only, collinear columns or
    separable classes, where no penalty helps), or the passes do not suffice; DataError if there is
    no row.
    """
    objective = Objective(loss, read, penalty)
    here, steps = objective.at(np.zeros(len(penalty)) if start is None else start), 0
    objective.require_a_minimiser()
    for _ in range(passes):
        objective.refuse_endless(here)
        if here.score <= tolerance:
            if here.flat:
                raise NumericError(
                    "the fit has no curvature in some direction (few records, or classes separable "
                    "but for ties): estimator.ridge > 0 or more records are needed"
                )
            return Pooled(here.point, steps, here.score)
        held = here.curvature + share * objective.majoriser
        trial = objective.at(here.point - solve_positive(held, here.gradient))
        if here.descends(trial):
            here, share, steps = trial, max(share / 10, LEAST_SHARE), steps + 1
        elif share > MOST_SHARE:
            break
        else:
            share *= 10
    raise NumericError(
        f"the pooled fit did not converge in {passes} passes: one class alone, classes that are "
        "nearly separable, or features that are nearly collinear; a larger estimator.ridge is "
        "needed"
    )


def target(
    task: Task,
    read: Callable[[], Iterable[Rows]],
    *,
    start: Vector | None = None,
    share: float = 1.0,
    passes: int = PASSES,
) -> Pooled:
    """Return the pooled fit of a study to rows of `study_rows`, on encoded features.

    start: By default the public start of the study; the rest is as in `pooled_fit`.

    Raises NumericError if the records do not determine it; DataError if there is none.
    """
    begin = task.first_model.coefficients if start is None else start
    return pooled_fit(task.loss, read, task.penalty, start=begin, share=share, passes=passes)


def study_rows(
    task: Task, features: Matrix, responses: Vector, weights: tuple[float, float] = (1.0, 1.0)
) -> Rows:
    """Return records as clients see them: clipped, or weighted by their length.

    features, responses: Shapes (n, p) and (n,), encoded.
    weights: Of the negative and the positive class.
    """
    design, weight = task.reference_rows(features, responses, weights)
    return Rows(design, responses, weight)
