"""Prequential scores: what predictions came to, in total and by bins, in constant memory."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from pipeline.estimators.estimate import Estimate
from pipeline.losses import Likelihood, Regression
from pipeline.prediction.scores import Confusion, Errors, Ranking
from pipeline.release.task import Task
from pipeline.types import Matrix, Vector

#: Probabilities are held this far from 0 and 1 before their logarithm is taken.
LEAST = 1e-15
#: Groups of records by their predicted probability.
GROUPS = 10
#: Names of scores for people, those that say most before others.
WORDS = {
    "auc": "AUC",
    "log_loss": "log-loss",
    "balanced_accuracy": "balanced accuracy",
    "accuracy": "accuracy",
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


@dataclass(frozen=True, slots=True)
class ProbabilityGroup:
    """Records whose predicted probabilities are next to each other: a point of calibration.

    records: How many.
    predicted: Mean predicted probability of the positive class, to three digits, as predictors are
        kept in half precision.
    observed: Share of the records that are of it.
    """

    records: int
    predicted: float
    observed: float


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

    def calibration(self, ranking: Ranking | None) -> list[ProbabilityGroup]:
        """Return groups of about as many records each, by probability; empty if there is none."""
        if ranking is None or not isinstance(self._loss, Likelihood):
            return []
        scores, negative, positive = ranking.counted()
        counts = negative + positive
        chances = self._loss.probability(scores, np.ones(len(scores)))
        # equal predictors stay together: the middle one of them says in which group
        places = GROUPS * (np.cumsum(counts) - counts / 2) / counts.sum()
        groups = [places.astype(int) == group for group in range(GROUPS)]
        return [
            ProbabilityGroup(
                int(counts[of].sum()),
                float(chances[of] @ counts[of] / counts[of].sum()),
                float(positive[of].sum() / counts[of].sum()),
            )
            for of in groups
            if of.any()
        ]


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


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What an estimate said when it was published.

    clock: When: seconds since 1970, or a record's number.
    privacy_share: Share of the variance due to privacy, median over coefficients.
    coefficients: On encoded features, shape (d,).
    ends: Lower and upper ends of the intervals on encoded features, each (d,), with NaN where one
        is not known; None without intervals.
    """

    clock: float
    status: str
    records: int
    releases: int
    privacy_share: float | None
    coefficients: Vector
    ends: tuple[Vector, Vector] | None

    @classmethod
    def of(cls, estimate: Estimate, clock: float, level: float) -> Snapshot:
        """Return what an estimate says."""
        ready = estimate.status == "ready"
        return cls(
            clock=clock,
            status=estimate.status,
            records=estimate.records,
            releases=estimate.releases,
            privacy_share=estimate.privacy_share if ready else None,
            coefficients=estimate.coefficients,
            ends=estimate.intervals(level) if ready else None,
        )

    @property
    def width(self) -> float | None:
        """Median width of the intervals; None without any."""
        if self.ends is None or np.isnan(self.ends[0]).all():
            return None
        return float(np.nanmedian(self.ends[1] - self.ends[0]))

    def coverage(self, target: Vector) -> float | None:
        """Return the share of coefficients whose interval holds its target, shape (d,)."""
        if self.ends is None:
            return None
        known = ~np.isnan(self.ends[0])
        if not known.any():
            return None
        inside = (self.ends[0] <= target) & (target <= self.ends[1])
        return float(np.mean(inside[known]))


@dataclass(slots=True)
class Span:
    """What happened in one bin.

    arrived, unusable: Record slots, and those among them without a sound record.
    unscored: Sound records that came before the first estimate.
    tally, frozen: Scores of the updating estimate, and of the frozen one.
    last: The newest estimate that was published in it.
    """

    arrived: int = 0
    unusable: int = 0
    unscored: int = 0
    tally: Tally = field(default_factory=Tally)
    frozen: Tally = field(default_factory=Tally)
    last: Snapshot | None = None

    def merge(self, other: Span) -> None:
        """Take what a later bin holds."""
        self.arrived += other.arrived
        self.unusable += other.unusable
        self.unscored += other.unscored
        self.tally.merge(other.tally)
        self.frozen.merge(other.frozen)
        self.last = other.last or self.last


class Timeline:
    """Bins of equal width; neighbours are joined in pairs when there would be too many.

    most: How many bins there may be.
    width: Of a bin at first, in the unit of the clock, > 0.
    """

    def __init__(self, most: int, width: float) -> None:
        self._most, self.width = most, width
        self.origin: float | None = None
        self._end = 0.0
        self._spans: dict[int, Span] = {}

    def each(self, clock: Vector) -> Iterator[tuple[Span, slice]]:
        """Yield the bins of arrival times that never fall, shape (n,), each with its records."""
        if not len(clock):
            return
        self.reach(float(clock[0]), float(clock[-1]))
        numbers = np.floor((clock - (self.origin or 0.0)) / self.width).astype(np.int64)
        cuts = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), len(numbers)]
        for start, end in itertools.pairwise(cuts):
            yield self._spans.setdefault(int(numbers[start]), Span()), slice(start, end)

    def note(self, snapshot: Snapshot) -> None:
        """Put an estimate into the bin of its time, at most that of the last record."""
        if self.origin is not None:
            number = self._number(min(snapshot.clock, self._end))
            self._spans.setdefault(number, Span()).last = snapshot

    def spans(self) -> Iterator[tuple[float, float, Span]]:
        """Yield start, end and contents of the bins that something came to, in order."""
        origin = self.origin or 0.0
        for number in sorted(self._spans):
            start = origin + number * self.width
            yield start, start + self.width, self._spans[number]

    def reach(self, first: float, last: float) -> None:
        """Make room for records that arrive in this time."""
        if self.origin is None:
            self.origin = first
        self._end = last
        while self._number(last) >= self._most:
            self.width *= 2
            joined: dict[int, Span] = {}
            for number in sorted(self._spans):
                if number // 2 in joined:
                    joined[number // 2].merge(self._spans[number])
                else:
                    joined[number // 2] = self._spans[number]
            self._spans = joined

    def _number(self, clock: float) -> int:
        return math.floor((clock - (self.origin or 0.0)) / self.width)
