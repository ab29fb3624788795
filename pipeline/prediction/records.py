"""Predictions record by record: a bad record gets a reason, and the others their prediction."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from pipeline.errors import RecordError
from pipeline.prediction.classifier import LinearClassifier
from pipeline.prediction.files import Rule
from pipeline.records.values import Record
from pipeline.types import Vector

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
