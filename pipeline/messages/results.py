"""Results of fits and of grids of backtests, as JSON with published schemas."""

from __future__ import annotations

from typing import Annotated, TypeAlias

import msgspec
import numpy as np
from msgspec import Meta

from pipeline.estimators.estimate import Estimate
from pipeline.messages.envelope import rfc3339
from pipeline.messages.estimate import Coefficient, Finite, coefficients_of
from pipeline.methods.base import FitStatus, OfflineFit, OfflineMethod
from pipeline.privacy.guarantee import Guarantee
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


#: What a study file can hold: numbers, text, and lists and tables of them.
Plain: TypeAlias = bool | int | float | str | None
Value: TypeAlias = Plain | list[Plain] | dict[str, Plain | list[Plain]]


class GridSetting(msgspec.Struct, frozen=True):
    """`settings[]`: a setting with the means of its runs.

    setting: The keys of the study file that it sets, with their values; empty for the study as it
        is.
    draws: Draws of the noise that came to a result; 0 if all failed.
    means: Measures, averaged over the draws: `accuracy`, `balanced_accuracy`, `auc`, `log_loss`,
        `mean_absolute_error`, `root_mean_square_error`; of the last estimate `width` (median width
        of the intervals), `intervals` (share of the coefficients that have one), `coverage` (share
        of the intervals that hold the fit to all records), `privacy_share` (share of the variance
        that is noise), `ready` (1 if its status is "ready", else 0) and `releases`; and `seconds`.
        One that no draw has is left out.
    standard_errors: Of the same means, over the draws; null for one draw.
    without_privacy: The same measures of the run without privacy, null for one that it has not;
        null instead if there is no such run, or it failed.
    """

    setting: dict[str, Value]
    draws: Annotated[int, Meta(ge=0)]
    means: dict[str, Finite]
    standard_errors: dict[str, Finite | None]
    without_privacy: dict[str, Finite | None] | None


class GridFailure(msgspec.Struct, frozen=True):
    """`failed[]`: a run that came to no result.

    setting: As in `settings`.
    draw: Which draw of the noise, from 0; null for the run without privacy.
    error: Why, and what to do.
    exit_code: What the command would end with if this were its only run.
    """

    setting: dict[str, Value]
    draw: Annotated[int, Meta(ge=0)] | None
    error: str
    exit_code: Annotated[int, Meta(ge=1)]


class GridMessage(msgspec.Struct, frozen=True, tag="backtest-grid/1", tag_field="type"):
    """What `veilstream backtest --grid ... --json` prints; computed from raw records, NOT private.

    not_private: Who may see it.
    axes: Keys of the study file, each with the values that were tried.
    settings: One for each combination of the values, the last key running fastest.
    no_open: Why settings have no run without privacy, each reason once.
    failed: Runs that came to no result. If there are any, the command ends with the exit code of
        the first.
    recommended: The keys and values of the setting to take; null if none was scored.
    reason: Why, in sentences.
    warnings: What to look at before it is taken.
    beside: Published methods on the same records, as in the document of one backtest; null without
        `--beside`.
    seconds: How long all runs took.
    """

    not_private: str
    axes: dict[str, list[Value]]
    settings: list[GridSetting]
    no_open: list[str]
    failed: list[GridFailure]
    recommended: dict[str, Value] | None
    reason: str
    warnings: list[str]
    beside: dict[str, dict[str, Plain] | list[dict[str, Plain | dict[str, Plain]]]] | None
    seconds: Annotated[float, Meta(ge=0)]
