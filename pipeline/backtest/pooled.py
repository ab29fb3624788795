"""The pooled fit without privacy that the intervals of a study aim at, over a history read anew.

It minimises the study's own loss over all usable records: the same clipping, shortening, weights
and ridge, and no noise. It starts at the fit of every k-th record, so that few passes over the
history suffice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from pipeline.estimators.estimate import Estimate
from pipeline.estimators.exact import exact_estimate, spread_of
from pipeline.estimators.objective import Rows
from pipeline.estimators.pooled import PASSES, study_rows, target
from pipeline.records.encode import Arrays
from pipeline.release.task import Task
from pipeline.types import Vector

#: Reads the usable records of the history from its start.
Read = Callable[[], Iterable[Arrays]]
#: Passes over a history that the start was fitted to a sample of, at most.
FEW = 40
#: Records of that sample, at most twice as many.
SAMPLE = 20_000


def pooled_estimate(task: Task, read: Read, count: int, weights: tuple[float, float]) -> Estimate:
    """Return the pooled fit on encoded features, with the intervals that it has itself.

    read: Called once for each pass.
    count: How many usable records there are, >= 1.
    weights: Of the negative and the positive class.

    Raises NumericError if there is no unique fit, or the passes do not suffice.
    """

    def rows() -> Iterable[Rows]:
        for part in read():
            yield study_rows(task, part.features, part.responses, weights)

    point = _point(task, rows, max(1, count // SAMPLE))
    return exact_estimate(task, point, spread_of(task.loss, rows, task.penalty, point), weights)


def _point(task: Task, rows: Callable[[], Iterable[Rows]], step: int) -> Vector:
    if step == 1:
        return target(task, rows, passes=PASSES).coefficients
    sample = [_every(part, start, step) for start, part in _numbered(rows())]
    near = target(task, lambda: sample).coefficients
    return target(task, rows, start=near, share=1e-3, passes=FEW).coefficients


def _numbered(parts: Iterable[Rows]) -> Iterable[tuple[int, Rows]]:
    start = 0
    for part in parts:
        yield start, part
        start += len(part.responses)


def _every(part: Rows, start: int, step: int) -> Rows:
    chosen = slice(-start % step, None, step)
    weights = None if part.weights is None else part.weights[chosen].copy()
    return Rows(part.design[chosen].copy(), part.responses[chosen].copy(), weights)
