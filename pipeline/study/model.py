"""The study file as types: every key, its range, its meaning and an example.

Unknown keys are refused. The structs hold only what is public: ranges, bounds and budgets are
declared by people, never computed from data. The tables [study] and [data] are in `data`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta

from pipeline.errors import ConfigError
from pipeline.study.data import Data, Heading, Strict, columns_of, key
from pipeline.study.encoding import Encoding

#: The kind of a study that names none, and the one that refusals of other kinds propose. It stands
#: here by its name alone: no type of a study knows a method.
DEFAULT_KIND = "renewable"


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
            f'a method that runs live, such as "{DEFAULT_KIND}"; for `veilstream fit` also a '
            "published method",
            DEFAULT_KIND,
        ),
    ] = DEFAULT_KIND
    loss: Annotated[
        str,
        key(
            '"gdwd" (generalised DWD) or "logistic" for classes, "linear" or "expectile" for '
            'numbers, "poisson" for counts',
            "gdwd",
        ),
    ]
    q: Annotated[float, key("tail of gdwd, in [1e-6, 1000]", 1.0, ge=1e-6, le=1000)] = 1.0
    smoothing: Annotated[
        float | None, key("width of gdwd's released curvature: a larger one has less noise", 0.25)
    ] = None
    ridge: Annotated[
        float,
        key(
            "penalty per record, on all coefficients but the intercept; default 0, for gdwd 1e-3 "
            "and with noise as much as intervals need, and 1e-3 for sites and published methods",
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
    level: Annotated[float, key("confidence level, 0.01 to below 1", 0.95, ge=0.01, lt=1)] = 0.95
    path: Annotated[
        dict[str, Any] | None, key("a table with the steps of a path", "{ eta0 = 1.0 }")
    ] = None
    method: Annotated[
        dict[str, Any] | None, key("a table with the kind's own keys", "{ seed = 1 }")
    ] = None


#: Shares of gradient and curvature where a method has no better ones.
GRADIENT, CURVATURE = 0.665, 0.285


class Personal(Strict, frozen=True, kw_only=True):
    """`privacy.personal`: levels with an epsilon each, and which one a record asks for."""

    levels: Annotated[
        dict[
            Annotated[str, Meta(min_length=1, max_length=64)],
            Annotated[float, Meta(ge=0.0001, le=20)],
        ],
        key(
            "2 to 16 names with their epsilon in [1e-4, 20]; the largest is privacy.epsilon",
            "{ strict = 0.5, normal = 1.0 }",
            min_length=2,
            max_length=16,
        ),
    ]
    column: Annotated[
        Annotated[str, Meta(min_length=1)] | None,
        key(
            "the column with a record's level; default: none, and `produce --level` sets one "
            "level for all records of a client",
            "consent",
        ),
    ] = None

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the levels, the strictest first."""
        return tuple(sorted(self.levels, key=lambda name: (self.levels[name], name)))


def require_no_level_column(privacy: Privacy, doing: str) -> None:
    """Refuse a study in which a column says how private each record is.

    doing: What does not read it, such as "a backtest".

    Raises ConfigError if there is such a column.
    """
    personal = privacy.personal
    if personal is not None and personal.column is not None:
        raise ConfigError(
            f"privacy.personal.column: {doing} does not read levels of records; remove column, so "
            "that all have the strictest, or use `veilstream fit`"
        )


