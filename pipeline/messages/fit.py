"""A fit over a file as JSON, with a published schema; the live estimate has its own."""

from __future__ import annotations

from typing import Annotated

import msgspec
import numpy as np
from msgspec import Meta

from pipeline.estimators.estimate import Estimate
from pipeline.messages.composing import coefficients_of
from pipeline.messages.envelope import rfc3339
from pipeline.messages.estimate import Coefficient, Finite
from pipeline.methods.offline import FitStatus, OfflineFit, OfflineMethod
from pipeline.privacy.policy import Guarantee
from pipeline.release.task import Task


class FitMessage(msgspec.Struct, frozen=True, tag="fit/1", tag_field="type"):
    """Coefficients of an offline method, how it ended, and what it keeps private.

    estimator, method: `estimator.kind`, and what it is with the paper's name.
    interval_method: "sandwich, record scores", or "none": errors and intervals are then null.
    records: Record slots, empty ones included.
    rounds: Steps over all records, or batches of an online method.
    score: Largest entry of the mean penalised gradient over all records, each in units of its
        column's root mean square; null where the method is noised.
    class_weights: Of the last round.
    status: "converged", "unconverged" (the rule was not met, or there is no minimiser), or
        "one-pass" (an online method: it has no stopping rule).
    reason: Why there are no intervals, or what is wrong; empty otherwise.
    """

    study: str
    study_revision: str
    estimator: str
    method: str
    loss: str
    scaling: str
    coefficients: list[Coefficient]
    level: float
    interval_method: str
    records: int
    clients: int
    rounds: Annotated[int, Meta(ge=0)]
    score: Finite | None
    class_weights: dict[str, float]
    privacy: Guarantee
    status: FitStatus
    reason: str
    published_at: str


def compose_fit(
    task: Task,
    method: OfflineMethod,
    fit: OfflineFit,
    *,
    slots: int,
    clients: int,
    published_at: float,
) -> FitMessage:
    """Join a fit with the study that it is of.

    slots, clients: Record slots, empty ones included, and clients.
    published_at: Seconds since 1970.
    """
    study = task.study
    negative, positive = fit.weights
    return FitMessage(
        study=study.name,
        study_revision=task.revision,
        estimator=study.estimator.kind,
        method=": ".join(filter(None, [method.label, method.meaning])),
        loss=study.estimator.loss,
        scaling=study.data.scaling,
        coefficients=coefficients_of(task, _estimate(fit, slots)),
        level=study.estimator.level,
        interval_method="none" if fit.covariance is None else "sandwich, record scores",
        records=slots,
        clients=clients,
        rounds=fit.rounds,
        score=fit.score,
        class_weights={"negative": negative, "positive": positive},
        privacy=method.guarantee(task, clients),
        status=fit.status,
        reason=fit.reason,
        published_at=rfc3339(published_at),
    )


def write_fit(message: FitMessage) -> bytes:
    """Write a fit as JSON."""
    return msgspec.json.encode(message)


def _estimate(fit: OfflineFit, slots: int) -> Estimate:
    """Return what the rows of coefficients are made from; no noise has a part in the variance."""
    return Estimate(
        coefficients=fit.coefficients,
        covariance=fit.covariance,
        privacy_covariance=None if fit.covariance is None else np.zeros_like(fit.covariance),
        weights=fit.weights,
        status="ready" if fit.covariance is not None else "warming",
        reason=fit.reason,
        records=slots,
        releases=0,
        interval="none" if fit.covariance is None else "sandwich, record scores",
    )
