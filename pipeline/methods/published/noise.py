"""The simulated noise of published methods, and the sentences of what each one keeps.

None of them keeps a guarantee in this program: some have none by design, the others are simulated
with floating-point noise of a seeded generator.

Noise of a trusted aggregator is scaled as the paper does it: a bound of the density ratio spends
T2 = 2 ln(1 + M C2^2 / (N lambda + rho)) on the determinant and the rest on the exponent. Where T2
reaches epsilon nothing is left, and no scale exists. Source: dwd, Theorem 2, Condition 2, eq. (45).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from pipeline.errors import PrivacyError
from pipeline.losses import Loss
from pipeline.methods.published.spec import Distributed, Gaussian, Laplace, Trusted, spec_of
from pipeline.privacy.accounting import mu_of
from pipeline.privacy.sensitivity import (
    Bounds,
    Neighbours,
    of_class_counts,
    of_curvature,
    of_gradient,
)
from pipeline.release.task import Task
from pipeline.types import Matrix, Vector

POOLED = "no privacy: the raw records of all clients lie in one place"
FEDERATED = (
    "no differential privacy: clients send exact sums, and from the sums of a single record its "
    "features can be computed"
)
#: Share of mu^2 for noised class counts, where there are class weights.
COUNTS_SHARE = 0.05
_SIMULATED = (
    "its noise is a simulation with floating-point numbers of a seeded generator, which protects "
    "nobody"
)


def trusted_noise(task: Task, keys: Trusted) -> TrustedNoise:
    """Return the noise of Algorithm 2 as the study declares it."""
    l2_bound = keys.l2_bound or task.norm_bound
    step, held = keys.step_bound, keys.stabiliser
    if isinstance(keys, Gaussian):
        return GaussianNoise(keys.epsilon, keys.delta, l2_bound, step, held)
    l1_bound = (keys.l1_bound if isinstance(keys, Laplace) else None) or task.bounds.l1
    return LaplaceNoise(keys.epsilon, l1_bound, l2_bound, step, held)


def shared_noise(task: Task, keys: Distributed, clients: int) -> MessageNoise:
    """Return the noise that `clients` clients add together; PrivacyError as `MessageNoise`."""
    return MessageNoise(
        keys.epsilon,
        keys.delta,
        keys.l2_bound or task.norm_bound,
        clients=clients,
        tolerated=keys.tolerated,
        counts_share=COUNTS_SHARE if task.largest_weight > 1 else 0.0,
        largest_weight=task.largest_weight,
    )


def of_trusted(kind: type[Trusted]) -> Callable[[Task, int | None], str]:
    """Return what says what an aggregator's noise keeps."""

    def said(task: Task, clients: int | None) -> str:
        return f"{trusted_noise(task, spec_of(task.study, kind)).guarantee}; and {_SIMULATED}"

    return said


def of_distributed(task: Task, clients: int | None) -> str:
    """Say what shared noise would keep; `clients` is None where nobody knows their number yet."""
    keys = spec_of(task.study, Distributed)
    design = f"none: {_SIMULATED}; the design, with exact noise, would be"
    if clients is not None:
        return f"{design} {shared_noise(task, keys, clients).guarantee}"
    return (
        f"{design} {shared_noise(task, keys, keys.tolerated + 1).kept}; provided that secure "
        "aggregation shows the server nothing but the sum of a round, and that all clients but "
        f"{keys.tolerated} add their noise and do not collude"
    )


#: Part of mu^2 that is spent on the curvature.
CURVATURE_SHARE = 0.25
#: A record becomes an empty slot.
_NEIGHBOURS: Neighbours = "zero-out"


@dataclass(frozen=True, slots=True)
class MessageNoise:
    """Gaussian noise that all clients of a round add together: its budget, and how it is shared.

    Gradient, curvature and counts of a message are a Gaussian mechanism each, mu-GDP together with
    mu^2 the sum of theirs. Every record enters one message, so the whole stream keeps the mu of
    one. Source: dwd, rewritten.

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


_PER_RELEASE = (
    "the stated budget is for one release, and losses add up over releases, because every later "
    "release holds the curvature of this batch without noise; the step between releases is "
    "assumed, not known, to be short; the server sees raw sums and must be trusted; class counts "
    "are released exactly"
)


@dataclass(frozen=True, slots=True)
class LaplaceNoise:
    """Independent Laplace noise on the summed gradient of a batch, Algorithm 2.

    epsilon: Claimed for each release, > 0.
    l1_bound, l2_bound: Public bounds C1, C2 > 1 of the norms of (1, x); records are clipped to
        them.
    step_bound, stabiliser: r >= 0, the assumed length of theta_b - theta_{b-1}, C_{p-1} /
        sqrt(N_{b-1}) in the paper; and rho >= 0, the multiple of the identity that is added to the
        curvature in every batch.
    """

    epsilon: float
    l1_bound: float
    l2_bound: float
    step_bound: float
    stabiliser: float

    @property
    def bounds(self) -> tuple[float, float]:
        """Bounds of (1, x) in the 1-norm and the 2-norm; infinite for none."""
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
        """Return noise, shape (size,); `penalty` is N lambda with N the records so far."""
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
        """As `LaplaceNoise.bounds`."""
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


#: Noise that a trusted aggregator adds.
TrustedNoise = LaplaceNoise | GaussianNoise


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
