"""Gaussian noise in every message: by each client alone, or by all clients of a round together.

A message holds gradient, curvature and, for class weights, counts. Each part is a Gaussian
mechanism; together they are mu-GDP with mu^2 the sum of the parts'. Every record enters one
message, and all that follows depends on it through that message alone, so the whole stream keeps
the mu of a single message. Source: dwd, rewritten; sensitivities in `pipeline.privacy`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from pipeline.errors import ConfigError, PrivacyError
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


@dataclass(frozen=True, slots=True)
class MessageNoise:
    """Budget of a stream and how its noise is shared out.

    Attributes
    ----------
    epsilon, delta
        Budget of a record over the whole stream.
    l2_bound
        Public bound > 1 of the norm of (1, x); records are clipped to it.
    clients
        M >= 1 clients, each with one message in a round.
    placement
        "local": every message carries the whole noise, and the server need not be trusted.
        "distributed": a message carries variance sigma^2 / M' with M' = M - tolerated.
    tolerated
        Clients that may drop out or collude with the server, 0 <= tolerated < M.
    curvature_share, counts_share
        Parts of mu^2 spent on the curvature and on the counts; the gradient has the rest.
    largest_weight
        Public maximum of a class weight, >= 1.
    neighbours
        "zero-out" (a record becomes an empty slot) or "replace-one".

    Raises
    ------
    PrivacyError
        If the budget, `tolerated` or the shares leave no guarantee.
    ConfigError
        If another parameter is outside its range.
    """

    epsilon: float
    delta: float
    l2_bound: float
    clients: int = 1
    placement: Literal["local", "distributed"] = "local"
    tolerated: int = 0
    curvature_share: float = 0.25
    counts_share: float = 0.0
    largest_weight: float = 1.0
    neighbours: Neighbours = "zero-out"

    def __post_init__(self) -> None:
        """Refuse what keeps no guarantee."""
        if not (math.isfinite(self.l2_bound) and self.l2_bound > 1):
            raise ConfigError("l2_bound must be a finite number > 1")
        if self.placement not in ("local", "distributed"):
            raise ConfigError("placement must be local or distributed")
        if self.neighbours not in ("zero-out", "replace-one"):
            raise ConfigError("neighbours must be zero-out or replace-one")
        if not (math.isfinite(self.largest_weight) and self.largest_weight >= 1):
            raise ConfigError("largest_weight must be a finite number >= 1")
        if not 0 <= self.tolerated < self.clients:
            raise PrivacyError("tolerated must be >= 0 and below the number of clients")
        shares = (self.curvature_share, self.counts_share)
        if not (min(shares) >= 0 and self.curvature_share > 0 and sum(shares) < 1):
            raise PrivacyError(
                "curvature_share must be > 0, counts_share >= 0, and their sum below 1"
            )
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
        """What is kept private where the conditions of the placement hold."""
        return (
            f"({self.epsilon:g}, {self.delta:g})-differentially private per record over the whole "
            f"stream (mu = {self.mu:.4g}, {self.neighbours}), since every record enters one "
            "message; a person in r messages has mu sqrt(r), with k records in one message k mu"
        )

    @property
    def guarantee(self) -> str:
        """What is kept private, in one sentence."""
        simulated = "; simulation only: floating-point noise of a seeded generator"
        if self.placement == "local":
            return f"{self.kept}; the server need not be trusted{simulated}"
        sharers = self.clients - self.tolerated
        return (
            f"{self.kept}; provided that secure aggregation shows the server nothing but the sum "
            f"of a round, and that at least {sharers} of {self.clients} clients add their noise "
            f"and do not collude; a single message in clear has only mu sqrt({sharers}) = "
            f"{self.mu * math.sqrt(sharers):.4g}{simulated}"
        )

    def total_factor(self) -> float:
        """Return the noise of a round's sum, in deviations of one full message.

        sqrt(M) where each message is noised alone, sqrt(M / M') where all share the noise.
        """
        shared = self.clients - self.tolerated if self.placement == "distributed" else 1
        return math.sqrt(self.clients / shared)

    def gradient_deviation(self, loss: Loss, *, first: bool) -> float:
        """Return sigma of a gradient; the first message has no curvature and no class weights."""
        share = 1 - self.counts_share - (0.0 if first else self.curvature_share)
        weight = 1.0 if first else self.largest_weight
        sensitivity = of_gradient(self._bounds, weight * loss.slope_bound, self.neighbours, 2)
        return sensitivity / (self.mu * math.sqrt(share))

    def curvature_deviation(self, loss: Loss) -> float:
        """Return sigma of a curvature's diagonal; off it the deviation is sigma / sqrt 2."""
        bound = self.largest_weight * loss.curvature_bound
        sensitivity = of_curvature(self._bounds, bound, self.neighbours, 2)
        return sensitivity / (self.mu * math.sqrt(self.curvature_share))

    def counts_deviation(self) -> float:
        """Return sigma of each class count.

        Raises
        ------
        PrivacyError
            If no part of the budget is spent on counts.
        """
        if self.counts_share == 0:
            raise PrivacyError("counts_share must be > 0 where class weights are used")
        return of_class_counts(self.neighbours, 2) / (self.mu * math.sqrt(self.counts_share))


def normal_symmetric(rng: np.random.Generator, size: int, deviation: float) -> Matrix:
    """Return symmetric noise that is isotropic in the Frobenius norm, shape (size, size)."""
    square = rng.normal(0.0, deviation, (size, size))
    # off the diagonal (a + b) / 2 has variance 1/2, on it (a + a) / 2 has 1
    return (square + square.T) / 2
