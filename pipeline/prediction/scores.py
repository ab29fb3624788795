"""Predictions record by record, and their scores."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import RecordError
from pipeline.prediction.estimators import LinearClassifier, Rule
from pipeline.records.values import Record
from pipeline.types import Vector


@dataclass(slots=True)
class Confusion:
    """How often each class was predicted for records of each class; it keeps counts alone.

    counts: By the record's class and the predicted one, each -1 or +1.
    """

    counts: dict[tuple[float, float], int] = field(default_factory=dict)

    def add_all(self, responses: Vector, predicted: Vector) -> None:
        """Count records, shapes (n,)."""
        for response in (-1.0, 1.0):
            for one in (-1.0, 1.0):
                count = np.count_nonzero((responses == response) & (predicted == one))
                key = (response, one)
                self.counts[key] = self.counts.get(key, 0) + int(count)

    def merge(self, other: Confusion) -> None:
        """Count what another one has counted as well."""
        for key, count in other.counts.items():
            self.counts[key] = self.counts.get(key, 0) + count

    @property
    def total(self) -> int:
        """How many records were counted."""
        return sum(self.counts.values())

    @property
    def accuracy(self) -> float | None:
        """Share of records whose class was predicted; None without any."""
        if not self.total:
            return None
        return sum(self.counts.get((c, c), 0) for c in (-1.0, 1.0)) / self.total

    @property
    def balanced_accuracy(self) -> float | None:
        """Mean over both classes of the share that was predicted; None unless both were seen."""
        shares = []
        for one in (-1.0, 1.0):
            seen = sum(self.counts.get((one, other), 0) for other in (-1.0, 1.0))
            if not seen:
                return None
            shares.append(self.counts.get((one, one), 0) / seen)
        return sum(shares) / 2


@dataclass(slots=True)
class Errors:
    """How far predictions of numbers or counts are from the responses as they were written.

    total: How many records were counted.
    absolute, norm: Sum of the errors, and root of the sum of their squares, in units of the
        response.
    """

    total: int = 0
    absolute: float = 0.0
    norm: float = 0.0

    def add_all(self, responses: Vector, predicted: Vector) -> None:
        """Count records, shapes (n,)."""
        errors = np.abs(responses - predicted)
        # a square alone may pass the largest float
        largest = float(errors.max(initial=0.0))
        if largest > 0:
            self.norm = math.hypot(self.norm, largest * float(np.linalg.norm(errors / largest)))
        self.total += len(errors)
        self.absolute += float(errors.sum())

    def merge(self, other: Errors) -> None:
        """Count what another one has counted as well."""
        self.total += other.total
        self.absolute += other.absolute
        self.norm = math.hypot(self.norm, other.norm)

    @property
    def mean_absolute(self) -> float | None:
        """Mean absolute error (MAE), None without records."""
        return self.absolute / self.total if self.total else None

    @property
    def root_mean_square(self) -> float | None:
        """Root of the mean squared error (RMSE), None without records."""
        return self.norm / math.sqrt(self.total) if self.total else None


class Ranking:
    """How well scores put the positive class above the negative one, in constant memory.

    Scores are rounded to half precision (11 significant bits, within +-65504) and counted by class:
    two that round alike count as a tie.
    """

    def __init__(self) -> None:
        self._counts = np.zeros((2, 1 << 16), dtype=np.int64)

    def add_all(self, responses: Vector, scores: Vector) -> None:
        """Count records: classes -1 or +1, and scores that are high for +1; shapes (n,)."""
        # predictions come a few at a time: their cells alone are touched
        np.add.at(self._counts, ((responses > 0).astype(np.intp), _cells(scores)), 1)

    def merge(self, other: Ranking) -> None:
        """Count what another one has counted as well."""
        self._counts += other._counts

    @property
    def area(self) -> float | None:
        """Area under the ROC curve, in [0, 1]; None unless both classes were seen."""
        _, negative, positive = self.counted()
        # in floats: the number of pairs may pass 64 bits
        pairs = float(negative.sum()) * float(positive.sum())
        if not pairs:
            return None
        below = np.cumsum(negative) - negative / 2
        return float(below @ positive.astype(float)) / pairs

    def counted(self) -> tuple[Vector, NDArray[np.int64], NDArray[np.int64]]:
        """Return the scores that came, ascending, and how often in each class, -1 first; (m,)."""
        ranks = np.flatnonzero(self._counts.any(axis=0)).astype(np.uint16)
        bits: NDArray[np.uint16] = np.where(ranks >> 15, ranks & 0x7FFF, ~ranks)
        negative, positive = self._counts[:, ranks]
        return bits.view(np.float16).astype(float), negative, positive


def _cells(scores: Vector) -> NDArray[np.intp]:
    """Return the rank of each score among all numbers of half precision, shape (n,)."""
    half = np.clip(scores, -65504.0, 65504.0).astype(np.float16) + np.float16(0)  # -0 is 0
    bits = half.view(np.uint16)
    # of negative numbers the bits grow with the absolute value
    ranks: NDArray[np.uint16] = np.where(bits >> 15, ~bits, bits | 0x8000)
    return ranks.astype(np.intp)


#: For each record: itself if it can be used, else None and the reason, if there is one.
Sorted: TypeAlias = list[tuple[Record | None, str | None]]


@dataclass(frozen=True, slots=True)
class Prediction:
    """What a rule says of one record.

    value: Of classes the linear predictor, >= 0 for the positive class; else the expected response
        in its own unit. None for a bad record, as are `label` and `probability`.
    label, probability: Of classes alone: the predicted one, as the study file writes it, and the
        probability of the positive one; None also where the loss gives none.
    reason: Why there is no prediction: a column and what is wrong with it, never its value.
    response: The record's own: a class as -1 or +1, else as it is written, also beyond the public
        range; None if it does not say, or says none.
    """

    value: float | None = None
    label: str | None = None
    probability: float | None = None
    reason: str | None = None
    response: float | None = None


def predict_records(
    model: Rule, records: Iterable[Record | None], outside: Counter[str] | None = None
) -> list[Prediction]:
    """Predict for some records at once; one that is None gets neither prediction nor reason.

    The prediction of a record does not depend on the other records.

    outside: Where values outside their public range are counted, by feature.
    """
    found, predictor = _predictors(model, records, outside)
    good = iter(_said(model, predictor))
    return [
        Prediction(reason=reason)
        if record is None
        else Prediction(*next(good), None, _response(model, record))
        for record, reason in found
    ]


def _predictors(
    model: Rule, records: Iterable[Record | None], outside: Counter[str] | None
) -> tuple[Sorted, Vector]:
    """Sort records, and return the linear predictors of those that can be used, in order."""
    found: Sorted = []
    values = []
    for record in records:
        try:
            if record is not None:
                values.append(model.features.values(record))
            found.append((record, None))
        except RecordError as error:
            found.append((None, str(error)))
    table = np.array(values).reshape(len(values), model.n_features_in_)
    if outside is not None:
        outside.update(model.features.outside(table))
    return found, model.predictor_of_values(table)


def _said(model: Rule, predictor: Vector) -> list[tuple[float, str | None, float | None]]:
    """Return value, label and probability of each linear predictor."""
    if not isinstance(model, LinearClassifier):
        return [(value, None, None) for value in model.mean_of(predictor).tolist()]
    labels = model.response.negative, model.response.positive
    chances = model.positive_probability(predictor)
    probabilities = [None] * len(predictor) if chances is None else chances.tolist()
    pairs = zip(predictor.tolist(), probabilities, strict=True)
    return [(value, labels[value >= 0], probability) for value, probability in pairs]


def _response(model: Rule, record: Record) -> float | None:
    given = record.get(model.response.name)
    try:
        if isinstance(model, LinearClassifier):
            return model.response.of_label(given)[0]
        return model.response.value_of(given)
    except RecordError:
        return None
