"""The published method that a study names, run over records that are all at hand. Pure.

Batch b of an online method is window b of every client, in the order in which clients first
appear; a client whose records have ended sends nothing more, but still adds its share of noise.
Source: dwd.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from pipeline.errors import ConfigError, NumericError
from pipeline.estimators.modes.claims import guarantee_of_kind
from pipeline.estimators.modes.methods import METHODS, FitStatus
from pipeline.estimators.modes.task import task_of
from pipeline.local.encode import Row
from pipeline.local.plan import Plan
from pipeline.privacy.policy import Guarantee
from pipeline.study import LIVE_KINDS
from pipeline.types import Matrix, Vector


@dataclass(frozen=True, slots=True)
class ModeFit:
    """What a published method gives.

    Attributes
    ----------
    coefficients
        Shape (d,), the intercept first, on encoded features.
    covariance
        Shape (d, d), or None where the method has no valid intervals.
    status, reason
        How far to trust the coefficients, and why there are no intervals.
    rounds
        Steps over all records, or batches of an online method.
    score
        Largest entry of the mean penalised gradient over all records, each in units of its column's
        root mean square; None where the method is noised, as noise does not cover it.
    weights
        Class weights in the end: negative, positive.
    slots, clients
        Record slots, empty ones included, and clients.
    """

    coefficients: Vector
    covariance: Matrix | None
    status: FitStatus
    reason: str
    rounds: int
    score: float | None
    weights: tuple[float, float]
    slots: int
    clients: int
    guarantee: Guarantee


def fit_mode(plan: Plan, clients: Mapping[str, Sequence[Row | None]]) -> ModeFit:
    """Run the published method that `estimator.kind` names.

    Parameters
    ----------
    clients
        Encoded records of each client in the order of its source; None for an empty slot.

    Raises
    ------
    ConfigError
        If the kind is the live one, or a parameter is outside its range.
    DataError
        If no slot holds a record.
    NumericError
        If the method has no finite estimate for these records.
    PrivacyError
        If no noise scale exists for these parameters.
    """
    kind = plan.study.estimator.kind
    if kind in LIVE_KINDS:
        raise ConfigError(
            f'estimator.kind: fit_mode runs {", ".join(list(METHODS))}; kind = "{kind}" is run by '
            "pipeline.offline.OfflineRun"
        )
    task = task_of(plan, clients)
    guarantee = guarantee_of_kind(plan, len(clients))
    # what overflows shows as a number that is not finite, and is refused below
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        try:
            found = METHODS[kind](task)
        except np.linalg.LinAlgError as error:
            raise NumericError(f"a matrix of this fit cannot be decomposed: {error}") from error
    if not np.all(np.isfinite(found.coefficients)):
        raise NumericError(
            f'kind = "{kind}" ran away to a number that is not finite: a larger estimator.ridge, '
            "larger windows or another kind is needed"
        )
    return ModeFit(
        found.coefficients, found.covariance, found.status, found.reason, found.rounds, found.score,
        found.weights, sum(map(len, clients.values())), len(clients), guarantee,
    )  # fmt: skip
