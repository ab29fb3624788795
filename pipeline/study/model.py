"""The study file as types: every key, its range, its meaning and an example.

Unknown keys are refused. The structs hold only what is public: ranges, bounds and budgets are
declared by people, never computed from data.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from pipeline.study.modes import KIND_HELP, LDP_SGD, Kind, Reproduction
from pipeline.study.path import Path
from pipeline.study.personal import Personal


class Strict(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Base of all tables of a study file."""


class Heading(Strict, frozen=True, kw_only=True):
    """`[study]`: who is who."""

    name: Annotated[
        str,
        Meta(
            pattern=r"^[a-z0-9][a-z0-9-]{0,62}\Z",
            description="lower case letters, digits and hyphens, at most 63; names the topics",
            examples=["shuttle"],
        ),
    ]
    description: Annotated[str, Meta(description="one line for people", examples=["..."])] = ""


class Range(Strict, frozen=True, kw_only=True):
    """The public range of one feature, in its own unit; values beyond it are clipped."""

    min: Annotated[float, Meta(description="lower end, public", examples=[0.0])]
    max: Annotated[float, Meta(description="upper end, public, above min", examples=[100.0])]


class Response(Strict, frozen=True, kw_only=True):
    """`data.response`: the column to explain: one of two classes, a number, or a count."""

    name: Annotated[str, Meta(min_length=1, description="column name", examples=["anomaly"])]
    kind: Annotated[
        Literal["class", "number", "count"],
        Meta(
            description='"class" with positive and negative, "number" with min and max, or "count" '
            "with max",
            examples=["class"],
        ),
    ] = "class"
    positive: Annotated[
        str | None, Meta(description="the value that means yes", examples=["1"])
    ] = None
    negative: Annotated[str | None, Meta(description="the value that means no", examples=["0"])] = (
        None
    )
    min: Annotated[
        float | None,
        Meta(description="lower end of the public range of a number", examples=[0.0]),
    ] = None
    max: Annotated[
        float | None,
        Meta(description="upper end of the public range of a number or count", examples=[100.0]),
    ] = None

    @property
    def classes(self) -> tuple[str, str]:
        """The values that mean no and yes; empty texts if the response has no classes."""
        return self.negative or "", self.positive or ""

    @property
    def ends(self) -> tuple[float, float]:
        """The public range of a number or a count; (-1, 1) for classes."""
        if self.kind == "class":
            return -1.0, 1.0
        return self.min or 0.0, self.max or 0.0


class Data(Strict, frozen=True, kw_only=True):
    """`[data]`: the columns and their public ranges."""

    response: Annotated[
        Response,
        Meta(
            description="a table with name and two classes, or with kind and a public range",
            examples=['{ name = "anomaly", positive = "1", negative = "0" }'],
        ),
    ]
    features: Annotated[
        dict[Annotated[str, Meta(min_length=1)], Range],
        Meta(
            min_length=1,
            max_length=1000,
            description="one entry for each feature with its public range",
            examples=["sensor_1 = { min = 20, max = 120 }"],
        ),
    ]
    scaling: Annotated[
        Literal["unit", "none"],
        Meta(description='"unit": public range to [-1, 1]; "none": keep units', examples=["unit"]),
    ] = "unit"


class ClassWeights(Strict, frozen=True, kw_only=True):
    """`estimator.class_weights`: weigh each class by its noised share, up to a public maximum."""

    maximum: Annotated[
        float,
        Meta(ge=1, le=1000, description="largest weight, public", examples=[8.0]),
    ]


class Forgetting(Strict, frozen=True, kw_only=True):
    """`estimator.forgetting`: old releases weigh less, by half after each half-life."""

    half_life: Annotated[
        float,
        Meta(
            ge=1,
            le=1e15,
            description="a number in [1, 1e15], of records at least one window",
            examples=[50_000],
        ),
    ]
    of: Annotated[
        Literal["records", "seconds"],
        Meta(
            description='"records" of all clients together, or "seconds" of Kafka\'s own time',
            examples=["records"],
        ),
    ]


