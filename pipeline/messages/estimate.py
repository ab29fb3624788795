"""The estimate on the wire: JSON with a published schema, readable in any Kafka tool."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from pipeline.errors import PayloadError
from pipeline.privacy.policy import Guarantee
from pipeline.trust.signed import check_plain

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
        Meta(description="new record slots that would be as precise, where old ones fade"),
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
    model_version: The model that was published together with this estimate; null while clients are
        at the public start.
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
    """Write an estimate as JSON; `composing.compose` has seen to it that all numbers are finite."""
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
