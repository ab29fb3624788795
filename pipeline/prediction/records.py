"""Predictions record by record: a bad record gets a reason, and the others their prediction."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from pipeline.errors import RecordError
from pipeline.local.values import Record
from pipeline.prediction.classifier import LinearClassifier


@dataclass(frozen=True, slots=True)
class Prediction:
    """What a model says of one record.

    Attributes
    ----------
    decision
        The linear predictor, >= 0 for the positive class; None for a bad record, as are `label`
        and `probability`.
    label
        The predicted class, as the study file writes it.
    probability
        Of the positive class; None also where the loss gives none.
    reason
        Why there is no prediction: a column and what is wrong with it, never its value.
    response
        The record's own class, -1 or +1; None if it does not say, or says an unknown one.
    """

    decision: float | None = None
    label: str | None = None
    probability: float | None = None
    reason: str | None = None
    response: float | None = None


def predict_records(model: LinearClassifier, records: Iterable[Record | None]) -> list[Prediction]:
    """Predict for some records at once; one that is None gets neither prediction nor reason."""
    found: list[tuple[Record | None, str | None]] = []
    values = []
    for record in records:
        try:
            if record is not None:
                values.append(model.features.values(record))
            found.append((record, None))
        except RecordError as error:
            found.append((None, str(error)))
    predictor = model.predictor_of_values(
        np.array(values).reshape(len(values), model.n_features_in_)
    )
    chances = model.positive_probability(predictor)
    probabilities = [None] * len(values) if chances is None else chances.tolist()
    good = zip(predictor.tolist(), probabilities, strict=True)
    return [
        Prediction(reason=reason) if record is None else _prediction(model, record, *next(good))
        for record, reason in found
    ]


def _prediction(
    model: LinearClassifier, record: Record, decision: float, probability: float | None
) -> Prediction:
    label = model.response.positive if decision >= 0 else model.response.negative
    try:
        response, _ = model.response.of_record(record)
    except RecordError:
        response = None
    return Prediction(decision, label, probability, None, response)


@dataclass(slots=True)
class Confusion:
    """How often each class was predicted for records of each class; it keeps counts alone.

    Attributes
    ----------
    counts
        By the record's class and the predicted one, each -1 or +1.
    """

    counts: dict[tuple[float, float], int] = field(default_factory=dict)

    def add(self, response: float, predicted: float) -> None:
        """Count one record."""
        key = (response, predicted)
        self.counts[key] = self.counts.get(key, 0) + 1

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
