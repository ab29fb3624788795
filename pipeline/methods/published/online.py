"""One Newton step for each batch, and what each published method gives with how far to trust it.

Without noise (OnWP), and with an aggregator's (OnWDP), records are forgotten after their batch:
A_b = A_{b-1} + H_b and theta_b = theta_{b-1} - A_b^-1 g_b, with g_b and H_b taken at
theta_{b-1}, ridge included. With noise theta_b = (A_b + rho I)^-1 (A_b theta_{b-1} - g_b - xi_b):
rho pulls towards zero again in every batch, so the limit has the penalty lambda + rho / n_b with
n_b records in a batch, and the noise inflates the variance by a factor that does not fall with b.
Class weights n / (2 n_class), from running counts, are an extension: the paper has none.
Source: dwd, eq. (37) and (45), Algorithm 2.

From noised messages theta <- theta - (floor(A) + N lambda R)^-1 (g + n lambda R theta), A the sum
of the noised curvatures, which set length and direction of a step alone. Steps end where the
gradient is zero whatever A is, so its noise does not change where they end. Its eigenvalues are
raised to half the spectral size of that noise, without which single directions run away.
The first round is at the public start, where the loss has no curvature: it spends the whole budget
on the gradient and takes one step against a public guess. Source: dwd, eq. (37), rewritten.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

import numpy as np

from pipeline.errors import DataError, NumericError
from pipeline.estimators.estimate import class_weights
from pipeline.estimators.reference_fit import spread_of
from pipeline.linalg import floor_eigenvalues, solve_positive
from pipeline.losses import Loss
from pipeline.methods.base import OfflineFit
from pipeline.methods.published.fits import (
    Fit,
    Problem,
    Records,
    Ridge,
    federated_fit,
    majorised_fit,
    pooled_fit,
    separable,
    sums_at,
    undamped_iterates,
)
from pipeline.methods.published.noise import (
    MessageNoise,
    TrustedNoise,
    normal_symmetric,
    shared_noise,
    trusted_noise,
)
from pipeline.methods.published.spec import Distributed, Online, Spec, Trusted, Undamped
from pipeline.types import Matrix, Vector

#: Damped rounds on the first batch, at most: eight serve a long tail, a hinge needs more.
FIRST_ROUNDS = 40


class ClassBalance:
    """Counts of both classes over the batches so far, and the weights they give to the next.

    `largest` > 1 is the public maximum of a weight: with privacy it enters the sensitivity. Each of
    the two counts of a message gets normal noise of `deviation` >= 0 from `rng`.
    """

    def __init__(
        self,
        largest: float = 8.0,
        *,
        deviation: float = 0.0,
        rng: np.random.Generator | None = None,
    ) -> None:
        self.largest, self.deviation, self._rng = largest, deviation, rng
        self._counts = np.zeros(2)

    @property
    def weights(self) -> tuple[float, float]:
        """Weights of the negative and the positive class; (1, 1) before the first count."""
        negative, positive = self._counts.tolist()
        return class_weights(negative, positive, self.largest)

    def add(self, negative: int, positive: int) -> None:
        """Add the counts of one message, with its own noise."""
        self._counts += (negative, positive)
        if self._rng is not None and self.deviation > 0:
            self._counts += self._rng.normal(0.0, self.deviation, size=2)


class OnlineFit:
    """Coefficients (d,), zero at the start, and summed curvature (d, d) of a stream of batches.

    size: d, the number of coefficients with the intercept.
    first: "fitted" linearises the first batch at its own damped fit. "one-step" is the paper's:
        from zero, where its loss has no curvature and the ridge alone sets the length of the step.
    balance: Class weights of each batch from the counts of the batches before; None for none. It
        belongs to this fit, which adds to it.
    """

    def __init__(
        self,
        loss: Loss,
        ridge: Ridge,
        size: int,
        *,
        first: Literal["fitted", "one-step"] = "fitted",
        balance: ClassBalance | None = None,
    ) -> None:
        self.loss, self.ridge, self.size = loss, ridge, size
        self.first, self.balance = first, balance
        self.coefficients = np.zeros(size)
        self.curvature = np.zeros((size, size))
        self.records = self.batches = 0

    @property
    def weights(self) -> tuple[float, float]:
        """Weights of the negative and the positive class for the next batch."""
        return (1.0, 1.0) if self.balance is None else self.balance.weights

    def update(self, clients: Sequence[Records], slots: int | None = None) -> Vector:
        """Fold one batch, given as the records of each client; return the new coefficients.

        `slots` is the public number of record slots of the batch, by default that of the records;
        slots without a record contribute nothing, and a batch of them alone only noise.

        NumericError if the summed curvature is singular, or the first batch alone has no
        best fit. The state is then as it was.
        """
        if any(client.size != self.size for client in clients):
            raise DataError(f"clients must have {self.size - 1} features, as the first batch had")
        records = sum(len(client) for client in clients)
        slots = records if slots is None else slots
        if slots == 0:
            raise DataError("clients must hold at least one record")
        self._step([self._prepared(client) for client in clients], slots)
        if self.balance is not None:
            self.balance.add(*np.sum([client.class_counts() for client in clients], axis=0))
        return self.coefficients

    def _prepared(self, client: Records) -> Records:
        return client.weighted(self.weights)

    def _step(self, batch: list[Records], slots: int) -> None:
        del slots
        if not any(len(client) for client in batch):
            return
        at = self.coefficients
        if self.batches == 0 and self.first == "fitted":
            at = federated_fit(self.loss, batch, self.ridge, rounds=FIRST_ROUNDS).coefficients
        total = sums_at(self.loss, batch, at)
        curvature = self.curvature + total.curvature
        curvature += np.diag(total.records * self.ridge.of_curvature(self.size))
        gradient = total.gradient + total.records * self.ridge.of_gradient(self.size) * at
        records = self.records + total.records
        self.coefficients = self._moved(at, curvature, gradient, records)
        self.curvature, self.records = curvature, records
        self.batches += 1

    def _moved(self, at: Vector, curvature: Matrix, gradient: Vector, records: int) -> Vector:
        del records
        return at - solve_positive(curvature, gradient)


class TrustedOnlineFit(OnlineFit):
    """`OnlineFit` with noise in each batch; it starts at zero with one step, as published.

    Records are clipped to the bounds of the noise, which is drawn from a simulation's generator.
    """

    def __init__(
        self, loss: Loss, ridge: Ridge, size: int, noise: TrustedNoise, rng: np.random.Generator
    ) -> None:
        super().__init__(loss, ridge, size, first="one-step")
        self.noise, self._rng = noise, rng

    def _prepared(self, client: Records) -> Records:
        l1, l2 = self.noise.bounds
        return client.clipped(l1=l1, l2=l2)

    def _moved(self, at: Vector, curvature: Matrix, gradient: Vector, records: int) -> Vector:
        penalty = records * float(np.min(self.ridge.of_curvature(self.size)))
        noise = self.noise.draw(self._rng, self.size, self.loss.curvature_bound, penalty)
        held = curvature + self.noise.stabiliser * np.eye(self.size)
        return solve_positive(held, curvature @ at - gradient - noise)


#: Least eigenvalue of the curvature: this part of their mean, and of the noise's spectral size.
FLOOR_SHARE = 0.02
FLOOR_NOISE = 0.5


class PrivateOnlineFit(OnlineFit):
    """`OnlineFit` of noised messages: its curvature is noised, too, and holds no ridge.

    noise: Budget, and who shares it. Records are clipped to its bound, and the noise of a batch is
        drawn as one draw of the summed variance of its `clients` messages.
    balanced: Whether classes are weighted, from noised counts up to the largest weight of `noise`.

    floored: How many eigenvalues of the curvature were raised in the last batch.
    """

    def __init__(
        self,
        loss: Loss,
        ridge: Ridge,
        size: int,
        noise: MessageNoise,
        rng: np.random.Generator,
        *,
        balanced: bool = False,
    ) -> None:
        factor, balance = noise.total_factor(), None
        if balanced:
            deviation = factor * noise.counts_deviation()
            balance = ClassBalance(noise.largest_weight, deviation=deviation, rng=rng)
        super().__init__(loss, ridge, size, balance=balance)
        self.noise, self._rng = noise, rng
        self._gradient_deviations = tuple(
            factor * noise.gradient_deviation(loss, first=first) for first in (False, True)
        )
        self._curvature_deviation = factor * noise.curvature_deviation(loss)
        self.floored = 0

    def _prepared(self, client: Records) -> Records:
        return super()._prepared(client.clipped(l2=self.noise.l2_bound))

    def _step(self, batch: list[Records], slots: int) -> None:
        point, first = self.coefficients, self.batches == 0
        total = sums_at(self.loss, batch, point)
        noised = total.gradient + self._rng.normal(0.0, self._gradient_deviations[first], self.size)
        if first:
            level = self.loss.start_curvature * self.noise.l2_bound**2 / self.size
            bread, held = slots * level * np.eye(self.size), slots
        else:
            noise = normal_symmetric(self._rng, self.size, self._curvature_deviation)
            self.curvature += total.curvature + noise
            self.records += slots
            bread, held = self._floored(), self.records
        penalty = self.ridge.of_gradient(self.size)
        gradient = noised + slots * penalty * point
        self.coefficients = point - solve_positive(bread + np.diag(held * penalty), gradient)
        self.batches += 1

    def _floored(self) -> Matrix:
        """Return the curvature with its eigenvalues raised."""
        # the batch of the start has no curvature, so `batches` counts those that have
        deviation = self._curvature_deviation * math.sqrt(self.batches)
        share = FLOOR_SHARE * float(np.trace(self.curvature)) / self.size
        least = max(share, FLOOR_NOISE * deviation * math.sqrt(2 * self.size))
        repaired, self.floored, _ = floor_eigenvalues(self.curvature, least)
        return repaired


#: A fit to all records.
Run = Callable[[Problem[Any]], OfflineFit]
#: Undamped steps count as converged at the score at which damped ones stop.
CONVERGED_SCORE = 1e-9
#: A mean gradient above this share of its column's size is far from a minimiser.
FAR_SCORE = 0.1
_LIVE_HAS_THEM = 'kind = "renewable" has intervals'
_ENDLESS = (
    "the classes are separable and no ridge holds the coefficients, so there is no best fit: "
    "estimator.ridge > 0 is needed"
)


def pooled(problem: Problem[Spec]) -> OfflineFit:
    """Fit all records until it converges."""
    require_a_minimiser(problem)
    weights = problem.weights()
    fit = pooled_fit(problem.loss, problem.together().weighted(weights), problem.ridge)
    return _converged(problem, fit, weights)


def pooled_mm(problem: Problem[Spec]) -> OfflineFit:
    """Fit all records with kerndwd's stopping rule."""
    require_a_minimiser(problem)
    fit = majorised_fit(problem.loss, problem.together(), problem.ridge.weight / 2)
    if fit.converged and fit.score <= FAR_SCORE:
        reason = 'no intervals: the stopping rule is too loose for them; kind = "pooled" has them'
        return OfflineFit(fit.coefficients, "converged", reason, fit.rounds, fit.score)
    reason = "the rounds do not suffice"
    if fit.converged:
        reason = (
            f"the stopping rule was met far from the minimiser (score {fit.score:.2g}): it is "
            "about the length of a step, and steps are short where q is far from 1"
        )
    return OfflineFit(fit.coefficients, "unconverged", reason, fit.rounds, fit.score)


