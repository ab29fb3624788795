"""A window of single records' gradients at its client, and the noise that each slot needs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from pipeline.linalg import pack_upper
from pipeline.methods.ldp_sgd.gradients import RecordSums, bounded_gradients, open_gradients
from pipeline.privacy.channel import Channel
from pipeline.privacy.randomness import SecureStream
from pipeline.records.encode import Arrays
from pipeline.release.model import Model
from pipeline.release.query import Exact, MatrixPart, OpenQuery, Part, Piece, Query, with_noise
from pipeline.types import Integers

if TYPE_CHECKING:
    from pipeline.methods.ldp_sgd.task import GradientTask


@dataclass(frozen=True, slots=True)
class RecordsPart:
    """The gradients of a window's slots, each with the noise of its own level of privacy.

    sums: One gradient of `size` entries for each slot.
    channels: By level, the strictest first; all have one lattice.
    levels: The level of each slot, shape (slots,).
    ceiling: The loosest level that a slot may have.
    """

    sums: Exact
    channels: tuple[Channel, ...]
    levels: Integers
    ceiling: int
    size: int

    def pieces(self) -> tuple[Piece, ...]:
        """As `LatticePart.pieces`: by level; one that is none counts as the strictest."""
        channels = self.channels
        rounded = channels[-1].round(self.sums.integers, self.sums.exponents)
        if len(channels) == 1:
            return (Piece(slice(None), rounded, channels[0]),)
        known = (self.levels > 0) & (self.levels < len(channels))
        places = np.repeat(np.minimum(np.where(known, self.levels, 0), self.ceiling), self.size)
        return tuple(
            Piece(places == place, rounded[places == place], channel)
            for place, channel in enumerate(channels)
        )

    def noised(self, stream: SecureStream) -> Integers:
        """As `Part.noised`: one record alone contributes to each number."""
        return with_noise(self.pieces(), 1, stream)[0]


def query(task: GradientTask, window: Arrays, model: Model) -> Query:
    """As `Task.query`."""
    sums = bounded_gradients(task, window.features, window.responses, model, window.levels)
    return query_of(task, sums)


def query_of(task: GradientTask, sums: RecordSums) -> Query:
    """Return the gradients of a window with the noise that each part needs."""
    channels = task.channels
    parts: dict[str, Part] = {
        "gradient": RecordsPart(
            sums.gradient, task.record_channels, sums.levels, task.budget.ceiling, task.size
        )
    }
    if sums.curvature is not None and channels.curvature and channels.off_diagonal:
        parts["curvature"] = MatrixPart(
            sums.curvature, channels.curvature, channels.off_diagonal, task.size, task.slots
        )
    if sums.products is not None and channels.products and channels.products_off_diagonal:
        parts["products"] = MatrixPart(
            sums.products, channels.products, channels.products_off_diagonal, task.size, task.slots
        )
    return Query(sums.model, parts)


def open_query(task: GradientTask, window: Arrays, model: Model) -> OpenQuery:
    """As `Task.open_query`."""
    sums = open_gradients(task, window.features, window.responses, model)
    parts = {"gradient": sums.gradients.ravel()}
    if sums.curvature is not None:
        parts["curvature"] = pack_upper(sums.curvature)
    if sums.products is not None:
        parts["products"] = pack_upper(sums.products)
    return OpenQuery(model, sums.records, model.coefficients, parts)
