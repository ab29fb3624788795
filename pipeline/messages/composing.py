"""From an estimate and where it comes from to the message that says both."""

from __future__ import annotations

import math

import msgspec
import numpy as np

from pipeline.errors import NumericError
from pipeline.estimators.estimate import Estimate
from pipeline.messages.estimate import (
    Coefficient,
    Diagnostics,
    EstimateMessage,
    Position,
    ProgressMessage,
)
from pipeline.release.task import Task


class Provenance(msgspec.Struct, frozen=True):
    """What goes into a message with the estimate."""

    clients: int
    missing: int
    duplicates: int
    dead_letters: int
    model_version: int | None
    watermark: list[Position]
    event_time: str | None
    published_at: str
    forgotten: int = 0
    erased: int = 0
    largest_client_share: float | None = None
    records_per_second: float | None = None


def compose(task: Task, estimate: Estimate, provenance: Provenance) -> EstimateMessage:
    """Join an estimate with where it comes from and what it promises.

    NumericError if a coefficient is not a finite number: JSON has no word for it.
    """
    if not np.all(np.isfinite(estimate.coefficients)):
        raise NumericError("the estimate holds a number that is not finite")
    study = task.study
    negative, positive = estimate.weights
    level = study.estimator.level
    whole = [n for n, width in (estimate.widths or {}).items() if np.isfinite(width(level)).all()]
    return EstimateMessage(
        study=study.name,
        study_revision=task.revision,
        estimator=study.estimator.kind,
        loss=study.estimator.loss,
        scaling=study.data.scaling,
        coefficients=coefficients_of(task, estimate),
        level=study.estimator.level,
        interval_method=estimate.interval,
        intervals={name: _ends(task, estimate, name) for name in whole},
        interval_needs={name: estimate.needs[name] for name in whole},
        records=estimate.records,
        releases=estimate.releases,
        clients=provenance.clients,
        class_weights={"negative": negative, "positive": positive} if task.classes else {},
        dispersion=_dispersion(task, estimate),
        privacy=task.budget.guarantee,
        status=estimate.status,
        reason=estimate.reason,
        diagnostics=Diagnostics(
            condition=_finite(estimate.condition),
            floored=estimate.floored,
            floor_active=estimate.floored > 0,
            effective_records=_finite(estimate.effective_records),
            privacy_share=_finite(estimate.privacy_share),
            staleness=_finite(estimate.staleness),
            missing=provenance.missing,
            duplicates=provenance.duplicates,
            dead_letters=provenance.dead_letters,
            forgotten=provenance.forgotten,
            erased=provenance.erased,
            largest_client_share=provenance.largest_client_share,
        ),
        state_version=sum(position.next_offset for position in provenance.watermark),
        model_version=provenance.model_version,
        watermark=provenance.watermark,
        event_time=provenance.event_time,
        published_at=provenance.published_at,
        ridge=study.estimator.ridge,
        target=target_of(study.estimator.ridge),
        progress=_progress(estimate, provenance.records_per_second),
        details=dict(estimate.details),
    )


def target_of(ridge: float) -> str:
    """Return what coefficients and intervals are of, in words."""
    if ridge == 0:
        return "the fit without a ridge"
    return (
        f"the fit penalised by ridge {ridge:.4g} (estimator.ridge); its slopes are smaller than "
        "those of the fit without it"
    )


def coefficients_of(task: Task, estimate: Estimate) -> list[Coefficient]:
    """Return the rows of the coefficients, with errors and intervals where there are any."""
    errors = estimate.standard_errors()
    ends = _ends(task, estimate)
    unit, values = task.response_scale[1], task.in_units(estimate.coefficients).tolist()
    rows = []
    named = zip(task.study.coefficient_names, values, task.steps, strict=True)
    for i, (name, value, step) in enumerate(named):
        if errors is None or not ends:
            rows.append(Coefficient(name, value, None, None, None, None, step))
            continue
        total, sampling, privacy = (unit * float(part[i]) for part in errors)
        if math.isnan(total):
            rows.append(Coefficient(name, value, None, None, None, None, step))
            continue
        kept = None if estimate.kept is None else _finite(estimate.kept[i])
        known = sampling or None
        rows.append(Coefficient(name, value, total, ends[i], known, privacy, step, kept))
    return rows


def _ends(task: Task, estimate: Estimate, method: str | None = None) -> list[tuple[float, float]]:
    """Return intervals in the response's unit, by default those shown; none before the first."""
    found = estimate.intervals(task.study.estimator.level, method)
    if found is None:
        return []
    low, high = map(task.in_units, found)
    return list(zip(low.tolist(), high.tolist(), strict=True))


def _dispersion(task: Task, estimate: Estimate) -> float | None:
    known = task.study.estimator.noise_scale
    if known is not None:
        return known * known
    if estimate.dispersion is None:
        return None
    return _finite(task.response_scale[1] ** 2 * estimate.dispersion)


def _progress(estimate: Estimate, rate: float | None) -> ProgressMessage | None:
    found = estimate.progress
    if found is None:
        return None
    seconds = None if found.records is None or not rate else found.records / rate
    return ProgressMessage(found.share, found.records, rate, seconds)


def _finite(value: float | None) -> float | None:
    # a number of numpy's own would have no encoder
    return float(value) if value is not None and math.isfinite(value) else None