def federated(problem: Problem[Spec]) -> OfflineFit:
    """Take damped Newton steps over all clients."""
    require_a_minimiser(problem)
    weights = problem.weights()
    fit = federated_fit(problem.loss, [c.weighted(weights) for c in problem.clients], problem.ridge)
    if fit.converged:
        return _converged(problem, fit, weights)
    reason = "the rounds do not suffice: the classes are nearly separable or the features collinear"
    return OfflineFit(fit.coefficients, "unconverged", reason, fit.rounds, fit.score, weights)


def undamped(problem: Problem[Undamped]) -> OfflineFit:
    """Take literal steps from zero."""
    require_a_minimiser(problem)
    rounds = problem.keys.rounds
    end = undamped_iterates(problem.loss, problem.clients, problem.ridge, rounds=rounds)[-1]
    score = problem.objective().at(end, curved=False).score if np.all(np.isfinite(end)) else None
    if score is not None and score <= CONVERGED_SCORE:
        reason = 'no intervals for a reproduction; kind = "federated-newton" has them'
        return OfflineFit(end, "converged", reason, rounds, score)
    reason = "no intervals: literal steps may rise or cycle, and nothing stops them"
    return OfflineFit(end, "unconverged", reason, rounds, score)


def online_start(problem: Problem[Online]) -> OnlineFit:
    """Return a stream without noise, before its first batch."""
    largest = problem.task.largest_weight
    balance = ClassBalance(largest) if largest > 1 else None
    return OnlineFit(
        problem.loss, problem.ridge, problem.task.size, first=problem.keys.start, balance=balance
    )