class Estimator(Strict, frozen=True, kw_only=True):
    """`[estimator]`: what is estimated and how."""

    kind: Annotated[
        Kind,
        Meta(description=KIND_HELP, examples=["renewable"]),
    ] = "renewable"
    loss: Annotated[
        str,
        Meta(
            description='"gdwd" (generalised DWD) or "logistic" for classes, "linear" or '
            '"expectile" for numbers, "poisson" for counts',
            examples=["gdwd"],
        ),
    ]
    q: Annotated[
        float,
        Meta(ge=1e-6, le=1000, description="tail of gdwd, in [1e-6, 1000]", examples=[1.0]),
    ] = 1.0
    smoothing: Annotated[
        float | None,
        Meta(description="half-width of gdwd's curvature ramp", examples=[0.25]),
    ] = None
    ridge: Annotated[
        float,
        Meta(ge=0, le=1e6, description="penalty per record, intercept free", examples=[1e-3]),
    ] = 1e-3
    norm_bound: Annotated[
        Annotated[float, Meta(gt=1, le=1e12)] | None,
        Meta(
            description="public bound of the norm of (1, features), in (1, 1e12]; longer records "
            "are shortened to it; default: the longest that the ranges allow",
            examples=[3.0],
        ),
    ] = None
    residual_bound: Annotated[
        Annotated[float, Meta(gt=0)] | None,
        Meta(
            description="of linear and expectile: the largest residual that counts in full, in the "
            "response's unit, public; default: the width of its range with privacy, none without",
            examples=[5.0],
        ),
    ] = None
    tau: Annotated[
        Annotated[float, Meta(gt=0, lt=1)] | None,
        Meta(description="of expectile: its level, in (0, 1); default 0.5", examples=[0.3]),
    ] = None
    noise_scale: Annotated[
        Annotated[float, Meta(gt=0)] | None,
        Meta(
            description="of linear: the standard deviation of the residuals where it is known, in "
            "the response's unit; default: estimated",
            examples=[2.0],
        ),
    ] = None
    class_weights: Annotated[
        ClassWeights | None,
        Meta(description="a table with maximum", examples=["{ maximum = 8.0 }"]),
    ] = None
    forgetting: Annotated[
        Forgetting | None,
        Meta(
            description="a table with half_life and of; default: nothing is forgotten",
            examples=['{ half_life = 50000, of = "records" }'],
        ),
    ] = None
    level: Annotated[
        float,
        Meta(gt=0, lt=1, description="confidence level, in (0, 1)", examples=[0.95]),
    ] = 0.95
    path: Annotated[
        Path | None,
        Meta(description="a table with the steps of ldp-sgd", examples=["{ eta0 = 1.0 }"]),
    ] = None
    reproduction: Annotated[
        Reproduction | None,
        Meta(description="a table with the keys of a published method", examples=["{ seed = 1 }"]),
    ] = None


class Split(Strict, frozen=True, kw_only=True):
    """`privacy.split`: shares of the budget; they are scaled to sum to one."""

    gradient: Annotated[
        float, Meta(gt=0, le=1, description="share of the gradient", examples=[0.7])
    ] = 0.7
    curvature: Annotated[
        float, Meta(gt=0, le=1, description="share of the curvature", examples=[0.25])
    ] = 0.25
    counts: Annotated[
        float,
        Meta(
            gt=0,
            le=1,
            description="share of the class counts, or of the squared residuals",
            examples=[0.05],
        ),
    ] = 0.05


class Privacy(Strict, frozen=True, kw_only=True):
    """`[privacy]`: the policy that every release keeps."""

    mechanism: Annotated[
        Literal["discrete-gaussian", "discrete-laplace", "insecure-simulation", "none"],
        Meta(
            description='"discrete-gaussian"; "discrete-laplace" for a pure epsilon without delta; '
            '"insecure-simulation" for seeded noise that protects nobody; "none" for no privacy',
            examples=["discrete-gaussian"],
        ),
    ]
    epsilon: Annotated[
        Annotated[float, Meta(ge=1e-4, le=20)] | None,
        Meta(description="in [1e-4, 20]", examples=[1.0]),
    ] = None
    delta: Annotated[
        Annotated[float, Meta(gt=0, lt=0.5)] | None,
        Meta(description="in (0, 0.5); discrete-laplace has none", examples=[1e-6]),
    ] = None
    seed: Annotated[
        Annotated[int, Meta(ge=0, lt=2**62)] | None,
        Meta(description="of insecure-simulation, a whole number >= 0", examples=[1]),
    ] = None
    unit: Annotated[
        Literal["record", "user"],
        Meta(description='"record", or "user" with records', examples=["record"]),
    ] = "record"
    records: Annotated[
        Annotated[int, Meta(ge=1, le=10**6)] | None,
        Meta(
            description="with unit user: the most records of one user in the whole study",
            examples=[20],
        ),
    ] = None
    neighbours: Annotated[
        Literal["zero-out", "replace-one", "add-remove"],
        Meta(description='"zero-out" or "replace-one"', examples=["zero-out"]),
    ] = "zero-out"
    split: Annotated[
        Split, Meta(description="shares of gradient, curvature and counts", examples=["{}"])
    ] = Split()
    personal: Annotated[
        Personal | None,
        Meta(
            description="of ldp-sgd: a table with levels, and the column that holds them",
            examples=['{ column = "consent", levels = { strict = 0.5, normal = 1.0 } }'],
        ),
    ] = None


