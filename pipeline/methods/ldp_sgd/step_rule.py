"""The public rule of a path: step sizes, their caps, and the matrix before gradients.

The paper, ldp-sgd, gives no defaults: these are this project's, from simulations. The caps are
derived below.

Step sizes eta_i = min(eta0 i^-alpha, cap), with two caps that keep the path where theory holds.

The noise cap bounds the jitter of the linear predictor: at a constant step eta the linearised path
has the stationary covariance eta noise^2 A^-1 / 2. The staleness cap bounds the overshoot of
gradients that were taken at an old point: it keeps eta lambda_max (records late) at 1 or less.
Source: ldp-sgd, path; the caps are this project's.

Steps scaled by direction: a matrix before the gradients that is about the inverse curvature.

One step size for all directions is too long for the steepest or too short for the flattest. The
matrix begins as the inverse of a public guess R of the mean curvature. It is made anew from the
mean of the released curvatures whenever the path has doubled; what their noise still hides stays as
guessed. It follows from public numbers and releases alone, so it costs no privacy.
Source: this project's; ldp-sgd has one step size for all directions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from pipeline.errors import ConfigError
from pipeline.methods.ldp_sgd.client import GradientTask
from pipeline.study.reference import evenness, law_of, moments
from pipeline.types import Matrix, Vector

#: The first copy of the sums after the burn-in is made no earlier than after so many records.
LEAST_MARK = 1000


@dataclass(frozen=True, slots=True)
class Rule:
    """What is public about a path.

    burn_in: Records before the sums begin, >= 0; copies are kept at burn_in 2^j.
    start: theta_0, shape (d,). Zero in a shared path, whose start is added by who brings the parts
        together.
    full: Whether A is a matrix, for intervals of contrasts, or its diagonal alone.
    extra: How many numbers come beside the gradients of a release.
    shared: Whether the path is one partition's part of a path that several move.
    scaling: The matrix in front of the gradients; None for the identity.
    """

    steps: StepRule
    burn_in: int
    start: Vector
    full: bool = False
    extra: int = 0
    shared: bool = False
    scaling: Scaling | None = None

    @property
    def unit(self) -> int:
        """Copies of the sums are made after unit (2^j - 1) records that count, j >= 0."""
        return max(self.burn_in, LEAST_MARK)


#: Public guesses by loss: mean curvature of a record, decay of the steps, and how far noise may
#: move a linear predictor: asymmetric losses are biased sooner.
CURVATURE = {"linear": 0.8, "expectile": 0.4, "logistic": 0.2}
ALPHA = {"linear": 0.501}
KAPPA = {"linear": 0.5}
#: The largest eigenvalue of the mean curvature is guessed as this multiple of a record's curvature.
LARGEST_SHARE = 2.0
#: The largest curvature of a direction, as a multiple of its public guess.
SCALED_SHARE = 4.0
#: A path that has moved less than this many relaxation times says nothing of its own spread.
MIXED = 50.0
#: Scaled steps of record i are NEWTON / i: 1 would be those of a Newton method.
NEWTON = 2.0


@lru_cache(maxsize=32)
def rule_of(task: GradientTask) -> Rule:
    """Return the rule of a study's path."""
    path, loss = task.path, task.study.estimator.loss
    scaling, alpha, eta0 = scaling_of(task), ALPHA.get(loss, 0.6), 1.0
    if scaling is None:
        curvature = mean_curvature(task)
        noise = task.record_noise if task.study.noised else 0.0
        kappa = path.kappa or KAPPA.get(loss, 0.25)
        noisy = noise_cap(kappa, curvature, task.loss.slope_bound, noise, task.size)
        cap = min(noisy, lateness_cap(task))
    else:
        # the cap by noise goes with the matrix, which changes
        cap, alpha, eta0 = lateness_cap(task), 1.0, NEWTON
    shared = task.partition_strategy == "shared"
    return Rule(
        steps=StepRule(path.eta0 or eta0, path.alpha or alpha, cap),
        burn_in=path.burn_in,
        start=np.zeros(task.size) if shared else task.first_model.coefficients,
        full=path.full,
        extra=task.extra_numbers,
        shared=shared,
        scaling=scaling,
    )


@lru_cache(maxsize=32)
def scaling_of(task: GradientTask) -> Scaling | None:
    """Return how the steps of a study are scaled; None where no curvature is released."""
    if "curvature" not in task.shares:
        return None
    products = mean_products(task)
    reference = guess_of(task, products)
    noise = task.record_noise if task.study.noised else 0.0
    held = task.channels.curvature if task.study.noised else None
    return Scaling(
        reference=reference,
        # the cap times the trace of the matrix
        cloud=noise_cap(
            task.path.kappa or 0.25, float(reference[0, 0]), task.loss.slope_bound, noise, 1.0
        ),
        # one noise for each window's sum
        noise=held.standard_deviation / math.sqrt(task.slots) if held else 0.0,
    )


