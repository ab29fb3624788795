"""A window of a renewable study at its client: its sums, and the noise that they need."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pipeline.linalg import pack_upper
from pipeline.methods.renewable.summarise import (
    BoundedSums,
    Summary,
    local_fit,
    summarise,
    summarise_bounded,
)
from pipeline.records.encode import Arrays
from pipeline.release.model import COEFFICIENT_EXPONENT, COEFFICIENT_LIMIT, Model
from pipeline.release.query import MatrixPart, OpenQuery, Part, Query, VectorPart
from pipeline.types import Vector

if TYPE_CHECKING:
    from pipeline.methods.renewable.task import RenewableTask

#: No coefficient of an expansion point is larger: none of a published model is.
FURTHEST = COEFFICIENT_LIMIT * 2.0**COEFFICIENT_EXPONENT


def query(task: RenewableTask, window: Arrays, model: Model) -> Query:
    """As `Task.query`."""
    sums = summarise_bounded(task, window.features, window.responses, model)
    return query_of(task, sums)


def query_of(task: RenewableTask, sums: BoundedSums) -> Query:
    """Return bounded sums with the noise that each part needs."""
    channels, slots = task.channels(sums.model.version), task.slots
    parts: dict[str, Part] = {"gradient": VectorPart(sums.gradient, channels.gradient, slots)}
    for name, matrix, diagonal, beside in (
        ("curvature", sums.curvature, channels.curvature, channels.off_diagonal),
        ("middle", sums.middle, channels.middle, channels.middle_off_diagonal),
    ):
        if matrix is not None and diagonal and beside:
            parts[name] = MatrixPart(matrix, diagonal, beside, task.size, slots)
    if channels.counts is not None:
        parts["counts"] = VectorPart(sums.counts, channels.counts, slots)
    return Query(sums.model, parts)


def open_query(task: RenewableTask, window: Arrays, model: Model) -> OpenQuery:
    """As `Task.open_query`."""
    point = model.coefficients
    if model.version == 0 and len(window.responses):
        ridge = task.study.estimator.ridge
        point = local_fit(task.loss, window.features, window.responses, ridge)
        point = np.clip(point, -FURTHEST, FURTHEST)
    summary = summarise(task, window.features, window.responses, point, model.class_weights)
    return open_query_of(summary, model)


def open_query_of(summary: Summary, model: Model) -> OpenQuery:
    """Return sums of a study without privacy as a release holds them."""
    parts: dict[str, Vector] = {
        "gradient": summary.gradient,
        "curvature": pack_upper(summary.curvature),
        "scores": pack_upper(summary.scores),
        "counts": np.array(summary.counts, dtype=np.float64),
    }
    return OpenQuery(model, summary.records, summary.expansion, parts)