class Window(Strict, frozen=True, kw_only=True):
    """`[window]`: which records make one release."""

    records: Annotated[
        int,
        Meta(ge=1, le=100_000, description="slots of one window, up to 100000", examples=[250]),
    ]
    seconds: Annotated[
        Annotated[float, Meta(gt=0)] | None,
        Meta(
            description="close a window after this long; empty slots count as null records",
            examples=[60.0],
        ),
    ] = None


class Publish(Strict, frozen=True, kw_only=True):
    """`stream.publish`: how often estimates and models go out."""

    releases: Annotated[
        int, Meta(ge=1, le=10**6, description="after this many releases", examples=[8])
    ] = 8
    seconds: Annotated[
        float,
        Meta(ge=0.05, le=3600, description="or after this long, if any came", examples=[0.5]),
    ] = 0.5
    pause: Annotated[
        float,
        Meta(ge=0, le=3600, description="but never sooner than this, in seconds", examples=[0.1]),
    ] = 0.1


class Stream(Strict, frozen=True, kw_only=True):
    """`[stream]`: topics and rhythm; nothing here changes what an estimate means."""

    partitions: Annotated[
        int, Meta(ge=1, le=1024, description="of the releases topic", examples=[2])
    ] = 2
    replication: Annotated[
        int, Meta(ge=1, le=10, description="copies that Kafka keeps", examples=[1])
    ] = 1
    retention: Annotated[
        str,
        Meta(
            pattern=r"^([1-9][0-9]{0,5}[smhd]|forever)\Z",
            description='how long releases are kept: a number with s, m, h or d, or "forever"',
            examples=["30d"],
        ),
    ] = "30d"
    lead: Annotated[
        int,
        Meta(
            ge=0,
            le=10**6,
            description="windows that a client may release at one model before it waits for a "
            "newer one; 0: never wait",
            examples=[4],
        ),
    ] = 4
    publish: Annotated[
        Publish, Meta(description="rhythm of estimates", examples=["{ releases = 8 }"])
    ] = Publish()


class Study(Strict, frozen=True, kw_only=True):
    """One estimation problem, as its file declares it."""

    study: Annotated[Heading, Meta(description="the table [study]", examples=["[study]"])]
    data: Annotated[Data, Meta(description="the table [data]", examples=["[data]"])]
    estimator: Annotated[
        Estimator, Meta(description="the table [estimator]", examples=["[estimator]"])
    ]
    privacy: Annotated[Privacy, Meta(description="the table [privacy]", examples=["[privacy]"])]
    window: Annotated[Window, Meta(description="the table [window]", examples=["[window]"])]
    stream: Annotated[Stream, Meta(description="the table [stream]", examples=["[stream]"])] = (
        Stream()
    )

    @property
    def name(self) -> str:
        """Name of the study."""
        return self.study.name

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Names of the features, in the order of the file."""
        return tuple(self.data.features)

    @property
    def coefficient_names(self) -> tuple[str, ...]:
        """Names of the coefficients: the intercept, then the features."""
        return ("intercept", *self.data.features)

    @property
    def path(self) -> Path | None:
        """The steps of gradient descent; None for every other kind of estimator."""
        if self.estimator.kind != LDP_SGD:
            return None
        return self.estimator.path or Path()

    @property
    def noised(self) -> bool:
        """Whether releases are noised; a simulation's are, and protect nobody."""
        return self.privacy.mechanism != "none"

    @property
    def private(self) -> bool:
        """Whether releases keep a guarantee."""
        return self.privacy.mechanism in {"discrete-gaussian", "discrete-laplace"}