def lateness_cap(task: GradientTask) -> float:
    """Return the largest step at which late models do no harm."""
    behind = allowed_lateness(task) + task.slots
    if scaling_of(task) is not None:
        return staleness_cap(SCALED_SHARE, behind)
    return staleness_cap(LARGEST_SHARE * mean_curvature(task), behind)


def mean_curvature(task: GradientTask) -> float:
    """Return the guess of a record's mean curvature, its weight included.

    Features of unit variance have |(1, x)|^2 of about d: a clipping norm below the root of d
    leaves weights of about clipping_norm^2 / d, and A of about that much of H E[x x']. Features of
    a smaller variance have larger weights, so that the caps err towards short steps; at the default
    the noise cap depends on no variance, since noise moves x' theta by tr(A^-1 E[x x']).
    """
    guess = task.path.curvature or CURVATURE[task.study.estimator.loss]
    return guess * min(1.0, task.clipping_norm**2 / task.size)


def mean_products(task: GradientTask) -> Matrix:
    """Return the guess of E[x x'] of (1, features), shape (d, d).

    That of the public reference population: independent features, about their typical values where
    the study says those, else uniform on their public ranges and over their levels. With `scaling =
    "unit"` the variance of a uniform number is 1/3.
    """
    return moments(task.encoding, law_of(task.encoding))


def guess_of(task: GradientTask, products: Matrix) -> Matrix:
    """Return the guess of the mean curvature, shape (d, d), of features with these products."""
    guess = task.path.curvature or CURVATURE[task.study.estimator.loss]
    found: Matrix = guess * min(1.0, task.clipping_norm**2 / float(np.trace(products))) * products
    return found


def planned_share(task: GradientTask) -> float:
    """Return how much less a record is curved, in plans, than the path supposes, in (0, 1].

    Where one class is rare, logistic regression is flatter: the mean of p (1 - p) is at most that
    of the mean. Steps do not depend on the study's guess of the share, which may change while it
    runs. `estimator.path.curvature` says all of it.
    """
    return evenness(task.study) if task.classes and task.path.curvature is None else 1.0


def slowest(task: GradientTask, products: Matrix | None = None) -> float:
    """Return the plan's guess of the smallest eigenvalue of the mean curvature.

    Features that are correlated, or use a part of their range, have a smaller one.

    products: As `guess_of`; by default those of `mean_products`.
    """
    products = mean_products(task) if products is None else products
    return planned_share(task) * float(np.linalg.eigvalsh(guess_of(task, products))[0])


def allowed_lateness(task: GradientTask) -> int:
    """Return how many records late a model may be before the steps are too long for it."""
    behind = task.path.behind
    return 2 * task.slots * task.study.stream.publish.releases if behind is None else behind


#: Steps are made in whole tables of this length, so that a step has the same bits wherever a batch
#: begins: vector instructions may round a power otherwise at the ends of an array.
_TABLE = 1 << 14