def online(problem: Problem[Online]) -> OfflineFit:
    """Fold all batches without noise."""
    require_a_minimiser(problem)
    fit = online_start(problem)
    end = _last(problem, fit)
    weights, score = fit.weights, None
    if np.all(np.isfinite(end)):
        score = problem.objective(weights).at(end, curved=False).score
    reason = f"no intervals: this recursion keeps no variance; {_LIVE_HAS_THEM}"
    if score is None or score > FAR_SCORE:
        reason += (
            "; these coefficients are far from the best ones of all records (see the score): a "
            'larger window, another start or kind = "pooled" helps'
        )
    return OfflineFit(end, "one-pass", reason, fit.batches, score, weights)


def trusted_start(problem: Problem[Trusted]) -> TrustedOnlineFit:
    """Return a stream with an aggregator's noise, before its first batch."""
    noise, rng = trusted_noise(problem.task, problem.keys), np.random.default_rng(problem.keys.seed)
    return TrustedOnlineFit(problem.loss, problem.ridge, problem.task.size, noise, rng)


def trusted(problem: Problem[Trusted]) -> OfflineFit:
    """Fold all batches with an aggregator's noise."""
    fit = trusted_start(problem)
    reason = f"no intervals: the published variance leaves out the summed noise; {_LIVE_HAS_THEM}"
    return OfflineFit(_last(problem, fit), "one-pass", reason, fit.batches)


