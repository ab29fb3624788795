"""Gaussian noise that all clients of a round add together.

A message holds gradient, curvature and, for class weights, counts. Each part is a Gaussian
mechanism; together they are mu-GDP with mu^2 the sum of the parts'. Every record enters one
message, and all that follows depends on it through that message alone, so the whole stream keeps
the mu of a single message. Source: dwd, rewritten; sensitivities in `pipeline.privacy`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from pipeline.errors import PrivacyError
from pipeline.losses import Loss
from pipeline.privacy.gdp import mu_of
from pipeline.privacy.sensitivity import (
    Bounds,
    Neighbours,
    of_class_counts,
    of_curvature,
    of_gradient,
)
from pipeline.types import Matrix

#: Part of mu^2 that is spent on the curvature.
CURVATURE_SHARE = 0.25
#: A record becomes an empty slot.
_NEIGHBOURS: Neighbours = "zero-out"


@dataclass(frozen=True, slots=True)
class MessageNoise:
    """Budget of a stream and how its noise is shared out.

    A message carries variance sigma^2 / M' with M' = M - tolerated, so that M' clients make up the
    whole noise; with M' = 1 each message carries it alone.

    epsilon, delta: Budget of a record over the whole stream.
    l2_bound: Public bound > 1 of the norm of (1, x); records are clipped to it.
    clients, tolerated: M >= 1 clients, each with one message in a round; of them so many may drop
        out or collude with the server, 0 <= tolerated < M, else PrivacyError.
    counts_share: Part of mu^2 that is spent on the counts; the curvature has a quarter, the
        gradient the rest.
    largest_weight: Public maximum of a class weight, >= 1.
    """

    epsilon: float
    delta: float
    l2_bound: float
    clients: int = 1
    tolerated: int = 0
    counts_share: float = 0.0
    largest_weight: float = 1.0

    def __post_init__(self) -> None:
        """Refuse what keeps no guarantee."""
        if not 0 <= self.tolerated < self.clients:
            raise PrivacyError("tolerated must be >= 0 and below the number of clients")
        mu_of(self.epsilon, self.delta)

    @property
    def _bounds(self) -> Bounds:
        return Bounds(math.inf, self.l2_bound)

    @property
    def mu(self) -> float:
        """The mu of mu-GDP that the budget allows."""
        return mu_of(self.epsilon, self.delta)

    @property
    def kept(self) -> str:
        """What is kept private where enough clients add their noise."""
        return (
            f"({self.epsilon:g}, {self.delta:g})-differentially private per record over the whole "
            f"stream (mu = {self.mu:.4g}, {_NEIGHBOURS}), since every record enters one "
            "message; a person in r messages has mu sqrt(r), with k records in one message k mu"
        )

    @property
    def guarantee(self) -> str:
        """What is kept private, in one sentence."""
        sharers = self.clients - self.tolerated
        return (
            f"{self.kept}; provided that secure aggregation shows the server nothing but the sum "
            f"of a round, and that at least {sharers} of {self.clients} clients add their noise "
            f"and do not collude; a single message in clear has only mu sqrt({sharers}) = "
            f"{self.mu * math.sqrt(sharers):.4g}; simulation only: floating-point noise of a "
            "seeded generator"
        )

    def total_factor(self) -> float:
        """Return the noise of a round's sum, in deviations of one full message: sqrt(M / M')."""
        return math.sqrt(self.clients / (self.clients - self.tolerated))

    def gradient_deviation(self, loss: Loss, *, first: bool) -> float:
        """Return sigma of a gradient; the first message has neither curvature nor weights."""
        share = 1 - self.counts_share - (0.0 if first else CURVATURE_SHARE)
        weight = 1.0 if first else self.largest_weight
        sensitivity = of_gradient(self._bounds, weight * loss.slope_bound, _NEIGHBOURS, 2)
        return sensitivity / (self.mu * math.sqrt(share))

    def curvature_deviation(self, loss: Loss) -> float:
        """Return sigma of a curvature's diagonal; off it the deviation is sigma / sqrt 2."""
        bound = self.largest_weight * loss.curvature_bound
        sensitivity = of_curvature(self._bounds, bound, _NEIGHBOURS, 2)
        return sensitivity / (self.mu * math.sqrt(CURVATURE_SHARE))

    def counts_deviation(self) -> float:
        """Return sigma of each class count; PrivacyError if no budget is spent on counts."""
        if self.counts_share == 0:
            raise PrivacyError("counts_share must be > 0 where class weights are used")
        return of_class_counts(_NEIGHBOURS, 2) / (self.mu * math.sqrt(self.counts_share))


def normal_symmetric(rng: np.random.Generator, size: int, deviation: float) -> Matrix:
    """Return symmetric noise that is isotropic in the Frobenius norm, shape (size, size)."""
    square = rng.normal(0.0, deviation, (size, size))
    # off the diagonal (a + b) / 2 has variance 1/2, on it (a + a) / 2 has 1
    return (square + square.T) / 2