@dataclass(frozen=True, slots=True)
class StepRule:
    """A public rule of steps.

    eta0: Scale, > 0.
    alpha: Decay, in (1/2, 1]; averages need no curvature below 1.
    cap: Largest step, > 0; infinite for none.

    Raises ConfigError if one of them is out of range.
    """

    eta0: float = 1.0
    alpha: float = 0.501
    cap: float = math.inf

    def __post_init__(self) -> None:
        """Check the ranges."""
        if not 0 < self.eta0 < math.inf:
            raise ConfigError("estimator.path.eta0 must be a positive number")
        if not 0.5 < self.alpha <= 1:
            raise ConfigError("estimator.path.alpha must lie in (1/2, 1], for example 0.501")
        if not self.cap > 0:
            raise ConfigError("the cap of the steps must be positive")

    def steps(self, first: int, count: int) -> Vector:
        """Return the steps of records first, ..., first + count - 1, counted from 1."""
        tables = [
            _table(self, number)
            for number in range((first - 1) // _TABLE, (first + count - 2) // _TABLE + 1)
        ]
        start = (first - 1) % _TABLE
        return np.concatenate(tables)[start : start + count] if count else np.zeros(0)

    def step(self, record: int) -> float:
        """Return the step of one record, counted from 1."""
        return min(self.eta0 * math.pow(record, -self.alpha), self.cap)


@lru_cache(maxsize=8)
def _table(rule: StepRule, number: int) -> Vector:
    index = np.arange(number * _TABLE + 1, (number + 1) * _TABLE + 1, dtype=np.float64)
    steps: Vector = np.minimum(rule.eta0 * index**-rule.alpha, rule.cap)
    steps.setflags(write=False)
    return steps


def noise_cap(kappa: float, curvature: float, slope: float, noise: float, trace: float) -> float:
    """Return the largest step at which the noise moves a predictor by a variance kappa slope^2.

    With the matrix P in front of gradients about the inverse of A, the iterate jitters with
    covariance eta noise^2 P^2 / 2, and so x' theta with variance eta noise^2 tr(P) / (2 H), where
    A = H E[x x']. Without a matrix, d stands for the trace. Infinite without noise.

    kappa: 0.5 to 1 for linear losses, 0.1 to 0.25 for others.
    curvature: H, a public guess of a record's mean curvature, > 0.
    slope: Largest slope of a record.
    noise: Standard deviation of the noise of one gradient entry.
    trace: tr(P).
    """
    if noise == 0:
        return math.inf
    return 2 * kappa * curvature * slope * slope / (noise * noise * trace)


def staleness_cap(largest_curvature: float, behind: float, *, rho: float = 1.0) -> float:
    """Return rho / (lambda_max behind): no overshoot from records linearised `behind` records ago.

    largest_curvature: A guess of the largest eigenvalue of the mean curvature, > 0.
    behind: D + k: how many records late a model is at most, and how many a release holds.
    """
    return rho / (largest_curvature * behind)


#: Where a direction's curvature is below this share of the public guess, it counts as that share.
LEAST_SHARE = 0.02
#: A released curvature replaces the guess once its noise hides no direction of half the guess.
USEFUL = 0.5
#: Bits of a matrix that are kept: libraries of linear algebra disagree about the last ones.
_BITS = 30


@dataclass(frozen=True, slots=True)
class Known:
    """A mean curvature after its repair.

    curvature: Shape (d, d).
    floored: How many directions were raised.
    hidden: The part of the inverse in those directions, shape (d, d).
    """

    curvature: Matrix
    floored: int
    hidden: Matrix


@dataclass(frozen=True, slots=True)
class Scaling:
    """How the steps of a study are scaled.

    reference: R, the public guess of the mean curvature of a record, positive definite, shape (d,
        d).
    cloud: Largest product of a step and the trace of the matrix; infinite without noise.
    noise: Standard deviation of a diagonal entry of the mean of released curvatures over n records,
        times the root of n.
    """

    reference: Matrix
    cloud: float
    noise: float

    def first(self) -> Matrix:
        """Return the matrix before anything is released, shape (d, d)."""
        return _inverse(self.reference)

    def matrix(self, curvature: Matrix, records: int) -> Matrix:
        """Return the matrix after a mean curvature over `records` records, both (d, d)."""
        if self.is_guess(records):
            return self.first()
        return _inverse(self.known(curvature, records).curvature)

    def reach(self, records: int, step: float) -> float:
        """Return a bound of a step times an absolute row sum of its matrix, whatever was released.

        P is at most R^-1 / L, with L the least share after so many records. Of such P the most of
        e_j' P s is half of |a| |b| + a' b, with a' b = e_j' R^-1 s / L, and signs s. The cap of the
        step by tr(P) bounds it as well: by (1 + sqrt d) / 2 times that cap.
        """
        inverse = np.abs(self.first())
        rows = (np.sqrt(np.diag(inverse) * inverse.sum()) + inverse.sum(axis=1)) / 2
        row = float(rows.max()) / self._least(records)
        return min(step * row, self.cloud * (1 + math.sqrt(len(rows))) / 2)

    def is_guess(self, records: int) -> bool:
        """Whether curvatures of so many records are too noisy to replace the guess."""
        return self.hidden(records) > USEFUL

    def known(self, curvature: Matrix, records: float) -> Known:
        """Return a mean of released curvatures with what noise hides raised, both (d, d)."""
        values, vectors = np.linalg.eigh(self.reference)
        root = (vectors * np.sqrt(values)) @ vectors.T
        inverse = (vectors / np.sqrt(values)) @ vectors.T
        shares, directions = np.linalg.eigh(inverse @ curvature @ inverse)
        least = self._least(records)
        low, raised = shares < least, np.maximum(shares, least)
        repaired = root @ (directions * raised) @ directions.T @ root
        hidden = inverse @ (directions * np.where(low, 1 / raised, 0.0)) @ directions.T @ inverse
        return Known((repaired + repaired.T) / 2, int(low.sum()), hidden)

    def _least(self, records: float) -> float:
        return max(self.hidden(records), LEAST_SHARE)

    def hidden(self, records: float) -> float:
        """Return about the largest eigenvalue of the noise, as a share of the guess.

        A symmetric matrix with entries of deviation s beside its diagonal has about 2 s sqrt d.
        """
        size = len(self.reference)
        beside = self.noise / math.sqrt(2 * records)
        return 2 * math.sqrt(size) * beside * float(np.trace(np.linalg.inv(self.reference))) / size


def _inverse(matrix: Matrix) -> Matrix:
    inverse = np.linalg.inv(matrix)
    parts, exponents = np.frexp((inverse + inverse.T) / 2)
    rounded: Matrix = np.ldexp(np.rint(np.ldexp(parts, _BITS)), exponents - _BITS)
    return rounded
