"""What a method returns, and the sentence that says what it keeps private."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.types import Vector

POOLED = "no privacy: the raw records of all clients lie in one place"
FEDERATED = (
    "no differential privacy: clients send exact sums, and from the sums of a single record its "
    "features can be computed"
)


@dataclass(frozen=True, slots=True)
class Fit:
    """A fit to records that are all at hand.

    Attributes
    ----------
    coefficients
        Shape (d,), the intercept first.
    rounds
        Steps taken.
    score
        Largest entry of the mean gradient there, each in units of its column's root mean square.
    converged
        Whether the stopping rule was met within the rounds allowed.
    guarantee
        What is kept private, in one sentence.
    """

    coefficients: Vector
    rounds: int
    score: float
    converged: bool
    guarantee: str
