"""A window of single records' gradients at its client, and the noise that each slot needs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from pipeline.linalg import pack_upper
from pipeline.local.encode import Arrays
from pipeline.local.model import Model
from pipeline.local.query import Exact, MatrixPart, OpenQuery, Part, Query
from pipeline.methods.ldp_sgd.gradients import RecordSums, bounded_gradients, open_gradients
from pipeline.privacy.channel import Channel
from pipeline.privacy.randomness import SecureStream
from pipeline.types import Integers

if TYPE_CHECKING:
    from pipeline.methods.ldp_sgd.plan import GradientPlan


@dataclass(frozen=True, slots=True)
class RecordsPart:
    """The gradients of a window's slots, each with the noise of its own level of privacy.

    Attributes
    ----------
    sums
        One gradient of `size` entries for each slot.
    channels
        By level, the strictest first; all have one lattice.
    levels
        The level of each slot, shape (slots,).
    ceiling
        The loosest level that a slot may have.
    """

    sums: Exact
    channels: tuple[Channel, ...]
    levels: Integers
    ceiling: int
    size: int

    def noised(self, stream: SecureStream) -> Integers:
        """As `Part.noised`; a level that is none counts as the strictest: no slot is left bare."""
        channels = self.channels
        rounded = channels[-1].round(self.sums.integers, self.sums.exponents)
        if len(channels) == 1:
            return channels[0].noised(rounded, 1, stream)
        known = (self.levels > 0) & (self.levels < len(channels))
        places = np.minimum(np.where(known, self.levels, 0), self.ceiling)
        values = rounded.reshape(-1, self.size)
        noised = np.empty_like(values)
        for place, channel in enumerate(channels):
            slots = places == place
            part = channel.noised(values[slots].ravel(), 1, stream)
            noised[slots] = part.reshape(-1, self.size)
        return noised.ravel()


def query(plan: GradientPlan, window: Arrays, model: Model) -> Query:
    """As `Plan.query`."""
    sums = bounded_gradients(plan, window.features, window.responses, model, window.levels)
    return query_of(plan, sums)


def query_of(plan: GradientPlan, sums: RecordSums) -> Query:
    """Return the gradients of a window with the noise that each part needs."""
    channels = plan.channels
    parts: dict[str, Part] = {
        "gradient": RecordsPart(
            sums.gradient, plan.record_channels, sums.levels, plan.ceiling, plan.size
        )
    }
    if sums.curvature is not None and channels.curvature and channels.beside:
        parts["curvature"] = MatrixPart(
            sums.curvature, channels.curvature, channels.beside, plan.size, plan.slots
        )
    if sums.products is not None and channels.products and channels.products_beside:
        parts["products"] = MatrixPart(
            sums.products, channels.products, channels.products_beside, plan.size, plan.slots
        )
    return Query(sums.model, parts)


def open_query(plan: GradientPlan, window: Arrays, model: Model) -> OpenQuery:
    """As `Plan.open_query`."""
    sums = open_gradients(plan, window.features, window.responses, model)
    parts = {
        "gradient": sums.gradients.ravel(),
        "curvature": pack_upper(sums.curvature),
        "products": pack_upper(sums.products),
        # no classes are counted; releases without privacy all end with two counts
        "counts": np.zeros(2),
    }
    return OpenQuery(model, sums.records, model.coefficients, parts)
