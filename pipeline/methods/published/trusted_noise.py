"""Noise of an aggregator that is trusted, as the paper scales it, and where that scale is empty.

Every batch adds one vector of noise per release of the coefficients. The scale comes from a bound
of the density ratio that spends T2 = 2 ln(1 + M C2^2 / (N lambda + rho)) on the determinant and
the rest on the exponent: nothing is left where T2 reaches epsilon, and no scale exists.
Source: dwd, Theorem 2, Condition 2 and eq. (45).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from pipeline.errors import PrivacyError
from pipeline.types import Vector

_PER_RELEASE = (
    "the stated budget is for one release, and losses add up over releases, because every later "
    "release holds the curvature of this batch without noise; the step between releases is "
    "assumed, not known, to be short; the server sees raw sums and must be trusted; class counts "
    "are released exactly"
)


class TrustedNoise(Protocol):
    """Noise that a trusted aggregator adds to the summed gradient of a batch."""

    @property
    def stabiliser(self) -> float:
        """Multiple rho >= 0 of the identity that is added to the curvature in every batch."""

    @property
    def bounds(self) -> tuple[float, float]:
        """Bounds to which (1, x) is clipped in its 1-norm and 2-norm; infinite for none."""

    def draw(
        self, rng: np.random.Generator, size: int, curvature_bound: float, penalty: float
    ) -> Vector:
        """Return noise, shape (size,); `penalty` is N lambda with N the records so far."""


@dataclass(frozen=True, slots=True)
class LaplaceNoise:
    """Independent Laplace noise, Algorithm 2.

    epsilon: Claimed for each release, > 0.
    l1_bound, l2_bound: Public bounds C1, C2 > 1 of the norms of (1, x); records are clipped to
        them.
    step_bound, stabiliser: r >= 0, the assumed length of theta_b - theta_{b-1}, C_{p-1} /
        sqrt(N_{b-1}) in the paper; and rho >= 0.
    """

    epsilon: float
    l1_bound: float
    l2_bound: float
    step_bound: float
    stabiliser: float

    @property
    def bounds(self) -> tuple[float, float]:
        """Clipping bounds in the 1-norm and the 2-norm."""
        return self.l1_bound, self.l2_bound

    @property
    def guarantee(self) -> str:
        """Say what Theorem 2 does not give."""
        return (
            f"not guaranteed over a stream: {_PER_RELEASE}; pure epsilon = {self.epsilon:g} does "
            "not hold for one release either, since the density ratio grows without bound in the "
            "released coefficients"
        )

    def scale(self, curvature_bound: float, penalty: float) -> float:
        """Return eta = T1 / (epsilon - T2); PrivacyError if T2 >= epsilon."""
        spent = determinant_loss(self.l2_bound, curvature_bound, penalty + self.stabiliser)
        if spent >= self.epsilon:
            raise PrivacyError(_refusal(spent, "epsilon", self.epsilon))
        reach = self.l1_bound * (1 + curvature_bound * self.l2_bound * self.step_bound)
        return 2 * reach / (self.epsilon - spent)

    def draw(
        self, rng: np.random.Generator, size: int, curvature_bound: float, penalty: float
    ) -> Vector:
        """Return Laplace noise, shape (size,)."""
        return rng.laplace(0.0, self.scale(curvature_bound, penalty), size)


@dataclass(frozen=True, slots=True)
class GaussianNoise:
    """Independent normal noise, Algorithm 2; as `LaplaceNoise`, with delta in (0, 1)."""

    epsilon: float
    delta: float
    l2_bound: float
    step_bound: float
    stabiliser: float

    @property
    def bounds(self) -> tuple[float, float]:
        """Clipping bounds in the 1-norm and the 2-norm."""
        return math.inf, self.l2_bound

    @property
    def guarantee(self) -> str:
        """Say what Theorem 2 does not give."""
        return (
            f"not guaranteed over a stream: (epsilon, delta) = ({self.epsilon:g}, {self.delta:g}) "
            f"is claimed, but {_PER_RELEASE}"
        )

    def scale(self, curvature_bound: float, penalty: float) -> float:
        """Return tau = Delta1 (sqrt(2 L) + sqrt(2 L + epsilon)) / epsilon, L = ln(1 / delta).

        PrivacyError if T2 > epsilon / 2.
        """
        spent = determinant_loss(self.l2_bound, curvature_bound, penalty + self.stabiliser)
        if spent > self.epsilon / 2 * (1 + 1e-12):  # rounding: the rho that solves it is allowed
            raise PrivacyError(_refusal(spent, "epsilon / 2", self.epsilon / 2))
        reach = 2 * self.l2_bound * (1 + curvature_bound * self.l2_bound * self.step_bound)
        twice = 2 * math.log(1 / self.delta)
        return reach * (math.sqrt(twice) + math.sqrt(twice + self.epsilon)) / self.epsilon

    def draw(
        self, rng: np.random.Generator, size: int, curvature_bound: float, penalty: float
    ) -> Vector:
        """Return normal noise, shape (size,)."""
        return rng.normal(0.0, self.scale(curvature_bound, penalty), size)


def determinant_loss(l2_bound: float, curvature_bound: float, least_eigenvalue: float) -> float:
    """Return T2, what the determinants of two neighbouring curvatures can differ by.

    `least_eigenvalue` is N lambda + rho, a lower bound of the eigenvalues; T2 is infinite at 0.
    """
    if least_eigenvalue <= 0:
        return math.inf
    return 2 * math.log1p(curvature_bound * l2_bound**2 / least_eigenvalue)


def least_stabiliser(epsilon: float, l2_bound: float, curvature_bound: float) -> float:
    """Return the least rho with T2 <= epsilon / 2, ridge or not: the Gaussian scale needs it."""
    return curvature_bound * l2_bound**2 / math.expm1(epsilon / 4)


def _refusal(spent: float, name: str, allowed: float) -> str:
    return (
        f"no noise scale exists: the curvature alone spends T2 = {spent:.3g} of {name} = "
        f"{allowed:.3g}; a larger stabiliser or epsilon, more records or a smaller l2_bound are "
        "needed"
    )