class Split(Strict, frozen=True, kw_only=True):
    """`privacy.split`: shares of the budget; what is not given follows from the others.

    None: what the method chooses.
    """

    gradient: Annotated[
        Annotated[float, Meta(gt=0, le=1)] | None,
        key("share of the gradient; default for renewable 0.9 with logistic, else 0.63", 0.9),
    ] = None
    curvature: Annotated[
        Annotated[float, Meta(gt=0, le=1)] | None,
        key(
            "share of the curvature; default for renewable: as much as no record can use up "
            "together with the others. If it is given and middle is not, no middle is released, "
            "and shares are scaled by their sum",
            0.285,
        ),
    ] = None
    middle: Annotated[
        Annotated[float, Meta(ge=0, le=1)] | None,
        key(
            "for renewable alone: share of the middle of the sandwich, the sum of outer products "
            "of the records' gradients; 0: not released; default 0.05",
            0.05,
        ),
    ] = None
    counts: Annotated[
        float, key("share of the class counts, or of the squared residuals", 0.05, gt=0, le=1)
    ] = 0.05

    def filled(self) -> Split:
        """Return the shares of a method that has gradient, curvature and counts alone."""
        gradient = GRADIENT if self.gradient is None else self.gradient
        curvature = CURVATURE if self.curvature is None else self.curvature
        return Split(gradient=gradient, curvature=curvature, counts=self.counts)

    @property
    def shares(self) -> dict[str, float]:
        """What is given, by name."""
        names = ("gradient", "curvature", "middle", "counts")
        return {name: v for name in names if (v := getattr(self, name)) is not None}


class Privacy(Strict, frozen=True, kw_only=True):
    """`[privacy]`: the policy that every release keeps."""

    mechanism: Annotated[
        Literal["discrete-gaussian", "discrete-laplace", "insecure-simulation", "none"],
        key(
            '"discrete-gaussian"; "discrete-laplace" for a pure epsilon without delta; '
            '"insecure-simulation" for seeded noise that protects nobody; "none" for no '
            "privacy",
            "discrete-gaussian",
        ),
    ]
    epsilon: Annotated[Annotated[float, Meta(ge=1e-4, le=20)] | None, key("in [1e-4, 20]", 1.0)] = (
        None
    )
    delta: Annotated[
        Annotated[float, Meta(gt=0, lt=0.5)] | None,
        key("in (0, 0.5); discrete-laplace has none", 1e-6),
    ] = None
    seed: Annotated[
        Annotated[int, Meta(ge=0, lt=2**62)] | None,
        key("of insecure-simulation, a whole number >= 0", 1),
    ] = None
    unit: Annotated[
        Literal["record", "user"], key('"record", or "user" with records', "record")
    ] = "record"
    records: Annotated[
        Annotated[int, Meta(ge=1, le=10**6)] | None,
        key('with unit = "user": the most records of one user in the whole study', 20),
    ] = None
    neighbours: Annotated[
        Literal["zero-out", "replace-one", "add-remove"],
        key('"zero-out" or "replace-one"', "zero-out"),
    ] = "zero-out"
    split: Annotated[
        Split | None,
        key(
            "shares of the budget for gradient, curvature, middle and counts; default: as the "
            "kind and its loss ask. For renewable one record cannot use up all of them: no record "
            "has both the largest slope and the largest curvature of its loss, so together they "
            "may be more than 1",
            "{}",
        ),
    ] = None
    noise_memory: Annotated[
        Literal[0, 7, "process"] | None,
        key(
            '7, 0 or "process". 7: the noise of a release remembers the last seven, so that it '
            'cancels in sums. 0: it is independent. "process": as 7, and what it remembers is '
            "never stored, so that each start begins anew. Default 7 for renewable with Gaussian "
            "noise and without forgetting, else 0",
            7,
        ),
    ] = None
    personal: Annotated[
        Personal | None,
        key(
            "for ldp-sgd: a table with levels, and the column that holds them",
            '{ column = "consent", levels = { strict = 0.5, normal = 1.0 } }',
        ),
    ] = None


class Window(Strict, frozen=True, kw_only=True):
    """`[window]`: which records make one release."""

    records: Annotated[
        int, key("slots of one window, and of the first where they grow", 250, ge=1, le=100_000)
    ]
    growth: Annotated[
        Annotated[float, Meta(ge=0, le=1)] | None,
        key(
            "0, or from 0 to 1, taken as the nearest one over a whole number (0.3 as 1/3): a "
            "window holds this share of what its client has released; default 0.1 for sums with "
            "noise, else 0",
            0.1,
        ),
    ] = None
    most: Annotated[
        Annotated[int, Meta(ge=1, le=10**7)] | None,
        key("slots of the largest window, where they grow; default 1000000", 1_000_000),
    ] = None
    seconds: Annotated[
        Annotated[float, Meta(gt=0)] | None,
        key("close a window after this long; empty slots count as null records", 60.0),
    ] = None

    @property
    def divisor(self) -> int | None:
        """One over growth, k: a window has one k-th of the slots before it; None: not given."""
        if not self.growth:
            return None if self.growth is None else 0
        return round(1 / self.growth)


