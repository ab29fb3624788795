"""The mechanisms of a study: how each divides a budget, and how it makes channels.

A release has several parts (gradient, curvature, counts). Under Gaussian noise their mus add up as
squares, under Laplace noise their epsilons add up.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar, Protocol

from pipeline.errors import PrivacyError
from pipeline.privacy import channel, gdp
from pipeline.privacy.channel import Channel
from pipeline.privacy.events import Event, Gaussian, NonPrivate, Pure
from pipeline.privacy.sensitivity import Order
from pipeline.privacy.simulation import SimulatedGaussian

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
        lost = epsilon, delta = channel.slack(numbers, self.epsilon)
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
        return gdp.mu_of(*channel.continuous(self.epsilon, self.delta, lost))

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
        return channel.gaussian(sensitivity, rounding, mu, remembers=remembers)


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
        return channel.laplace(sensitivity, rounding, self.part(budget, share))


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
