"""Encoded records within their public bounds: clipped, clipped to a norm, weighed by class."""

from __future__ import annotations

import numpy as np

from pipeline.records.blocks import finite
from pipeline.release.bounds import RecordBounds
from pipeline.types import Matrix, Vector

#: Smallest norm that is divided by.
TINY = 1e-150


def clipped_to_norm(features: Matrix, bounds: RecordBounds) -> Matrix:
    """Shorten records to the public bound of their norm where the ranges allow longer ones.

    Shapes (n, p), encoded.
    """
    if bounds.norm_bound >= bounds.longest:
        return features
    # a hair below the bound, so that the rounding of the product cannot pass it
    room = np.sqrt(bounds.norm_bound**2 - 1.0) * (1.0 - 2.0**-40)
    # a record of zeros stays one, however little room there is
    norms = np.maximum(np.linalg.norm(features, axis=1), max(float(room), TINY))
    rows: Matrix = features * np.minimum(1.0, room / norms)[:, None]
    return rows


def inside(features: Matrix, bounds: RecordBounds) -> Matrix:
    """Cut encoded records to what ranges and levels allow; 0 where there is no number.

    The encoder gives no others: whatever comes here instead, the declared bounds hold.
    """
    low, high = bounds.ends
    # two looks are cheaper than to cut what the encoder has cut; no number fails the comparison
    if not (features.size and features.min() >= low.max() and features.max() <= high.min()):
        features = np.minimum(np.maximum(finite(features), low), high)
    for block in bounds.encoding.exclusive:
        # of such columns one record has at most one that is not zero
        part = features[:, block]
        if (np.count_nonzero(part, axis=1) > 1).any():
            largest = np.abs(part) == np.abs(part).max(axis=1, keepdims=True)
            first = np.cumsum(largest, axis=1) == 1
            features = features.copy()
            features[:, block] = np.where(largest & first, part, 0.0)
    return features


def weight_of(weights: tuple[float, float], responses: Vector) -> Vector | float:
    """Return the class weight of each record, or the one weight of all."""
    negative, positive = weights
    return positive if negative == positive else np.where(responses > 0, positive, negative)
