"""Predictions record by record: a bad record gets a reason, and the others their prediction."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from pipeline.errors import RecordError
from pipeline.prediction.classifier import LinearClassifier
from pipeline.prediction.linear import LinearModel
from pipeline.prediction.regressor import LinearRegressor
from pipeline.records.values import Record
from pipeline.types import Vector

#: For each record: itself if it can be used, else None and the reason, if there is one.
Sorted: TypeAlias = list[tuple[Record | None, str | None]]


@dataclass(frozen=True, slots=True)
class Prediction:
    """What a classifier says of one record.

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


@dataclass(frozen=True, slots=True)
class Expectation:
    """What a regression says of one record.

    Attributes
    ----------
    value
        The expected response in its own unit; None for a bad record.
    reason
        As for a `Prediction`.
    response
        The record's own response as it is written, also beyond the public range; None if it does
        not say, or says no number or count.
    """

    value: float | None = None
    reason: str | None = None
    response: float | None = None


def predict_records(
    model: LinearClassifier,
    records: Iterable[Record | None],
    outside: Counter[str] | None = None,
) -> list[Prediction]:
    """Predict for some records at once; one that is None gets neither prediction nor reason.

    Parameters
    ----------
    outside
        Where values outside their public range are counted, by feature.
    """
    found, predictor = _predictors(model, records, outside)
    chances = model.positive_probability(predictor)
    probabilities = [None] * len(predictor) if chances is None else chances.tolist()
    good = zip(predictor.tolist(), probabilities, strict=True)
    return [
        Prediction(reason=reason) if record is None else _prediction(model, record, *next(good))
        for record, reason in found
    ]


def expect_records(
    model: LinearRegressor,
    records: Iterable[Record | None],
    outside: Counter[str] | None = None,
) -> list[Expectation]:
    """Return expected responses of some records; one that is None gets neither that nor a reason.

    The expected response of a record does not depend on the records beside it.

    Parameters
    ----------
    outside
        As in `predict_records`.
    """
    found, predictor = _predictors(model, records, outside)
    good = iter(model.mean_of(predictor).tolist())
    return [
        Expectation(reason=reason)
        if record is None
        else Expectation(next(good), None, _response(model, record))
        for record, reason in found
    ]


def _predictors(
    model: LinearModel, records: Iterable[Record | None], outside: Counter[str] | None
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


def _prediction(
    model: LinearClassifier, record: Record, decision: float, probability: float | None
) -> Prediction:
    label = model.response.positive if decision >= 0 else model.response.negative
    try:
        response, _ = model.response.of_record(record)
    except RecordError:
        response = None
    return Prediction(decision, label, probability, None, response)


def _response(model: LinearRegressor, record: Record) -> float | None:
    try:
        return model.response.value_of(record.get(model.response.name))
    except RecordError:
        return None
