"""Mechanisms split a budget; a channel is a lattice, a sensitivity and the noise of both.

The mechanisms of a study: how each divides a budget, and how it makes channels.

A release has several parts (gradient, curvature, counts). Under Gaussian noise their mus add up as
squares, under Laplace noise their epsilons add up.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar, Protocol

import numpy as np

from pipeline.errors import PrivacyError
from pipeline.privacy import accounting as gdp
from pipeline.privacy import memory
from pipeline.privacy.events import Event, Gaussian, NonPrivate, Pure
from pipeline.privacy.randomness import SecureStream, SimulatedGaussian
from pipeline.privacy.samplers import LARGEST_SIGMA, DiscreteGaussian, DiscreteLaplace
from pipeline.privacy.sensitivity import Order
from pipeline.types import Integers

#: The noise has a scale of at least 2^14 lattice units: fine enough that the discrete law is as
#: good as the continuous one, coarse enough that sums of releases stay far from overflow.
NOISE_BITS = 14
#: Rounding to the lattice adds at most this share to the sensitivity, as far as the noise has a
#: scale of at most 2^34 lattice units: beyond, 64 scales would come close to the limit below.
ROUNDING_SHARE = 1 / 256
LARGEST_BITS = 34
#: The same where noise remembers: its draws are 2^11 times finer, and have scales below 2^40 where
#: a unit is rounded down to a power of two.
LARGEST_BITS_REMEMBERED = 27
#: Mass of a discrete Gaussian beyond 12 sigma, of all draws that one record meets in a number.
BEYOND = memory.TOUCHED * 4e-33
#: No released integer may reach this: sums over a fetch batch stay exact in int64 and float64.
INTEGER_LIMIT = 2**42


class Noise(Protocol):
    """Integer noise of mean zero."""

    @property
    def standard_deviation(self) -> float:
        """Standard deviation, in lattice units."""

    @property
    def reach(self) -> float:
        """What a draw practically never passes, in lattice units."""

    def scaled(self, factor: float) -> Noise:
        """Return the same noise with another scale."""

    def draw(self, count: int, stream: SecureStream) -> Integers:
        """Return `count` independent draws, int64 of shape (count,)."""


@dataclass(frozen=True, slots=True)
class Channel:
    """A vector of sums that leaves as noised integers on a public lattice.

    exponent: The lattice unit is 2^exponent.
    sensitivity: Distance between neighbours in the mechanism's norm, in real units, rounding
        included.
    noise: What is added, in lattice units; where it remembers what it is made of, in units of 2^-11
        of the lattice.
    remembers: Whether the noise of a release depends on those before it: `pipeline.privacy.memory`.
    """

    exponent: int
    sensitivity: float
    noise: Noise
    remembers: bool = False

    @property
    def unit(self) -> float:
        """The lattice unit."""
        return math.ldexp(1.0, self.exponent)

    @property
    def standard_deviation(self) -> float:
        """Standard deviation of the noise, in real units.

        Where it remembers, that of a release whose noise were independent at the same cost.
        """
        return self.noise.standard_deviation * self.unit / self._finer

    def round(self, integers: Integers, exponents: Integers) -> Integers:
        """Round integers[i] * 2^exponents[i] to the nearest lattice point, in lattice units.

        Integer arithmetic throughout, so two values differ after rounding by at most one unit more
        than before. Raises PrivacyError if a value does not fit: a public bound is far too large
        for its budget.
        """
        shift = self.exponent - exponents
        down, up = np.maximum(np.minimum(shift, 62), 0), np.minimum(np.maximum(-shift, 0), 42)
        whole, limit = integers >> down, INTEGER_LIMIT >> up
        # both ends, as the least int64 has no absolute value
        if (whole >= limit).any() or (whole <= -limit).any():
            raise PrivacyError(
                "a summary does not fit its lattice: lower window.records or the public bounds"
            )
        half = (1 << down) >> 1
        rounded: Integers = ((integers + half) >> down) << up
        return rounded

    def largest(self, slots: int) -> float:
        """Return an upper bound of every integer that a release of `slots` records can hold."""
        reach = self.noise.reach / self._finer * (memory.LARGEST if self.remembers else 1.0)
        return slots * self.per_slot + 1 + reach

    @property
    def per_slot(self) -> float:
        """What one record slot more adds to `largest`."""
        return self.sensitivity / self.unit

    @property
    def _finer(self) -> float:
        return memory.NORM * 2**memory.BITS if self.remembers else 1.0

    def noised(
        self, lattice: Integers, slots: int, stream: SecureStream, rows: Integers | None = None
    ) -> tuple[Integers, Integers | None]:
        """Add noise to the lattice integers of a window of at most `slots` records.

        Noise has no end, integers have: what would pass the public bound is cut to it. That is
        post-processing, and happens less than once in 10^27 numbers. What noise remembers is kept
        as it was before that.

        rows: The last seven rows of noise of these numbers, shape (7, m), where it remembers.

        Returns: The noised integers, and the rows behind them where there are any.
        """
        if self.remembers != (rows is not None):
            raise PrivacyError("noise that remembers needs the rows before it, and no other does")
        bound = math.floor(self.largest(slots))
        noise = self.noise.draw(len(lattice), stream)
        if rows is not None:
            noise, rows = memory.advanced(rows, noise)
        total = lattice + noise
        within: Integers = np.minimum(np.maximum(total, -bound), bound)
        return within, rows

    def off_diagonal(self) -> Channel:
        """Return the channel of a symmetric matrix's entries beside the diagonal.

        They count sqrt 2 times in the norm of the svec form: noise with a scale of 1 / sqrt 2 is
        isotropic there.
        """
        return replace(self, noise=self.noise.scaled(math.sqrt(0.5)))

    def stricter(self, factor: float) -> Channel:
        """Return the channel on the same lattice whose budget is smaller by a factor >= 1."""
        # a hair more, for the rounding of this division and of the scales
        return replace(self, noise=self.noise.scaled(factor * (1 + 2.0**-50)))


def gaussian(sensitivity: float, rounding: float, mu: float, *, remembers: bool = False) -> Channel:
    """Choose lattice and noise so that the release of a vector is mu-GDP.

    sensitivity: L2 distance between neighbours before rounding, > 0.
    rounding: What rounding can add to that distance, in lattice units, >= 0.
    mu: > 0.
    remembers: Whether noise depends on the releases before: the whole sequence is then mu-GDP for a
        record of one of them, since draws have |c| times the scale.

    Rounded to integers, a Gaussian of variance tau^2 is post-processing of the Gaussian mechanism.
    The discrete Gaussian of variance tau^2 + 1/12 has the same law up to a factor within
    exp(+-16 / sigma^4) per coordinate (docs/privacy/discrete-gaussian.md); `slack` pays for that.
    """
    bits = LARGEST_BITS_REMEMBERED if remembers else LARGEST_BITS
    exponent, whole = _lattice(sensitivity, rounding, mu, bits)
    # a few units in the last place more, for the rounding of this division and of the sampler's
    # own scales
    scale = whole / math.ldexp(1.0, exponent) / mu * (1 + 2.0**-50)
    if remembers:
        scale *= memory.NORM * 2**memory.BITS * (1 + 2.0**-50)
        if scale >= LARGEST_SIGMA:
            raise PrivacyError(
                "privacy.noise_memory: the noise of so small a budget is too large for noise that "
                "remembers; set noise_memory = 0"
            )
    noise = DiscreteGaussian(math.hypot(scale, math.sqrt(1 / 12)))
    return Channel(exponent, whole, noise, remembers)


def laplace(sensitivity: float, rounding: float, epsilon: float) -> Channel:
    """Choose lattice and noise so that the release of a vector is epsilon-differentially private.

    sensitivity, rounding: As for `gaussian`, in the L1 norm.
    epsilon: > 0.

    Exact: the ratio of two discrete Laplace laws at L1 distance D is at most exp(D / scale).
    """
    exponent, whole = _lattice(sensitivity, rounding, epsilon, LARGEST_BITS)
    # a few units in the last place more, for the rounding of this very division
    scale = whole / math.ldexp(1.0, exponent) / epsilon * (1 + 2.0**-50)
    return Channel(exponent, whole, DiscreteLaplace(scale))


def slack(samples: int, epsilon: float) -> tuple[float, float]:
    """Return what a release of `samples` discrete Gaussians pays, as (epsilon, delta).

    The first part covers the difference between a discrete and a rounded Gaussian up to 12 sigma,
    the second what lies beyond; see `continuous` for how they enter. Where noise remembers, a
    record meets eight draws of each number. They are 2,684 times as fine, so that all eight differ
    by less than one of these; of what lies beyond there is eight times as much.
    """
    # beside the diagonal of a matrix the scale is 1 / sqrt 2 of the smallest
    smallest = 2.0 ** (NOISE_BITS - 0.5)
    return 2 * samples * 16 / smallest**4, (1 + math.exp(min(epsilon, 700.0))) * samples * BEYOND


def continuous(epsilon: float, delta: float, lost: tuple[float, float]) -> tuple[float, float]:
    """Return the budget of the rounded Gaussian whose discrete stand-in keeps (epsilon, delta).

    Where each law is within a factor e^a of the other, (epsilon, delta) turns into
    (epsilon + 2 a, e^a delta); `lost` holds 2 a and what is outside the factor's range.
    """
    return epsilon - lost[0], (delta - lost[1]) * math.exp(-lost[0] / 2)


def _lattice(sensitivity: float, rounding: float, budget: float, bits: int) -> tuple[int, float]:
    """Return the exponent of the unit, and the sensitivity with rounding.

    bits: Of the largest scale that noise can have in units of the lattice.
    """
    if not (0 < sensitivity < math.inf and 0 <= rounding < math.inf and 0 < budget < math.inf):
        raise PrivacyError("sensitivity, rounding and budget must be finite and > 0")
    unit = math.ldexp(sensitivity / budget, -NOISE_BITS)
    if rounding:
        unit = min(unit, sensitivity * ROUNDING_SHARE / rounding)
        unit = max(unit, math.ldexp(sensitivity / budget, -bits))
    if not 2.0**-900 < unit < 2.0**900:
        raise PrivacyError(
            f"sensitivity: {sensitivity:.3g} is too small or too large for any lattice; "
            "the operator must choose other public ranges or bounds"
        )
    exponent = math.floor(math.log2(unit))
    return exponent, sensitivity + rounding * math.ldexp(1.0, exponent)


#: Share of epsilon that the difference of discrete and continuous noise may take, far below what
#: accounting can see.
DISCRETE_SHARE = 1e-7


class Mechanism(Protocol):
    """One way of noising the parts of a release.

    order: The norm in which it wants sensitivities.
    """

    order: ClassVar[Order]

    def budget(self, numbers: int) -> float:
        """Return what all releases about one unit may cost together, in the mechanism's own terms.

        numbers: How many noised numbers one unit can touch.
        """

    def event(self, budget: float) -> Event:
        """Return what a release that costs so much is to the accountant."""

    def part(self, budget: float, share: float) -> float:
        """Return what a part of a release that gets `share` of its budget may cost."""

    def channel(
        self, sensitivity: float, rounding: float, budget: float, share: float,
        *, remembers: bool = False,
    ) -> Channel:  # fmt: skip
        """Return the channel of a part that gets `share` of a release's budget.

        remembers: Whether its noise depends on the releases before: Gaussian noise alone can.
        """


@dataclass(frozen=True, slots=True)
class GaussianMechanism:
    """Discrete Gaussian noise, calibrated in mu-GDP by the exact (epsilon, delta) duality."""

    epsilon: float
    delta: float
    order: ClassVar[Order] = 2

    def budget(self, numbers: int) -> float:
        """Return mu; see `Mechanism.budget`.

        Raises PrivacyError if delta or epsilon is below what the discrete law differs from the
        continuous one.
        """
        lost = epsilon, delta = slack(numbers, self.epsilon)
        if epsilon >= DISCRETE_SHARE * self.epsilon:
            raise PrivacyError(
                f"privacy.epsilon: {self.epsilon:g} is too small for the {numbers} noised numbers "
                "that one unit can touch; use at least "
                f"{epsilon / DISCRETE_SHARE:.2g}, fewer features, or fewer privacy.records"
            )
        if delta >= self.delta / 2:
            raise PrivacyError(
                f"privacy.delta: {self.delta:g} is below what discrete noise can promise for "
                f"{numbers} numbers at epsilon {self.epsilon:g}; use at least {2.1 * delta:.2g}"
            )
        return gdp.mu_of(*continuous(self.epsilon, self.delta, lost))

    def event(self, budget: float) -> Event:
        """Return an event of mu."""
        return Gaussian(budget)

    def part(self, budget: float, share: float) -> float:
        """Return mu sqrt(share)."""
        return budget * math.sqrt(share)

    def channel(
        self, sensitivity: float, rounding: float, budget: float, share: float,
        *, remembers: bool = False,
    ) -> Channel:  # fmt: skip
        """Return a channel with mu sqrt(share)."""
        mu = self.part(budget, share)
        return gaussian(sensitivity, rounding, mu, remembers=remembers)


@dataclass(frozen=True, slots=True)
class LaplaceMechanism:
    """Discrete Laplace noise: pure epsilon, no delta."""

    epsilon: float
    order: ClassVar[Order] = 1

    def budget(self, numbers: int) -> float:
        """Return epsilon; see `Mechanism.budget`."""
        return self.epsilon

    def event(self, budget: float) -> Event:
        """Return an event of epsilon."""
        return Pure(budget)

    def part(self, budget: float, share: float) -> float:
        """Return epsilon share."""
        return budget * share

    def channel(
        self, sensitivity: float, rounding: float, budget: float, share: float,
        *, remembers: bool = False,
    ) -> Channel:  # fmt: skip
        """Return a channel with epsilon share; PrivacyError if its noise is to remember."""
        if remembers:
            raise PrivacyError("Laplace noise that remembers gains nothing")
        return laplace(sensitivity, rounding, self.part(budget, share))


@dataclass(frozen=True, slots=True)
class Simulation:
    """The Gaussian mechanism's noise level from a seeded floating-point generator: no guarantee."""

    real: GaussianMechanism
    order: ClassVar[Order] = 2

    def budget(self, numbers: int) -> float:
        """Return the mu that is simulated."""
        return self.real.budget(numbers)

    def event(self, budget: float) -> Event:
        """Return that nothing is protected."""
        return NonPrivate()

    def part(self, budget: float, share: float) -> float:
        """Return the simulated mu of a part."""
        return self.real.part(budget, share)

    def channel(
        self, sensitivity: float, rounding: float, budget: float, share: float,
        *, remembers: bool = False,
    ) -> Channel:  # fmt: skip
        """Return the Gaussian channel, with simulated noise."""
        real = self.real.channel(sensitivity, rounding, budget, share, remembers=remembers)
        return replace(real, noise=SimulatedGaussian(real.noise.standard_deviation))
