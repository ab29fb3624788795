"""The curvature of a loss with a lower bound than its own: what a noised release sums.

Over a width h it is at most what V' gains on its whole way over 2h: for generalised DWD 1 / (2h),
where V'' reaches (q + 1)^2 / q beside its kink. The noise falls as much. Most losses give their
secant (V'(u + h) - V'(u - h)) / 2h, the mean of V'' over u - h to u + h. One with a peak levels it
to that bound and keeps the rest, which is nearer to V'' with the same noise. Coefficients that are
uncertain by more than h have a mean score that bends so, and not by V''.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from pipeline.losses.base import Loss
from pipeline.types import Vector

#: Returns a curvature within [0, bound], its peak spread out but not moved.
Levelled: TypeAlias = Callable[[Vector, Vector, float], Vector]


@dataclass(frozen=True, slots=True)
class Secant:
    """The curvature of `loss` over a `width`; a width of 0 leaves the loss's own.

    width: h >= 0, in units of the linear predictor.
    """

    loss: Loss
    width: float

    @property
    def bound(self) -> float:
        """Largest curvature over all predictors and responses: a public constant."""
        if not self.width:
            return self.loss.curvature_bound
        return min(self.loss.sharp_curvature_bound, self.loss.slope_range / (2 * self.width))

    @property
    def levels(self) -> bool:
        """Whether it levels a peak of the loss's curvature."""
        return self.width > 0 and hasattr(self.loss, "levelled_curvature")

    def of(self, predictor: Vector, response: Vector) -> Vector:
        """Return the curvature of each record, shape (n,), within the bound up to rounding."""
        if not self.width:
            return self.loss.curvature(predictor, response)
        # losses whose curvature has a peak level it themselves
        levelled: Levelled | None = getattr(self.loss, "levelled_curvature", None)
        if levelled is not None:
            return levelled(predictor, response, self.bound)
        above = self.loss.slope(predictor + self.width, response)
        return (above - self.loss.slope(predictor - self.width, response)) / (2 * self.width)
