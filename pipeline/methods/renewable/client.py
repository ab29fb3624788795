"""A window of a renewable study at its client: its sums, and the noise that they need."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pipeline.linalg import pack_upper
from pipeline.local.encode import Arrays
from pipeline.local.model import Model
from pipeline.local.query import MatrixPart, OpenQuery, Part, Query, VectorPart
from pipeline.methods.renewable.summarise import (
    BoundedSums,
    Summary,
    local_fit,
    summarise,
    summarise_bounded,
)

if TYPE_CHECKING:
    from pipeline.methods.renewable.plan import RenewablePlan


def query(plan: RenewablePlan, window: Arrays, model: Model) -> Query:
    """As `Plan.query`."""
    sums = summarise_bounded(plan, window.features, window.responses, model)
    return query_of(plan, sums)


def query_of(plan: RenewablePlan, sums: BoundedSums) -> Query:
    """Return bounded sums with the noise that each part needs."""
    channels, slots = plan.channels(sums.model.version), plan.slots
    parts: dict[str, Part] = {"gradient": VectorPart(sums.gradient, channels.gradient, slots)}
    if sums.curvature is not None and channels.curvature and channels.beside:
        parts["curvature"] = MatrixPart(
            sums.curvature, channels.curvature, channels.beside, plan.size, slots
        )
    if channels.counts is not None:
        parts["counts"] = VectorPart(sums.counts, channels.counts, slots)
    return Query(sums.model, parts)


def open_query(plan: RenewablePlan, window: Arrays, model: Model) -> OpenQuery:
    """As `Plan.open_query`."""
    point = model.coefficients
    if model.version == 0 and len(window.responses):
        ridge = plan.study.estimator.ridge
        point = local_fit(plan.loss, window.features, window.responses, ridge)
    summary = summarise(plan, window.features, window.responses, point, model.class_weights)
    return open_query_of(summary, model)


def open_query_of(summary: Summary, model: Model) -> OpenQuery:
    """Return the sums of a window of a study without privacy as its release holds them."""
    parts = {
        "gradient": summary.gradient,
        "curvature": pack_upper(summary.curvature),
        "scores": pack_upper(summary.scores),
        "counts": np.array(summary.counts, dtype=np.float64),
    }
    return OpenQuery(model, summary.records, summary.expansion, parts)
