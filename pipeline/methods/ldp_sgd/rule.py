"""What is public about a path: its steps and how they are scaled, its burn-in, its start."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.methods.ldp_sgd.scaling import Scaling
from pipeline.methods.ldp_sgd.steps import StepRule
from pipeline.types import Vector

#: The first copy of the sums after the burn-in is made no earlier than after so many records.
LEAST_MARK = 1000


@dataclass(frozen=True, slots=True)
class Rule:
    """What is public about a path.

    steps: The step sizes.
    burn_in: Records before the sums begin, >= 0; copies are kept at burn_in 2^j.
    start: theta_0, shape (d,). Zero in a shared path, whose start is added by who brings the parts
        together.
    full: Whether A is a matrix, for intervals of contrasts, or its diagonal alone.
    extra: How many numbers come beside the gradients of a release.
    shared: Whether the path is one partition's part of a path that several move.
    scaling: The matrix in front of the gradients; None for the identity.
    """

    steps: StepRule
    burn_in: int
    start: Vector
    full: bool = False
    extra: int = 0
    shared: bool = False
    scaling: Scaling | None = None

    @property
    def unit(self) -> int:
        """Copies of the sums are made after unit (2^j - 1) records that count, j >= 0."""
        return max(self.burn_in, LEAST_MARK)
