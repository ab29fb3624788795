"""The tables [privacy], [window] and [stream]: what a release keeps, holds, and when it goes."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from pipeline.study.data_tables import Strict
from pipeline.study.personal import Personal


class Split(Strict, frozen=True, kw_only=True):
    """`privacy.split`: shares of the budget; they are scaled to sum to one."""

    gradient: Annotated[
        float, Meta(gt=0, le=1, description="share of the gradient", examples=[0.665])
    ] = 0.665
    curvature: Annotated[
        float, Meta(gt=0, le=1, description="share of the curvature", examples=[0.285])
    ] = 0.285
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
        Split | None,
        Meta(
            description="shares of gradient, curvature and counts; default 0.665, 0.285 and 0.05, "
            "and of single records 0.95 and 0.05 where they release a curvature",
            examples=["{}"],
        ),
    ] = None
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
    max_in_flight_windows: Annotated[
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
