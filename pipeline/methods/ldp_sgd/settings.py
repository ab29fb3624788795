"""From a study to the public rule of its path: steps, their caps, burn-in and start.

The paper, ldp-sgd, gives no defaults: these are this project's, from simulations. The caps are
derived in `steps`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from pipeline.methods.ldp_sgd.scaling import Scaling
from pipeline.methods.ldp_sgd.steps import StepRule, noise_cap, staleness_cap
from pipeline.methods.ldp_sgd.task import GradientTask
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
