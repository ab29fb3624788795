"""Models on the wire, and the newest of them that an honest worker can have published.

Versions rise by one with each publication, and each publication puts one message on the models
topic; one follows another only after a release, but for the first of a worker's start. So offsets
and the length of the releases topic explain every honest version, also where the models topic was
made anew, and compaction and the marks of transactions only leave room. Record slots that a model
says it has seen came in releases. Where both topics were made anew, nothing explains an honest
model, but the clock still bounds it: then the newest possible one is taken, until one comes that is
explained. The successor of a model that passes, passes too.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Annotated, Literal

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
from pipeline.study.model import Study
from pipeline.trust import check_plain
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


#: Publications that no release led to: those of a worker's starts, and of two workers at once.
SPARE = 1024
#: No study is older, in seconds since 1970, and no worker publishes more often in a second.
OLDEST, OFTEN = 1_577_836_800, 1000
Outcome = Literal["taken", "older", "refused"]


def is_possible(study: Study, version: int, now: float) -> bool:
    """Whether a worker can have come to a version by now, seconds since 1970.

    Where the study signs its models, its word is worth more than a clock.
    """
    often = math.inf if study.authenticated else OFTEN * max(0.0, now - OLDEST)
    return version <= min(VERSION_LIMIT, often)


class Newest:
    """The newest believable model among those that it is shown, in the order of the log.

    ends: Returns how far the releases topic reaches: the sum of the next offsets of its partitions.
    clock: Seconds since 1970.

    model: The newest; at first the public start.
    explained: Whether the logs can hold what led to it.
    """

    def __init__(self, task: Task, ends: Callable[[], int], clock: Callable[[], float]) -> None:
        self._study, self._slots = task.study, task.growth.largest
        self._ends, self._clock = ends, clock
        #: Whether ages matter: where they do not, the topic is not asked for its length.
        self._aged = task.counts_slots
        self._releases, self._offset = 0, -1
        self.model: Model = task.first_model
        self.explained = False

    def take(self, offset: int, model: Model) -> Outcome:
        """Look at one model, and say what became of it.

        offset: Where it stands in the models topic.

        Returns: "refused" is one that would be the newest, and that nobody can have published.
        """
        if not self._fits(offset, model):
            ends = self._ends()
            if ends < self._releases or offset <= self._offset:
                # what was explained by logs that are gone is no better than what is new
                self.explained = False
            self._releases = ends
        explained = self._fits(offset, model)
        if not is_possible(self._study, model.version, self._clock()) or self.explained > explained:
            return "refused" if model.version > self.model.version else "older"
        if (explained, model.version) <= (self.explained, self.model.version):
            return "older"
        self.model, self.explained, self._offset = model, explained, offset
        return "taken"

    def _fits(self, offset: int, model: Model) -> bool:
        if model.version > offset + 1 + self._releases + SPARE:
            return False
        watermark = max([model.watermark, *(part.partition_watermark for part in model.parts)])
        return not self._aged or watermark <= self._releases * self._slots
