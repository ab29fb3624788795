"""What the estimate of a study aims at, where all records can be seen: its own loss, no noise.

It is for comparison: nobody has the records of all clients in one place where it matters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from pipeline.estimators.objective import Rows
from pipeline.estimators.pooled import PASSES, Pooled, pooled_fit
from pipeline.release.task import Task
from pipeline.types import Matrix, Vector


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
