"""What floating point can do to copies: to a window's fit, and to what is drawn around it.

All bounds are worst cases over data, from public numbers alone: docs/privacy/copies.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from pipeline.privacy.normals import FARTHEST
from pipeline.release.layout import Field

#: Twice the relative error of one operation.
MACHINE = 2.0**-52
#: What the end of Newton's method can add to a change, as a share of it, with room for the rest.
NEWTON = 1e-6


@dataclass(frozen=True, slots=True)
class Sizes:
    """The public numbers that errors grow with.

    size, slots: Coefficients d, and records of a window n.
    ridge, most: Least and largest eigenvalue that the information of a window can have.
    """

    size: int
    slots: int
    ridge: float
    most: float

    @property
    def _solving(self) -> float:
        """Relative error of sums over records, a Cholesky factor and its inverse, of `most`."""
        return (2 * self.slots + 20 * (self.size + 1) ** 2) * MACHINE * self.most / self.ridge

    def of_linear(self, gain: float) -> float:
        """Return what errors of linear fits add to a change, as a share of it.

        gain: Largest w x' F^-1 x / deviation^2 of one record, > 0.
        """
        return NEWTON + self._solving * max(1.0, math.sqrt(1 + gain) / gain)

    def of_logistic(self, longest: float, point: float, norm: float) -> float:
        """Return what errors of logistic fits add to a change, as a share of it.

        longest, norm: Largest norm of a row, and of one times its weight.
        point: Largest norm of a model's coefficients.
        """
        predictor = (self.size + 2) * longest * (point + self.slots * norm / self.ridge)
        slopes = self.slots * (self.slots + 4 + predictor) * MACHINE
        return NEWTON + self._solving + slopes


def distance(mean: Field, scatter: Field, size: int, copies: int, spread: float) -> float:
    """Return the total variation of what is drawn from rounded exact copies, at most.

    spread: Largest variance that a copy can have, psi / ridge.
    """
    moved = (size + 8) * MACHINE * math.sqrt(size * spread / copies) * FARTHEST
    moved += MACHINE * mean.largest * 2.0**mean.exponent
    # the squares of d (K - 1) normal numbers pass this once in e^128
    squares = (math.sqrt(size * copies) + 16) ** 2
    bent = (copies + 2 * size + 24) * MACHINE * squares * spread
    apart = mean.length * moved * 2.0**-mean.exponent
    return 4 * (apart + scatter.length * bent * 2.0**-scatter.exponent)
