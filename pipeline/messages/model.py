"""The model on the wire: JSON, on a compacted topic, for clients to linearise at."""

from __future__ import annotations

import math
from typing import Annotated

import msgspec
import numpy as np
from msgspec import Meta

from pipeline.errors import PayloadError
from pipeline.local.model import (
    COEFFICIENT_EXPONENT,
    COEFFICIENT_LIMIT,
    SEEN_LIMIT,
    WEIGHT_EXPONENT,
    Model,
)
from pipeline.local.plan import Plan


class Named(msgspec.Struct, frozen=True):
    """A coefficient by name."""

    name: str
    value: float


class Weights(msgspec.Struct, frozen=True):
    """Class weights."""

    negative: float
    positive: float


class ModelMessage(msgspec.Struct, frozen=True, tag="model/1", tag_field="type"):
    """An expansion point; values are exact multiples of 2^-12, weights of 2^-10.

    Attributes
    ----------
    seen
        Record slots that had been folded; a release at this model says it again.
    """

    study: str
    study_revision: str
    version: Annotated[int, Meta(ge=1, lt=2**53)]
    seen: Annotated[int, Meta(ge=0, le=SEEN_LIMIT)]
    coefficients: list[Named]
    class_weights: Weights
    published_at: str


LARGEST_COEFFICIENT = math.ldexp(COEFFICIENT_LIMIT, COEFFICIENT_EXPONENT)
#: The study file allows no maximum beyond this.
LARGEST_WEIGHT = 1000.0

_DECODER = msgspec.json.Decoder(ModelMessage)


def write_model(plan: Plan, model: Model, published_at: str) -> bytes:
    """Write a model as JSON."""
    pairs = zip(plan.study.coefficient_names, model.coefficients.tolist(), strict=True)
    negative, positive = model.class_weights
    return msgspec.json.encode(
        ModelMessage(
            study=plan.study.name,
            study_revision=plan.revision,
            version=model.version,
            seen=model.seen,
            coefficients=[Named(name, value) for name, value in pairs],
            class_weights=Weights(negative, positive),
            published_at=published_at,
        )
    )


def read_model(plan: Plan, payload: bytes) -> Model:
    """Read a model of this study.

    Raises
    ------
    PayloadError
        If it is no model, one of another study or revision, or off its lattice.
    """
    try:
        message = _DECODER.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise PayloadError("undecodable", "the payload is no model of a known version") from None
    if (message.study, message.study_revision) != (plan.study.name, plan.revision):
        raise PayloadError("wrong-revision", "the model belongs to another study or revision")
    if tuple(c.name for c in message.coefficients) != plan.study.coefficient_names:
        raise PayloadError("wrong-shape", "the model has other coefficients than the study")
    given = [message.class_weights.negative, message.class_weights.positive]
    # before any scaling: a number near the end of the range would overflow
    if not (
        all(abs(c.value) <= LARGEST_COEFFICIENT for c in message.coefficients)
        and all(0 <= weight <= LARGEST_WEIGHT for weight in given)
    ):
        raise PayloadError("out-of-range", "the model is beyond its public limits")
    scaled = [math.ldexp(c.value, -COEFFICIENT_EXPONENT) for c in message.coefficients]
    weights = [math.ldexp(weight, -WEIGHT_EXPONENT) for weight in given]
    if not all(value == math.floor(value) for value in (*scaled, *weights)):
        raise PayloadError("off-lattice", "the model is not on its public lattice")
    lattice = np.array([int(value) for value in scaled], dtype=np.int64)
    return Model(message.version, lattice, (int(weights[0]), int(weights[1])), message.seen)
