"""The noised parts of a release, and how the parts of single records share one budget."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pipeline.losses import Loss
from pipeline.privacy import sensitivity
from pipeline.privacy.channel import Channel
from pipeline.privacy.mechanisms import Mechanism
from pipeline.privacy.sensitivity import Bounds, Neighbours


@dataclass(frozen=True, slots=True)
class Channels:
    """The noised parts of a release.

    gradient: One vector for each record.
    curvature, off_diagonal: Of the curvature's diagonal, and of its entries off the diagonal; None
        where not released.
    products, products_off_diagonal: The same of the sum of the outer products of records'
        gradients; None where not released.
    """

    gradient: Channel
    curvature: Channel | None
    off_diagonal: Channel | None
    products: Channel | None = None
    products_off_diagonal: Channel | None = None


def of_single_records(
    mechanism: Mechanism,
    loss: Loss,
    bounds: Bounds,
    clipping_norm: float,
    size: int,
    neighbours: Neighbours,
    budget: float,
    shares: Mapping[str, float],
) -> Channels:
    """Return the channels of releases of single records' gradients, and of what is beside them.

    bounds: Of the norms of (1, features), of `size` entries.
    clipping_norm: Bound of the weighted norm.
    budget, shares: What one record's parts may cost together, in the mechanism's own terms, and the
        share of each that is released: "gradients", and "curvature" and "products" of a window's
        sums.
    """
    order = mechanism.order

    def matrix(name: str, factor: float) -> Channel | None:
        if name not in shares:
            return None
        apart = sensitivity.of_outer_product(bounds, factor, clipping_norm, size, neighbours, order)
        rounding = sensitivity.rounding_of_matrix(size, order)
        return mechanism.channel(apart, rounding, budget, shares[name])

    curvature = matrix("curvature", loss.curvature_bound)
    products = matrix("products", loss.slope_bound**2)
    return Channels(
        gradient=mechanism.channel(
            sensitivity.of_record(bounds, loss.slope_bound, clipping_norm, size, neighbours, order),
            sensitivity.rounding_of_vector(size, order),
            budget,
            shares["gradients"],
        ),
        curvature=curvature,
        off_diagonal=curvature and curvature.off_diagonal(),
        products=products,
        products_off_diagonal=products and products.off_diagonal(),
    )
