"""The estimate on the wire, with where it comes from: JSON with a published schema."""

from __future__ import annotations

import math
from typing import Annotated, Literal

import msgspec
import numpy as np
from msgspec import Meta

from pipeline.errors import NumericError, PayloadError
from pipeline.estimators.estimate import Estimate
from pipeline.privacy.guarantee import Guarantee
from pipeline.release.task import Task
from pipeline.trust import check_plain

Finite = Annotated[float, Meta(description="a finite number")]


#: Numbers and text, lists of them, and lists of rows of them: nothing that could hold a record.
Plain = bool | int | float | str | None
Details = dict[str, Plain | list[Plain | dict[str, Plain]]]


class Coefficient(msgspec.Struct, frozen=True):
    """One coefficient on the study's scaling of the features, in the unit of the response.

    Errors and interval are null until "ready".

    value: The estimate.
    standard_error: Of all that varies: records and noise.
    interval: Its lower and upper end, at the study's level.
    sampling_se: Standard error of the records alone; null beside an interval, too, where the noise
        hides it: what was measured is no more than the noise alone.
    privacy_se: Standard error of the noise alone.
    step: What it is a change for, in words; empty for the intercept, and for a step of half the
        feature's range, or of its unit.
    kept: About which share of its size without the ridge it keeps, with the others fixed: what the
        ridge moves between features that go together is not in it. Null where the method does not
        know it.
    """

    name: str
    value: Finite
    standard_error: Finite | None
    interval: tuple[float, float] | None
    sampling_se: Finite | None
    privacy_se: Finite | None
    step: str = ""
    kept: Finite | None = None


class Position(msgspec.Struct, frozen=True):
    """How far the log of one partition has been folded: the next offset."""

    topic: str
    partition: int
    next_offset: Annotated[int, Meta(ge=0)]


class Diagnostics(msgspec.Struct, frozen=True):
    """Numbers that say how far to trust the estimate."""

    condition: Finite | None
    floored: Annotated[
        int, Meta(ge=0, description="combinations of features that the noise still hides")
    ]
    floor_active: Annotated[bool, Meta(description="whether `floored` is above 0")]
    effective_records: Annotated[
        Finite | None,
        Meta(
            description="record slots that count: as many new ones would be as precise; not those "
            "of epochs and windows that are left out, and less of what fades"
        ),
    ]
    privacy_share: Annotated[
        Finite | None,
        Meta(description="share of the variance due to privacy, median over coefficients"),
    ]
    staleness: Annotated[
        Finite | None,
        Meta(description="how many records late the models of releases were, on average"),
    ]
    missing: Annotated[int, Meta(ge=0, description="releases known to be missing")]
    duplicates: Annotated[int, Meta(ge=0, description="repeated releases, dropped")]
    dead_letters: Annotated[int, Meta(ge=0, description="releases set aside")]
    forgotten: Annotated[int, Meta(ge=0, description="releases too old to count")]
    erased: Annotated[int, Meta(ge=0, description="releases of erased clients, passed over")]
    largest_client_share: Annotated[
        Finite | None,
        Meta(description="largest share of one client in all releases that counted, in [0, 1]"),
    ] = None
    effective_share: Annotated[
        Finite | None, Meta(description="`effective_records` over `records`; null without either")
    ] = None


class ProgressMessage(msgspec.Struct, frozen=True):
    """How far the stream is on the way to an interval for every coefficient."""

    share: Annotated[Finite, Meta(description="in [0, 1]; 1 where all have one")]
    missing_records: Annotated[
        int | None,
        Meta(
            description="about so many more record slots, empty ones counted as they came; null "
            "while nobody can tell"
        ),
    ]
    records_per_second: Annotated[
        Finite | None,
        Meta(description="how fast they came in the last minutes, by the worker's clock"),
    ] = None
    seconds: Annotated[
        Finite | None, Meta(description="about so long until then, at that rate")
    ] = None


class EstimateMessage(msgspec.Struct, frozen=True, tag="estimate/1", tag_field="type"):
    """A live estimate with its provenance.

    records: Record slots behind it: with windows cut early, an upper bound of the records.
    class_weights: Weights of the two classes; empty for other responses.
    intervals: All intervals that the estimator has, by method, in the order of the coefficients;
        without those that some coefficient lacks, and empty until "ready".
    interval_needs: What each of them is read from, and what that costs one record, in words.
    dispersion: Residual variance of a linear regression, in the response's unit squared; variance
        over mean for counts; null for classes, and until it can be told from its noise.
    state_version: Log positions consumed in all partitions: it grows with the state, and the same
        version of the same watermark always means the same bits.
    model_version: The newest model that clients can have, made of this estimate where one went out
        with it; null while they are at the public start, and of a replay.
    watermark: The log positions that the estimate stands for; empty for a fit without Kafka.
    event_time: Time of the newest release in it; null before the first.
    ridge: Of the penalised fit that coefficients and intervals are of.
    target: What intervals hold, in words.
    progress: Towards intervals; null where the method has no measure of it.
    details: What else the method says; its page names the keys.
    """

    study: str
    study_revision: str
    estimator: str
    loss: str
    scaling: str
    coefficients: list[Coefficient]
    level: float
    interval_method: str
    intervals: dict[str, list[tuple[float, float]]]
    records: int
    releases: int
    clients: int
    class_weights: dict[str, float]
    dispersion: Finite | None
    privacy: Guarantee
    status: Literal["empty", "starting", "warming", "ready"]
    reason: str
    diagnostics: Diagnostics
    state_version: int
    model_version: int | None
    watermark: list[Position]
    event_time: str | None
    published_at: str
    interval_needs: dict[str, str] = {}
    ridge: float = 0.0
    target: str = ""
    progress: ProgressMessage | None = None
    details: Details = {}


def write_estimate(message: EstimateMessage) -> bytes:
    """Write an estimate as JSON; `compose` has seen to it that all numbers are finite."""
    return msgspec.json.encode(message)


def read_estimate(payload: bytes) -> EstimateMessage:
    """Read an estimate.

    Raises msgspec.DecodeError if the payload is none, or has characters that a terminal obeys.
    """
    try:
        check_plain(payload.rstrip(b"\n"))
    except PayloadError as error:
        raise msgspec.DecodeError(error.detail) from None
    try:
        return msgspec.json.decode(payload, type=EstimateMessage)
    except (UnicodeDecodeError, RecursionError):
        raise msgspec.DecodeError("it is no text, or nested too deeply") from None


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
    level, share = study.estimator.level, None
    if estimate.effective_records is not None and estimate.records:
        share = estimate.effective_records / estimate.records
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
            effective_share=_finite(share),
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


#: What estimates aim at, whichever records a method leaves out or lets fade.
COUNTED = "the fit to the records that count (diagnostics.effective_records)"


def target_of(ridge: float) -> str:
    """Return what coefficients and intervals are of, in words."""
    if ridge == 0:
        return f"{COUNTED} without a ridge"
    return (
        f"{COUNTED} penalised by ridge {ridge:.4g} (estimator.ridge); its slopes are smaller than "
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
        if errors is None or not ends or math.isnan(errors[0][i]):
            rows.append(Coefficient(name, value, None, None, None, None, step))
            continue
        total, sampling, privacy = (unit * float(part[i]) for part in errors)
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
