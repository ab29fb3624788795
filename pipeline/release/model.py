"""The point at which clients linearise: coefficients and class weights on a public lattice."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from pipeline.errors import NumericError
from pipeline.types import Integers, Vector

#: Coefficients of a published model are integer multiples of 2^-12.
COEFFICIENT_EXPONENT = -12
#: No coefficient of a published model is larger than 2^12 in absolute value.
COEFFICIENT_LIMIT = 2**24
#: Class weights are integer multiples of 2^-10.
WEIGHT_EXPONENT = -10
#: No version is larger, in a model or in a release: a thousand a second come to it in 35 years.
VERSION_LIMIT = 2**40 - 1
#: A count of record slots stays a whole number in float64, and in JSON.
WATERMARK_LIMIT = 2**53 - 1


@dataclass(frozen=True, slots=True)
class Part:
    """What a model says to the clients of one partition, where the study has several paths.

    partition_watermark: Record slots of this partition that had been folded.
    lattice: The point of its own path, as in `Model`; None if all partitions share one.
    ticket: As in `Model`.
    """

    partition_watermark: int
    lattice: Integers | None = None
    ticket: bytes = b""


@dataclass(frozen=True, slots=True)
class Model:
    """An expansion point; version 0 is the public start, with unit weights.

    version: 0 for the start, then rising by one with each publication.
    lattice: Coefficients in units of 2^-12, int64 of shape (d,), the intercept first.
    weights: Weights of the negative and the positive class, in units of 2^-10.
    watermark: Record slots that had been folded when it was published; clients pass it on.
    parts: One for each partition, or none.
    partition_watermark: As in `Part`, in the model of one partition; clients pass it on.
    ticket: What shows that it was published, 16 bytes, where releases are authenticated; clients
        pass it on.
    offsets: How far its estimate had read each partition of the releases topic, the next offset;
        none at the start. A client compares them with the offsets of its own releases.
    """

    version: int
    lattice: Integers
    weights: tuple[int, int]
    watermark: int = 0
    parts: tuple[Part, ...] = ()
    partition_watermark: int | None = None
    ticket: bytes = b""
    offsets: tuple[int, ...] = ()

    def at(self, partition: int) -> Model:
        """Return the model for the clients of one partition."""
        if not self.parts:
            return self
        part = self.parts[partition]
        lattice = self.lattice if part.lattice is None else part.lattice
        return replace(
            self, lattice=lattice, parts=(), partition_watermark=part.partition_watermark,
            ticket=part.ticket,
        )  # fmt: skip

    @property
    def coefficients(self) -> Vector:
        """Coefficients as float64, exact, shape (d,)."""
        return as_floats(self.lattice)

    @property
    def class_weights(self) -> tuple[float, float]:
        """Weights of the negative and the positive class as floats, exact."""
        negative, positive = self.weights
        return math.ldexp(negative, WEIGHT_EXPONENT), math.ldexp(positive, WEIGHT_EXPONENT)


def as_floats(lattice: Integers) -> Vector:
    """Return coefficients on the lattice as float64, exact."""
    return np.ldexp(lattice.astype(np.float64), COEFFICIENT_EXPONENT)


def start_model(size: int, intercept: float = 0.0) -> Model:
    """Return the model that every client knows before the first publication: slopes of zero."""
    first = np.append(intercept, np.zeros(size - 1))
    return round_model(0, first, (1.0, 1.0))


def round_model(
    version: int, coefficients: Vector, weights: tuple[float, float], watermark: int = 0
) -> Model:
    """Round an estimate to the public lattice, within its limits.

    The estimate itself stays as it is; only the point at which clients linearise is rounded.

    watermark: Record slots folded so far, cut at `WATERMARK_LIMIT`.

    Raises NumericError if a coefficient is not a finite number.
    """
    lattice = on_lattice(coefficients)
    negative, positive = (math.floor(math.ldexp(w, -WEIGHT_EXPONENT)) for w in weights)
    return Model(version, lattice, (negative, positive), min(watermark, WATERMARK_LIMIT))


def on_lattice(coefficients: Vector) -> Integers:
    """Round coefficients to the public lattice, within its limits.

    Raises NumericError if one is not a finite number.
    """
    if not np.all(np.isfinite(coefficients)):
        raise NumericError("the estimate holds a number that is not finite")
    largest = math.ldexp(COEFFICIENT_LIMIT, COEFFICIENT_EXPONENT)
    bounded = np.clip(coefficients, -largest, largest)
    lattice: Integers = np.rint(np.ldexp(bounded, -COEFFICIENT_EXPONENT)).astype(np.int64)
    return lattice
