"""One noised quantity: its lattice, its sensitivity and the scale of its noise."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from pipeline.errors import PrivacyError
from pipeline.privacy.discrete_gaussian import DiscreteGaussian
from pipeline.privacy.randomness import SecureStream
from pipeline.types import Integers

#: The noise has a standard deviation of at least 2^14 lattice units: fine enough that rounding
#: costs well under a percent of it, coarse enough that sums of releases stay far from overflow.
NOISE_BITS = 14
#: No released integer may reach this: sums over a fetch batch stay exact in int64 and float64.
INTEGER_LIMIT = 2**42


@dataclass(frozen=True, slots=True)
class Channel:
    """A vector of sums that leaves as noised integers on a public lattice.

    Attributes
    ----------
    exponent
        The lattice unit is 2^exponent.
    sensitivity
        L2 distance between neighbours, in real units, rounding to the lattice included.
    mu
        Share of the budget: the release of this vector alone is mu-GDP.
    sigma
        Standard deviation of the noise, in lattice units.
    """

    exponent: int
    sensitivity: float
    mu: float
    sigma: float

    @property
    def unit(self) -> float:
        """The lattice unit."""
        return math.ldexp(1.0, self.exponent)

    @property
    def standard_deviation(self) -> float:
        """Standard deviation of the noise, in real units."""
        return self.sigma * self.unit

    def round(self, integers: Integers, exponents: Integers) -> Integers:
        """Round integers[i] * 2^exponents[i] to the nearest lattice point, in lattice units.

        Integer arithmetic throughout, so two values differ after rounding by at most one unit
        more than before.

        Raises
        ------
        PrivacyError
            If a value does not fit: a public bound is far too large for its budget.
        """
        shift = np.minimum(self.exponent - exponents, 62)
        if np.any(np.abs(integers) >= np.ldexp(float(INTEGER_LIMIT), np.maximum(shift, -42))):
            raise PrivacyError(
                "a summary does not fit its lattice: lower window.records or the public bounds"
            )
        half = np.where(shift > 0, np.int64(1) << np.maximum(shift - 1, 0), 0)
        return np.where(
            shift > 0,
            (integers + half) >> np.maximum(shift, 0),
            integers << np.maximum(-shift, 0),
        )

    def off_diagonal(self) -> Channel:
        """Return the channel of a symmetric matrix's entries beside the diagonal.

        Each of them stands for two, so half the variance makes the noise isotropic in svec form.
        """
        continuous = (self.sigma**2 - 1 / 12) / 2
        return replace(self, sigma=math.sqrt(continuous + 1 / 12))

    def noise(self, count: int, stream: SecureStream) -> Integers:
        """Draw `count` independent discrete Gaussians, in lattice units."""
        return DiscreteGaussian(self.sigma).draw(count, stream)


def calibrate(sensitivity: float, rounding: float, mu: float) -> Channel:
    """Choose lattice and noise so that the release of a vector is mu-GDP.

    Parameters
    ----------
    sensitivity
        L2 distance between neighbours before rounding, > 0.
    rounding
        What rounding can add to that distance, in lattice units, >= 0.
    mu
        > 0.

    Notes
    -----
    Rounded to integers, a Gaussian of variance tau^2 is post-processing of the Gaussian mechanism.
    The discrete Gaussian of variance tau^2 + 1/12 has the same law up to a factor within
    exp(+-16 / sigma^4) per coordinate (docs/privacy/discrete-gaussian.md); `slack` pays for that.
    """
    if not (sensitivity > 0 and math.isfinite(sensitivity) and mu > 0):
        raise PrivacyError("sensitivity and mu must be finite and > 0")
    exponent = math.floor(math.log2(sensitivity / mu)) - NOISE_BITS
    unit = math.ldexp(1.0, exponent)
    whole = sensitivity + rounding * unit
    return Channel(exponent, whole, mu, math.sqrt((whole / unit / mu) ** 2 + 1 / 12))


def slack(samples: int, epsilon: float) -> tuple[float, float]:
    """Return what sampling costs a release of `samples` integers, as (epsilon, delta).

    The first part covers the difference between a discrete and a rounded Gaussian, the second the
    distance of the sampler from the exact law (module `discrete_gaussian`).
    """
    # beside the diagonal of a matrix the scale is 1 / sqrt 2 of the smallest
    smallest = 2.0 ** (NOISE_BITS - 0.5)
    distance = DiscreteGaussian(smallest).total_variation
    return 2 * samples * 16 / smallest**4, (1 + math.exp(epsilon)) * samples * 2 * distance