def distributed_start(problem: Problem[Distributed]) -> PrivateOnlineFit:
    """Return a stream with noise of all clients, before its first round."""
    noise = shared_noise(problem.task, problem.keys, len(problem.clients))
    rng, task = np.random.default_rng(problem.keys.seed), problem.task
    return PrivateOnlineFit(
        problem.loss, problem.ridge, task.size, noise, rng, balanced=task.largest_weight > 1
    )


def distributed(problem: Problem[Distributed]) -> OfflineFit:
    """Fold all rounds with noise of all clients."""
    fit = distributed_start(problem)
    end = _last(problem, fit)
    reason = f"no intervals: this recursion keeps no variance; {_LIVE_HAS_THEM}"
    if fit.floored:
        reason += (
            f"; the noise still hides what the records say of {fit.floored} of "
            f"{problem.task.size} combinations of features, and there the estimate is pulled "
            "towards earlier ones"
        )
    return OfflineFit(end, "one-pass", reason, fit.batches, weights=fit.weights)


def require_a_minimiser(problem: Problem[Any]) -> None:
    """Refuse records without a best fit; noised methods do not ask, as that would tell of them."""
    problem.objective().require_a_minimiser()
    if problem.ridge.weight == 0 and separable(problem.together()):
        raise NumericError(_ENDLESS)


def fold(problem: Problem[Any], fit: OnlineFit) -> Iterator[Vector]:
    """Yield the coefficients after each batch; of one without any record, only noise is folded."""
    for number, (batch, slots) in enumerate(zip(problem.batches, problem.slots, strict=True), 1):
        try:
            # what overflows shows as a number that is not finite
            with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
                fit.update(batch, slots)
        except NumericError as error:
            raise NumericError(
                f"batch {number} (window {number} of every client): {error}; larger windows "
                "(window.records) may help as well"
            ) from error
        yield fit.coefficients


def _converged(problem: Problem[Spec], fit: Fit, weights: tuple[float, float]) -> OfflineFit:
    records = problem.together().weighted(weights)
    penalty = problem.ridge.of_gradient(records.size)
    covariance, reason = covariance_of(problem.loss, records, penalty, fit.coefficients)
    return OfflineFit(
        fit.coefficients, "converged", reason, fit.rounds, fit.score, weights, covariance
    )


def _last(problem: Problem[Any], fit: OnlineFit) -> Vector:
    for _ in fold(problem, fit):
        pass
    return fit.coefficients


#: Intervals need this many records for each coefficient, and as many that carry curvature.
RECORDS_PER_COEFFICIENT = 10


def covariance_of(
    loss: Loss, records: Records, penalty: Vector, point: Vector
) -> tuple[Matrix | None, str]:
    """Return the sandwich (d, d) of a minimiser, or None and why; `penalty` (d,) is per record.

    It needs enough records that carry curvature: a steep loss has almost all of it in the few
    records near its knee.
    """
    needed = RECORDS_PER_COEFFICIENT * records.size
    if len(records) < needed:
        return None, f"intervals need {needed} records; there are {len(records)}"
    weights = np.ones(len(records)) if records.weights is None else records.weights
    predictor = records.design @ point
    curvature_weight = weights * loss.sharp_curvature(predictor, records.responses)
    squares = float(np.sum(np.square(curvature_weight)))
    # so many equally curved records would say as much
    carried = float(np.sum(curvature_weight)) ** 2 / squares if squares > 0 else 0.0
    if carried < needed:
        return None, (
            f"intervals need the curvature of {needed} records; only about {carried:.0f} carry "
            "any, as the loss is nearly flat at the others: more records or a smaller q help"
        )
    try:
        return spread_of(loss, lambda: [records], penalty, point).covariance, ""
    except NumericError as error:
        return None, f"no intervals: {error}"
