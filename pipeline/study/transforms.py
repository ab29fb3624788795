"""Public monotone transforms of a feature: how far apart its values count as."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from pipeline.study.data_tables import Feature
from pipeline.types import Vector


@dataclass(frozen=True, slots=True)
class Transform:
    """A monotone function of x / unit that is 0 at 0.

    forward, inverse: The function, and its inverse on what it gives.
    signed: Whether it takes values below 0.
    scaled: Whether a unit changes more than the unit of what it gives.
    """

    forward: Callable[[Vector], Vector]
    inverse: Callable[[Vector], Vector]
    signed: bool
    scaled: bool


TRANSFORMS = {
    "asinh": Transform(np.arcsinh, np.sinh, signed=True, scaled=True),
    "log1p": Transform(np.log1p, np.expm1, signed=False, scaled=True),
    "sqrt": Transform(np.sqrt, np.square, signed=False, scaled=False),
}


def transformed(feature: Feature, values: Vector) -> Vector:
    """Return values within the range after the feature's transform; as they are without one."""
    if feature.transform is None:
        return values
    return TRANSFORMS[feature.transform].forward(values / (feature.unit or 1.0))


def restored(feature: Feature, values: Vector) -> Vector:
    """Return the values that `transformed` makes these of."""
    if feature.transform is None:
        return values
    found: Vector = TRANSFORMS[feature.transform].inverse(values) * (feature.unit or 1.0)
    return found


def words_of(name: str, feature: Feature) -> str:
    """Return what a number is after its transform, such as "asinh(amount / 100)"."""
    if feature.transform is None:
        return name
    unit = feature.unit or 1.0
    return f"{feature.transform}({name if unit == 1 else f'{name} / {unit:g}'})"