class Publish(Strict, frozen=True, kw_only=True):
    """`stream.publish`: how often estimates go out, each with a model; more models go out between.

    Models follow growth and clients that wait, and nothing here holds them back.
    """

    releases: Annotated[int, key("after this many releases", 8, ge=1, le=10**6)] = 8
    seconds: Annotated[float, key("or after this long, if any came", 0.5, ge=0.05, le=3600)] = 0.5
    pause: Annotated[
        float,
        key(
            "but never sooner than this, in seconds, unless slots have grown by a tenth",
            0.1,
            ge=0,
            le=3600,
        ),
    ] = 0.1


class Stream(Strict, frozen=True, kw_only=True):
    """`[stream]`: topics and rhythm; nothing here changes what an estimate means."""

    partitions: Annotated[int, key("of the releases topic", 2, ge=1, le=1024)] = 2
    replication: Annotated[int, key("copies that Kafka keeps", 1, ge=1, le=10)] = 1
    retention: Annotated[
        str,
        key(
            'how long releases are kept: a number with s, m, h or d, or "forever"',
            "30d",
            pattern=r"^([1-9][0-9]{0,5}[smhd]|forever)\Z",
        ),
    ] = "30d"
    max_in_flight_windows: Annotated[
        Annotated[int, Meta(ge=0, le=10**6)] | None,
        key(
            "windows of a client that the newest model may lack, with the one that begins; a "
            "further one waits for a newer model; 0: never wait; default 2 where windows grow or "
            "noise has a memory, once there is a model, else 4",
            4,
        ),
    ] = None
    publish: Annotated[Publish, key("rhythm of estimates", "{ releases = 8 }")] = Publish()


class Rate(Strict, frozen=True, kw_only=True):
    """`trust.rate`: how many releases of one client count among the last of its partition."""

    releases: Annotated[
        int, key("releases of one client that count, fewer than `of`", 10, ge=1, le=1000)
    ]
    of: Annotated[
        int,
        key(
            ("counted among this many records of its partition, its own included"),
            1000,
            ge=2,
            le=10**9,
        ),
    ]


class LargestShare(Strict, frozen=True, kw_only=True):
    """`trust.largest_share`: how many of all releases may be of one client."""

    share: Annotated[float, key("share of one client in all releases, in (0, 1)", 0.25, gt=0, lt=1)]
    after: Annotated[
        int,
        key(
            "from this many releases of all clients on; until then each client has its share of "
            "this number",
            40,
            ge=1,
            le=10**9,
        ),
    ]


class Trust(Strict, frozen=True, kw_only=True):
    """`[trust]`: which releases count, and whose words are believed."""

    releases: Annotated[
        Literal["authenticated", "open"],
        key(
            '"authenticated": only releases of admitted clients count; "open": releases of '
            "anybody who can write to the topic count",
            "authenticated",
        ),
    ]
    key: Annotated[
        Annotated[str, Meta(pattern=r"^[0-9a-f]{128}\Z")] | None,
        key(
            "the study's public key, 128 hexadecimal digits, as `veilstream study keys` prints "
            "it; default: the first one that this folder hears of",
            "0" * 128,
        ),
    ] = None
    rate: Annotated[
        Rate | None,
        key(
            "how many releases of one client count among a number of records of its partition; "
            "default: all",
            "{ releases = 10, of = 1000 }",
        ),
    ] = None
    largest_share: Annotated[
        LargestShare | None,
        key(
            "the largest share of one client in all releases, for an authenticated study with "
            "noise and without forgetting; default: any",
            "{ share = 0.25, after = 40 }",
        ),
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
