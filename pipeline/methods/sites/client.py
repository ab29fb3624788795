"""What all tasks of sites share: long records weigh less, and are not bent.

A record (1, x) beyond the norm bound R weighs R^2 / |(1, x)|^2. The weight depends on x alone, so
that it does not bias what an estimate aims at (docs/methods/noisy-mle.md).
"""

from __future__ import annotations

from abc import abstractmethod

import numpy as np

from pipeline.methods.sites.spec import SiteSpec
from pipeline.release.task import Task
from pipeline.types import Matrix, Vector


class WeighedTask(Task):
    """As `Task`."""

    weighs = True

    @property
    @abstractmethod
    def spec(self) -> SiteSpec:
        """The study's own table."""

    @property
    @abstractmethod
    def squares(self) -> int:
        """How many numbers beside score and curvature a release has: 1 or 0."""

    @property
    @abstractmethod
    def at_models(self) -> bool:
        """Whether releases are taken at models, and not always at 0."""

    @property
    def moving(self) -> bool:
        """Whether it matters to the worker at which point a release was taken."""
        return True

    def record_weights(self, design: Matrix) -> Vector | float:
        return 1.0 if self.norm_bound >= self.longest else weights(design, self.norm_bound)


def weights(design: Matrix, norm_bound: float) -> Vector:
    """Return min(1, R^2 / |row|^2) of each row (1, x), shape (n,).

    One sum for each row, whose order is the row's length alone: the weight of a record does not
    depend on those beside it.
    """
    squares = np.einsum("ij,ij->i", design, design)
    # a hair below, so that no rounding passes the bound
    found: Vector = np.minimum(1.0, norm_bound**2 * (1 - 2.0**-40) / squares)
    return found
