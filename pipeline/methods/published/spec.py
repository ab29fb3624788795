"""The table [estimator.method] of each published method: strict, so that no key stands idle."""

from __future__ import annotations

from typing import Annotated, Literal, TypeVar

from msgspec import Meta

from pipeline.study.data import Strict, key
from pipeline.study.model import Study
from pipeline.study.tables import strict

Found = TypeVar("Found", bound="Spec")
Shape = Literal["intercept-free", "identity"]
#: The paper's text: intercept free in the gradient, identity in the curvature.
Printed = Literal["intercept-free", "identity", "as-printed"]

OneMatrix = Annotated[
    Shape,
    key(
        'R: "intercept-free" (default) or "identity"; where a fit converges, the printed '
        "curvature gives the same coefficients as intercept-free",
        "identity",
    ),
]
TwoMatrices = Annotated[
    Printed,
    key(
        'R: "intercept-free" (default), "identity", or "as-printed": intercept free in the '
        "gradient, identity in the curvature",
        "identity",
    ),
]
Epsilon = Annotated[float, key("the method's claim, in [1e-4, 20]", 0.8, ge=1e-4, le=20)]
Delta = Annotated[float, key("the method's claim, in (0, 0.5)", 1e-5, gt=0, lt=0.5)]
Seed = Annotated[int, key("of the simulated noise, a whole number", 1, ge=0, lt=2**62)]
_Bound = Annotated[float, Meta(gt=1, le=1e12)]
L2Bound = Annotated[
    _Bound | None,
    key(
        "C2, bound of the 2-norm of (1, features), in (1, 1e12]; longer records are clipped to "
        "it; default: the longest that the ranges allow",
        3.0,
    ),
]


class Spec(Strict, frozen=True, kw_only=True):
    """Of a method without keys."""


class Offline(Spec, frozen=True, kw_only=True):
    """Of a fit to all records that converges."""

    ridge_matrix: OneMatrix = "intercept-free"


class Undamped(Spec, frozen=True, kw_only=True):
    """Of literal steps from zero."""

    rounds: Annotated[int, key("steps from zero, 1 to 1000", 1, ge=1, le=1000)]
    ridge_matrix: TwoMatrices = "intercept-free"


class Online(Spec, frozen=True, kw_only=True):
    """Of one step for each batch."""

    ridge_matrix: TwoMatrices = "intercept-free"
    start: Annotated[
        Literal["fitted", "one-step"],
        key(
            '"fitted" (default): the first batch at its own fit; "one-step": from zero', "one-step"
        ),
    ] = "fitted"


class Trusted(Spec, frozen=True, kw_only=True):
    """Of an aggregator's noise."""

    epsilon: Epsilon
    seed: Seed
    ridge_matrix: TwoMatrices = "intercept-free"
    l2_bound: L2Bound = None
    step_bound: Annotated[
        float,
        key(
            "r, the assumed length of a step between two batches, in [0, 1e6]; default 0, "
            "which reproduces the tables",
            0.1,
            ge=0,
            le=1e6,
        ),
    ] = 0.0
    stabiliser: Annotated[
        float,
        key(
            "rho, added to the curvature in every batch, in [0, 1e12]; default 0",
            100.0,
            ge=0,
            le=1e12,
        ),
    ] = 0.0


class Laplace(Trusted, frozen=True, kw_only=True):
    """Of an aggregator's Laplace noise."""

    l1_bound: Annotated[_Bound | None, key("C1, as l2_bound but of the 1-norm", 4.0)] = None


class Gaussian(Trusted, frozen=True, kw_only=True):
    """Of an aggregator's Gaussian noise."""

    delta: Delta


class Distributed(Spec, frozen=True, kw_only=True):
    """Of noise that all clients add together."""

    epsilon: Epsilon
    delta: Delta
    seed: Seed
    ridge_matrix: OneMatrix = "intercept-free"
    l2_bound: L2Bound = None
    tolerated: Annotated[
        int,
        key(
            "clients that may drop out or collude, >= 0 and below their number; default 0",
            1,
            ge=0,
            le=10**6,
        ),
    ] = 0


def spec_of(study: Study, kind: type[Found]) -> Found:
    """Read the table [estimator.method] of a study; ConfigError names a key that is wrong."""
    return strict(study.estimator.method or {}, kind, at="estimator.method")
