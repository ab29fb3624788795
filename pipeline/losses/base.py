"""What every record loss offers, and the public numbers that it is built from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

import numpy as np

from pipeline.types import Vector


@dataclass(frozen=True, slots=True)
class Terms:
    """What a study file says about its loss; each loss reads what is its own.

    q, smoothing: Tail and ramp of generalised DWD; a smoothing of None lets the loss choose.
    noised: Whether slopes and curvatures will carry noise: they must then have public bounds, and
        the smaller these are the smaller the noise.
    residual_bound: Largest residual that a regression of a number counts in full, in units of the
        encoded response; None for the default.
    tau: Level of an expectile, in (0, 1).
    largest: Largest count that the public range allows, >= 1.
    """

    q: float = 1.0
    smoothing: float | None = None
    noised: bool = True
    residual_bound: float | None = None
    tau: float = 0.5
    largest: float = 1.0


#: What a response is: one of two classes (-1 or +1), a number on [-1, 1], or a count.
Kind = Literal["class", "number", "count"]


class Loss(Protocol):
    """A convex loss of one record, as a function of its linear predictor.

    All methods take the predictors (n,) and the responses (n,) and return (n,).
    """

    @property
    def name(self) -> str:
        """The name that a study file uses."""

    @property
    def responses(self) -> str:
        """The kind of response that it explains, a `Kind`."""

    @property
    def slope_bound(self) -> float:
        """Largest absolute slope over all predictors and responses: a public constant.

        Infinite for a loss that has none; such a loss cannot be released with noise.
        """

    @property
    def curvature_bound(self) -> float:
        """Largest curvature over all predictors and responses: a public constant."""

    @property
    def sharp_curvature_bound(self) -> float:
        """Largest second derivative without smoothing: what makes a majoriser of the loss."""

    @property
    def remainder(self) -> float:
        """How much a linearised score leaves out, as a multiple of the squared distance.

        Of a predictor u from the point t of its linearisation, relative to the curvature: about 1
        where curvature changes as fast as the predictor does, 0 where it is constant.
        """

    @property
    def start_curvature(self) -> float:
        """Public guess of a record's curvature per squared norm, for the very first step."""

    @property
    def start_intercept(self) -> float:
        """Public intercept of the first expansion point; its slopes are zero."""

    @property
    def start_slope_bound(self) -> float:
        """Largest absolute slope at the public start: a public constant, finite for every loss."""

    def value(self, predictor: Vector, response: Vector) -> Vector:
        """Return the loss of each record."""

    def slope(self, predictor: Vector, response: Vector) -> Vector:
        """Return the derivative of the loss in the predictor."""

    def curvature(self, predictor: Vector, response: Vector) -> Vector:
        """Return the second derivative, or its smoothed form; never negative."""

    def sharp_curvature(self, predictor: Vector, response: Vector) -> Vector:
        """Return the second derivative without smoothing; never released, so never noised."""


@runtime_checkable
class Bends(Protocol):
    """A loss whose slope and curvature are not largest together.

    So a record that moves one sum of a release as far as it can moves another one less.
    """

    def joint_bounds(self) -> tuple[Vector, Vector]:
        """Return upper bounds of |slope| and of curvature, in shares of their largest, (k,) each.

        Together the k pieces cover all predictors and responses: each record has one of which both
        bounds hold, up to the rounding of floats. So do all that are smaller.
        """


def joint_bounds(loss: Loss) -> tuple[Vector, Vector]:
    """As `Bends.joint_bounds`; of a loss that does not say better, both are 1."""
    return loss.joint_bounds() if isinstance(loss, Bends) else (np.ones(1), np.ones(1))


@runtime_checkable
class Likelihood(Loss, Protocol):
    """A loss that is a negative log-likelihood, so that its predictor means a probability."""

    def probability(self, predictor: Vector, response: Vector) -> Vector:
        """Return the probability of each response, given its predictor; shape (n,), in [0, 1]."""


@runtime_checkable
class Regression(Loss, Protocol):
    """A loss of numbers or counts, whose predictor means an expected response."""

    def start_slope(self, response: Vector) -> Vector:
        """Return the slopes at the public start, shape (n,), without any cut of residuals."""

    def intercept_of(self, slope: float, spread: float) -> float:
        """Return the intercept of the best model without features.

        slope: Mean slope at the public start, with noise.
        spread: Standard deviation of that noise.
        """

    def mean(self, predictor: Vector) -> Vector:
        """Return the expected encoded response of each predictor, shape (n,)."""
