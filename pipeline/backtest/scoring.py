"""Prequential scores: what predictions came to, in total and over time, in constant memory."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from pipeline.losses import Likelihood, Regression
from pipeline.prediction.scores import Confusion, Errors, Ranking
from pipeline.release.task import Task
from pipeline.types import Matrix, Vector

#: Probabilities are held this far from 0 and 1 before their logarithm is taken.
LEAST = 1e-15
#: Names of scores for people.
WORDS = {
    "accuracy": "accuracy",
    "balanced_accuracy": "balanced accuracy",
    "auc": "AUC",
    "log_loss": "log-loss",
    "mean_absolute_error": "mean absolute error",
    "root_mean_square_error": "root mean square error",
}


@dataclass(frozen=True, slots=True)
class Scores:
    """What predictions of some records came to; None where a score has no meaning.

    records: How many were scored.
    accuracy, balanced_accuracy, auc: Of classes, in [0, 1]; the last two need both classes. Scores
        of `auc` are compared in half precision.
    log_loss: Mean of -log of the probability of the true class; for losses with a probability.
    mean_absolute_error, root_mean_square_error: Of numbers and counts, in the response's unit,
        against the response as it was written.
    """

    records: int
    accuracy: float | None = None
    balanced_accuracy: float | None = None
    auc: float | None = None
    log_loss: float | None = None
    mean_absolute_error: float | None = None
    root_mean_square_error: float | None = None


class Judge:
    """What a study's linear predictors mean."""

    def __init__(self, task: Task) -> None:
        self._loss, self.classes = task.loss, task.classes
        self._centre, self._unit = task.response_scale

    def predictor(self, features: Matrix, coefficients: Vector) -> Vector:
        """Return the linear predictor of encoded features (n, p), the same whatever is beside."""
        found: Vector = coefficients[0] + np.einsum("ij,j->i", features, coefficients[1:])
        return found

    def mean(self, predictor: Vector) -> Vector:
        """Return the expected response in its own unit."""
        assert isinstance(self._loss, Regression)  # noqa: S101  the caller has asked `classes`
        return self._centre + self._unit * self._loss.mean(predictor)

    def surprise(self, predictor: Vector, responses: Vector) -> Vector | None:
        """Return -log of the probabilities of the true classes; None where there are none."""
        if not isinstance(self._loss, Likelihood):
            return None
        return -np.log(np.maximum(self._loss.probability(predictor, responses), LEAST))


@dataclass(slots=True)
class Tally:
    """Sums behind `Scores`."""

    confusion: Confusion = field(default_factory=Confusion)
    errors: Errors = field(default_factory=Errors)
    ranking: Ranking | None = None
    surprise: float | None = None

    def add(self, judge: Judge, written: Vector, predictor: Vector) -> None:
        """Count records by their responses as written, and linear predictors; shapes (n,)."""
        if not len(written):
            return
        if not judge.classes:
            self.errors.add_all(written, judge.mean(predictor))
            return
        self.confusion.add_all(written, np.where(predictor >= 0, 1.0, -1.0))
        self.ranking = self.ranking or Ranking()
        self.ranking.add_all(written, predictor)
        surprise = judge.surprise(predictor, written)
        if surprise is not None:
            self.surprise = (self.surprise or 0.0) + float(surprise.sum())

    def merge(self, other: Tally) -> None:
        """Count what another one has counted as well."""
        self.confusion.merge(other.confusion)
        self.errors.merge(other.errors)
        if other.ranking is not None:
            self.ranking = self.ranking or Ranking()
            self.ranking.merge(other.ranking)
        if other.surprise is not None:
            self.surprise = (self.surprise or 0.0) + other.surprise

    @property
    def scores(self) -> Scores:
        """The scores of all records counted."""
        total = self.confusion.total
        return Scores(
            records=total + self.errors.total,
            accuracy=self.confusion.accuracy,
            balanced_accuracy=self.confusion.balanced_accuracy,
            auc=None if self.ranking is None else self.ranking.area,
            log_loss=None if self.surprise is None or not total else self.surprise / total,
            mean_absolute_error=_finite(self.errors.mean_absolute),
            root_mean_square_error=_finite(self.errors.root_mean_square),
        )


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
