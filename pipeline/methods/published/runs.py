"""The published methods on the records of a study, each with how far to trust what it gives.

The standard errors of a converged fit are those of the sandwich K^-1 (sum s s') K^-1 with s the
gradient of one record, ridge included, and K the summed curvature. It needs a minimiser that was
reached, and enough records that carry curvature: a steep loss has almost all of it in the few
records near its knee.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from pipeline.errors import NumericError
from pipeline.linalg import sandwich
from pipeline.losses import Loss
from pipeline.methods.offline import OfflineFit
from pipeline.methods.published.noises import shared_noise, trusted_noise
from pipeline.methods.published.offline import (
    Fit,
    federated_fit,
    majorised_fit,
    pooled_fit,
    separable,
    undamped_iterates,
)
from pipeline.methods.published.online import ClassBalance, OnlineFit, TrustedOnlineFit
from pipeline.methods.published.private_online import PrivateOnlineFit
from pipeline.methods.published.problem import Problem
from pipeline.methods.published.records import Records
from pipeline.methods.published.spec import Distributed, Online, Spec, Trusted, Undamped
from pipeline.types import Matrix, Vector

#: A fit to all records; and an online method with how to read it in the end.
Run = Callable[[Problem[Any]], OfflineFit]
Stream = OnlineFit | PrivateOnlineFit
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
    weights = (1.0, 1.0) if fit.balance is None else fit.balance.weights
    score = None
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
    return OfflineFit(end, "one-pass", reason, fit.rounds, weights=fit.weights)


def require_a_minimiser(problem: Problem[Any]) -> None:
    """Refuse records without a best fit; noised methods do not ask, as that would tell of them."""
    problem.objective().require_a_minimiser()
    if problem.ridge.weight == 0 and separable(problem.together()):
        raise NumericError(_ENDLESS)


def fold(problem: Problem[Any], fit: Stream) -> Iterator[Vector]:
    """Yield the coefficients after each batch; of one without any record, only noise is folded."""
    for number, (batch, slots) in enumerate(zip(problem.batches, problem.slots, strict=True), 1):
        try:
            # what overflows shows as a number that is not finite
            with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
                if isinstance(fit, PrivateOnlineFit):
                    fit.update(batch, slots)
                elif present := [client for client in batch if len(client)]:
                    fit.update(present)
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


def _last(problem: Problem[Any], fit: Stream) -> Vector:
    for _ in fold(problem, fit):
        pass
    return fit.coefficients


#: Intervals need this many records for each coefficient, and as many that carry curvature.
RECORDS_PER_COEFFICIENT = 10


def covariance_of(
    loss: Loss, records: Records, penalty: Vector, point: Vector
) -> tuple[Matrix | None, str]:
    """Return covariance (d, d) of a minimiser, or None and why; `penalty` (d,) is per record."""
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
    slopes = weights * loss.slope(predictor, records.responses)
    scores = records.design * slopes[:, None] + penalty * point
    rows = records.design * np.sqrt(curvature_weight)[:, None]
    try:
        return sandwich(rows.T @ rows + len(records) * np.diag(penalty), scores.T @ scores), ""
    except NumericError as error:
        return None, f"no intervals: {error}"
