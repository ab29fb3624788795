"""The model on the wire: JSON, on a compacted topic, for clients to linearise at."""

from __future__ import annotations

import math
from typing import Annotated

import msgspec
import numpy as np
from msgspec import Meta

from pipeline.errors import PayloadError
from pipeline.release.model import (
    COEFFICIENT_EXPONENT,
    COEFFICIENT_LIMIT,
    VERSION_LIMIT,
    WATERMARK_LIMIT,
    WEIGHT_EXPONENT,
    Model,
    Part,
    as_floats,
)
from pipeline.release.task import Task
from pipeline.trust.signed import check_plain
from pipeline.types import Integers

Ticket = Annotated[str, Meta(pattern=r"^([0-9a-f]{32})?\Z")]


class Named(msgspec.Struct, frozen=True):
    """A coefficient by name."""

    name: str
    value: float


class Weights(msgspec.Struct, frozen=True):
    """Class weights."""

    negative: float
    positive: float


class PartitionPart(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a model says to the clients of one partition.

    watermark: Record slots of this partition that had been folded; a release says it again.
    coefficients: The expansion point of its clients, in the order of the model's; empty if it is
        the model's.
    ticket: As the model's.
    """

    watermark: Annotated[int, Meta(ge=0, le=WATERMARK_LIMIT)]
    coefficients: list[float] = []
    ticket: Ticket = ""


class ModelMessage(
    msgspec.Struct, frozen=True, tag="model/2", tag_field="type", omit_defaults=True
):
    """An expansion point; values are exact multiples of 2^-12, weights of 2^-10.

    watermark: Record slots that had been folded; a release at this model says it again.
    partitions: One entry for each partition where locally private gradients come in several, else
        none.
    ticket: 16 bytes in hexadecimal digits that a release at this model says again, where releases
        are authenticated.
    next_offsets: For each partition of the releases topic, in their order, the offset behind the
        last record that it stands for; none in a model that does not say.
    """

    study: str
    study_revision: str
    version: Annotated[int, Meta(ge=1, le=VERSION_LIMIT)]
    watermark: Annotated[int, Meta(ge=0, le=WATERMARK_LIMIT)]
    coefficients: list[Named]
    class_weights: Weights
    published_at: str
    partitions: list[PartitionPart] = []
    ticket: Ticket = ""
    next_offsets: list[Annotated[int, Meta(ge=0, le=WATERMARK_LIMIT)]] = []


LARGEST_COEFFICIENT = math.ldexp(COEFFICIENT_LIMIT, COEFFICIENT_EXPONENT)
#: The study file allows no maximum beyond this.
LARGEST_WEIGHT = 1000.0

_DECODER = msgspec.json.Decoder(ModelMessage)


def write_model(task: Task, model: Model, published_at: str) -> bytes:
    """Write a model as JSON."""
    pairs = zip(task.study.coefficient_names, model.coefficients.tolist(), strict=True)
    negative, positive = model.class_weights
    return msgspec.json.encode(
        ModelMessage(
            study=task.study.name,
            study_revision=task.revision,
            version=model.version,
            watermark=model.watermark,
            coefficients=[Named(name, value) for name, value in pairs],
            class_weights=Weights(negative, positive),
            published_at=published_at,
            partitions=[
                PartitionPart(
                    part.partition_watermark,
                    [] if part.lattice is None else as_floats(part.lattice).tolist(),
                    part.ticket.hex(),
                )
                for part in model.parts
            ],
            ticket=model.ticket.hex(),
            next_offsets=list(model.offsets),
        )
    )


def read_model(task: Task, payload: bytes) -> Model:
    """Read a model of this study.

    PayloadError if it is no model, one of another study or revision, or off its lattice.
    """
    check_plain(payload)
    try:
        message = _DECODER.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise PayloadError("undecodable", "the payload is not a model of a known version") from None
    if (message.study, message.study_revision) != (task.study.name, task.revision):
        raise PayloadError("wrong-revision", "the model belongs to another study or revision")
    if tuple(c.name for c in message.coefficients) != task.study.coefficient_names:
        raise PayloadError("wrong-shape", "the model has other coefficients than the study")
    negative, positive = _on_lattice(
        [message.class_weights.negative, message.class_weights.positive],
        WEIGHT_EXPONENT,
        (0, LARGEST_WEIGHT),
    ).tolist()
    _check_weights(task, negative, positive)
    lattice = _coefficients([c.value for c in message.coefficients])
    parts = tuple(_read_part(task, part) for part in message.partitions)
    count = task.study.stream.partitions
    paths = len(parts) == (count if task.partition_strategy else 0)
    if not paths or len(message.next_offsets) not in {0, count}:
        raise PayloadError("wrong-shape", "the model is for another number of partitions")
    return Model(
        message.version, lattice, (negative, positive), message.watermark, parts,
        ticket=bytes.fromhex(message.ticket), offsets=tuple(message.next_offsets),
    )  # fmt: skip


def _check_weights(task: Task, *weights: int) -> None:
    """Refuse weights that no counts lead to: releases under them could be worth nothing."""
    unit = math.ldexp(1.0, WEIGHT_EXPONENT)
    most = math.ceil(task.largest_weight / unit)
    # of n / (2 n_class) the least is 1/2; where no weight may exceed 1, all are 1
    least = round(0.5 / unit) if task.largest_weight > 1 else most
    if not all(least <= weight <= most for weight in weights):
        raise PayloadError("out-of-range", "the class weights are beyond those of the study")


def _read_part(task: Task, part: PartitionPart) -> Part:
    if len(part.coefficients) != (task.size if task.partition_strategy == "pooled" else 0):
        raise PayloadError("wrong-shape", "a partition of the model has other coefficients")
    lattice = _coefficients(part.coefficients) if part.coefficients else None
    return Part(part.watermark, lattice, bytes.fromhex(part.ticket))


def _coefficients(values: list[float]) -> Integers:
    return _on_lattice(values, COEFFICIENT_EXPONENT, (-LARGEST_COEFFICIENT, LARGEST_COEFFICIENT))


def _on_lattice(values: list[float], exponent: int, ends: tuple[float, float]) -> Integers:
    """Return numbers in units of 2^exponent, or refuse them."""
    # before any scaling: a number near the end of the range would overflow
    if not all(ends[0] <= value <= ends[1] for value in values):
        raise PayloadError("out-of-range", "the model is beyond its public limits")
    scaled = [math.ldexp(value, -exponent) for value in values]
    if not all(value == math.floor(value) for value in scaled):
        raise PayloadError("off-lattice", "the model is not on its public lattice")
    return np.array([int(value) for value in scaled], dtype=np.int64)
