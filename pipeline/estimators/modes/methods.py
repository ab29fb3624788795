"""The published methods on the records of a study, each with how far to trust what it gives."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from pipeline.errors import NumericError
from pipeline.estimators.modes.claims import reproduction_of, shared_noise, trusted_noise
from pipeline.estimators.modes.class_balance import ClassBalance
from pipeline.estimators.modes.federated import federated_fit, undamped_iterates
from pipeline.estimators.modes.majorised import majorised_fit
from pipeline.estimators.modes.online import OnlineFit
from pipeline.estimators.modes.pooled import pooled_fit
from pipeline.estimators.modes.private_online import PrivateOnlineFit
from pipeline.estimators.modes.separation import separable
from pipeline.estimators.modes.spread import covariance_of
from pipeline.estimators.modes.task import Task
from pipeline.estimators.modes.trusted import TrustedOnlineFit
from pipeline.types import Matrix, Vector

#: "converged": the stopping rule was met; "unconverged": it was not, or there is no minimiser;
#: "one-pass": an online method, which has no stopping rule.
FitStatus = Literal["converged", "unconverged", "one-pass"]
#: Undamped steps count as converged at the score at which damped ones stop.
CONVERGED_SCORE = 1e-9
#: A mean gradient above this share of its column's size is far from a minimiser.
FAR_SCORE = 0.1
_LIVE_HAS_THEM = 'kind = "renewable" has intervals'
_ENDLESS = (
    "the classes are separable and no ridge holds the coefficients, so there is no best fit: "
    "estimator.ridge > 0 is needed"
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a method gives; the attributes are those of `selected.ModeFit`."""

    coefficients: Vector
    status: FitStatus
    reason: str
    rounds: int
    score: float | None = None
    weights: tuple[float, float] = (1.0, 1.0)
    covariance: Matrix | None = None


def _pooled(task: Task) -> Outcome:
    _require_a_minimiser(task)
    weights = task.weights()
    fit = pooled_fit(task.loss, task.together().weighted(weights), task.ridge)
    covariance, reason = covariance_of(task.objective(weights), fit.coefficients)
    return Outcome(
        fit.coefficients, "converged", reason, fit.rounds, fit.score, weights, covariance
    )


def _pooled_mm(task: Task) -> Outcome:
    _require_a_minimiser(task)
    fit = majorised_fit(task.loss, task.together(), task.ridge.weight / 2)
    if fit.converged and fit.score <= FAR_SCORE:
        reason = 'no intervals: the stopping rule is too loose for them; kind = "pooled" has them'
        return Outcome(fit.coefficients, "converged", reason, fit.rounds, fit.score)
    reason = "the rounds do not suffice"
    if fit.converged:
        reason = (
            f"the stopping rule was met far from the minimiser (score {fit.score:.2g}): it is "
            "about the length of a step, and steps are short where q is far from 1"
        )
    return Outcome(fit.coefficients, "unconverged", reason, fit.rounds, fit.score)


def _federated(task: Task) -> Outcome:
    _require_a_minimiser(task)
    weights = task.weights()
    objective = task.objective(weights)
    fit = federated_fit(task.loss, objective.clients, task.ridge)
    if fit.converged:
        covariance, reason = covariance_of(objective, fit.coefficients)
        return Outcome(
            fit.coefficients, "converged", reason, fit.rounds, fit.score, weights, covariance
        )
    reason = "the rounds do not suffice: the classes are nearly separable or the features collinear"
    return Outcome(fit.coefficients, "unconverged", reason, fit.rounds, fit.score, weights)


def _undamped(task: Task) -> Outcome:
    _require_a_minimiser(task)
    objective = task.objective()
    rounds = reproduction_of(task.plan).rounds or 1
    end = undamped_iterates(task.loss, objective.clients, task.ridge, rounds=rounds)[-1]
    score = objective.score(objective.gradient(end)) if np.all(np.isfinite(end)) else None
    if score is not None and score <= CONVERGED_SCORE:
        reason = 'no intervals for a reproduction; kind = "federated-newton" has them'
        return Outcome(end, "converged", reason, rounds, score)
    reason = "no intervals: literal steps may rise or cycle, and nothing stops them"
    return Outcome(end, "unconverged", reason, rounds, score)


def _online(task: Task) -> Outcome:
    _require_a_minimiser(task)
    largest = task.plan.largest_weight
    fit = OnlineFit(
        task.loss, task.ridge, task.plan.size,
        first=reproduction_of(task.plan).start or "fitted",
        balance=ClassBalance(largest) if largest > 1 else None,
    )  # fmt: skip
    _stream(task, fit)
    weights = (1.0, 1.0) if fit.balance is None else fit.balance.weights
    objective, end = task.objective(weights), fit.coefficients
    score = objective.score(objective.gradient(end)) if np.all(np.isfinite(end)) else None
    reason = f"no intervals: this recursion keeps no variance; {_LIVE_HAS_THEM}"
    if score is None or score > FAR_SCORE:
        reason += (
            "; these coefficients are far from the best ones of all records (see the score): a "
            'larger window, another start or kind = "pooled" helps'
        )
    return Outcome(end, "one-pass", reason, fit.batches, score, weights)


def _trusted(task: Task) -> Outcome:
    fit = TrustedOnlineFit(
        task.loss, task.ridge, task.plan.size, trusted_noise(task.plan), task.rng()
    )
    _stream(task, fit)
    reason = f"no intervals: the published variance leaves out the summed noise; {_LIVE_HAS_THEM}"
    return Outcome(fit.coefficients, "one-pass", reason, fit.batches)


def _distributed(task: Task) -> Outcome:
    noise, size = shared_noise(task.plan, len(task.clients)), task.plan.size
    balanced = task.plan.largest_weight > 1
    fit = PrivateOnlineFit(task.loss, task.ridge, size, noise, task.rng(), balanced=balanced)
    for batch, slots in zip(task.batches, task.slots, strict=True):
        fit.update(batch, slots)
    reason = f"no intervals: this recursion keeps no variance; {_LIVE_HAS_THEM}"
    if fit.floored:
        reason += (
            f"; {fit.floored} of {size} directions of the curvature are below its noise, and the "
            "estimate is pulled towards earlier ones there"
        )
    return Outcome(fit.coefficients, "one-pass", reason, fit.rounds, weights=fit.weights)


def _require_a_minimiser(task: Task) -> None:
    """Refuse records without a best fit; noised methods do not ask, as that would tell of them."""
    task.objective().require_a_minimiser()
    if task.ridge.weight == 0 and separable(task.together()):
        raise NumericError(_ENDLESS)


def _stream(task: Task, fit: OnlineFit) -> None:
    """Fold all batches that hold a record: one without any says nothing."""
    for number, batch in enumerate(task.batches, 1):
        present = [client for client in batch if len(client)]
        if not present:
            continue
        try:
            fit.update(present)
        except NumericError as error:
            raise NumericError(
                f"batch {number} (window {number} of every client): {error}; larger windows "
                "(window.records) may help as well"
            ) from error


#: By kind.
METHODS: dict[str, Callable[[Task], Outcome]] = {
    "pooled": _pooled,
    "pooled-mm": _pooled_mm,
    "federated-newton": _federated,
    "federated-newton-undamped": _undamped,
    "online-newton": _online,
    "online-newton-laplace": _trusted,
    "online-newton-gaussian": _trusted,
    "online-newton-distributed": _distributed,
}
