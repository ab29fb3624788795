"""The study file as types: every key, its range, its meaning and an example.

Unknown keys are refused. The structs hold only what is public: ranges, bounds and budgets are
declared by people, never computed from data. The table [estimator] is here, the others are in
`data_tables` and `release_tables`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta

from pipeline.study.data_tables import Data, Heading, Strict, key
from pipeline.study.encoding import Encoding
from pipeline.study.features import columns_of
from pipeline.study.release_tables import LargestShare, Privacy, Stream, Trust, Window

#: The kind of a study that names none.
LIVE = "renewable"


class ClassWeights(Strict, frozen=True, kw_only=True):
    """`estimator.class_weights`: weigh each class by its noised share, up to a public maximum."""

    maximum: Annotated[float, key("largest weight, public", 8.0, ge=1, le=1000)]


class Forgetting(Strict, frozen=True, kw_only=True):
    """`estimator.forgetting`: old releases weigh less, by half after each half-life."""

    half_life: Annotated[
        float,
        key(
            ("a number in [1, 1e15]; if counted in records, at least one window"),
            50_000,
            ge=1,
            le=1e15,
        ),
    ]
    of: Annotated[
        Literal["records", "seconds"],
        key(
            ('"records" of all clients together, or "seconds" by the times of releases in Kafka'),
            "records",
        ),
    ]


class Estimator(Strict, frozen=True, kw_only=True):
    """`[estimator]`: what is estimated and how."""

    kind: Annotated[
        str,
        key(
            f'a method that runs live, such as "{LIVE}"; for `veilstream fit` also a '
            "published method",
            LIVE,
        ),
    ] = LIVE
    loss: Annotated[
        str,
        key(
            '"gdwd" (generalised DWD) or "logistic" for classes, "linear" or "expectile" for '
            'numbers, "poisson" for counts',
            "gdwd",
        ),
    ]
    q: Annotated[float, key("tail of gdwd, in [1e-6, 1000]", 1.0, ge=1e-6, le=1000)] = 1.0
    smoothing: Annotated[float | None, key("half-width of gdwd's curvature ramp", 0.25)] = None
    ridge: Annotated[
        float,
        key(
            "penalty per record, on all coefficients but the intercept; default 1e-3, for "
            "classes with noise as much as intervals need, and 0 where a kind has none",
            1e-3,
            ge=0,
            le=1e6,
        ),
    ] = 1e-3
    norm_bound: Annotated[
        Annotated[float, Meta(gt=1, le=1e12)] | Literal["typical"] | None,
        key(
            "public bound of the norm of (1, features), in (1, 1e12]; longer records are "
            'shortened to it; "typical": the norm that 99 % of a public reference population '
            "keep; default: the longest that the ranges allow",
            3.0,
        ),
    ] = None
    residual_bound: Annotated[
        Annotated[float, Meta(gt=0)] | None,
        key(
            "for linear and expectile: the largest residual that counts in full, in the "
            "response's unit, public; default: the width of the response's range with privacy, "
            "none without",
            5.0,
        ),
    ] = None
    tau: Annotated[
        Annotated[float, Meta(gt=0, lt=1)] | None,
        key("for expectile: its level, in (0, 1); default 0.5", 0.3),
    ] = None
    noise_scale: Annotated[
        Annotated[float, Meta(gt=0)] | None,
        key(
            "for linear: the standard deviation of the residuals if it is known, in the "
            "response's unit; default: estimated",
            2.0,
        ),
    ] = None
    class_weights: Annotated[
        ClassWeights | None, key("a table with maximum", "{ maximum = 8.0 }")
    ] = None
    forgetting: Annotated[
        Forgetting | None,
        key(
            "a table with half_life and of, to give old releases less weight; default: nothing "
            "is forgotten",
            '{ half_life = 50000, of = "records" }',
        ),
    ] = None
    level: Annotated[float, key("confidence level, in (0, 1)", 0.95, gt=0, lt=1)] = 0.95
    path: Annotated[
        dict[str, Any] | None, key("a table with the steps of a path", "{ eta0 = 1.0 }")
    ] = None
    method: Annotated[
        dict[str, Any] | None, key("a table with the kind's own keys", "{ seed = 1 }")
    ] = None


class Study(Strict, frozen=True, kw_only=True):
    """One estimation problem, as its file declares it."""

    study: Annotated[Heading, key("the table [study]", "[study]")]
    data: Annotated[Data, key("the table [data]", "[data]")]
    estimator: Annotated[Estimator, key("the table [estimator]", "[estimator]")]
    privacy: Annotated[Privacy, key("the table [privacy]", "[privacy]")]
    window: Annotated[Window, key("the table [window]", "[window]")]
    stream: Annotated[Stream, key("the table [stream]", "[stream]")] = Stream()
    trust: Annotated[Trust | None, key("the table [trust]", "[trust]")] = None

    @property
    def name(self) -> str:
        """Name of the study."""
        return self.study.name

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Names of the features, in the order of the file."""
        return tuple(self.data.features)

    @property
    def encoding(self) -> Encoding:
        """How the features become columns."""
        unit = self.data.scaling == "unit"
        return Encoding(self.data.features, self.data.interactions, unit=unit)

    @property
    def coefficient_names(self) -> tuple[str, ...]:
        """Names of the coefficients: the intercept, then the columns of the features."""
        return ("intercept", *columns_of(self.data.features, self.data.interactions))

    @property
    def authenticated(self) -> bool:
        """Whether releases of admitted clients count alone; a file without [trust] says no."""
        return self.trust is not None and self.trust.releases == "authenticated"

    @property
    def largest_share(self) -> LargestShare | None:
        """How many of all releases may be of one client; None: any number."""
        return None if self.trust is None else self.trust.largest_share

    @property
    def noised(self) -> bool:
        """Whether releases are noised; a simulation's are, and protect nobody."""
        return self.privacy.mechanism != "none"

    @property
    def private(self) -> bool:
        """Whether releases keep a guarantee."""
        return self.privacy.mechanism in {"discrete-gaussian", "discrete-laplace"}
