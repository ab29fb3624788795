"""What a study of sites says in `[estimator.method]`, and what all tasks of sites share.

A record (1, x) beyond the norm bound R weighs R^2 / |(1, x)|^2, and is not bent. The weight depends
on x alone, so that it does not bias what an estimate aims at (docs/methods/noisy-mle.md).
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Annotated

import numpy as np

from pipeline.errors import ConfigError
from pipeline.release.task import Task
from pipeline.study.data import Strict, key
from pipeline.study.model import Study
from pipeline.types import Matrix, Vector

LOSSES = ("linear", "logistic")
#: Share of the records that one site can have in the estimate, unless the study says another.
LARGEST_SHARE = 0.5
#: No model moves the predictor of any record further from the last, until intervals are given.
LONGEST_STEP = 2.0
#: Keys that only the worker reads.
SERVER_KEYS = {
    "estimator.method.largest_share": "how much one site may weigh",
    "estimator.method.sites": "what `study check` reckons with",
}


class SiteSpec(Strict, frozen=True, kw_only=True):
    """`[estimator.method]` of any study of sites."""

    sites: Annotated[
        int,
        key("about how many sites there are, public", 20, ge=1, le=10**6),
    ] = 10
    largest_share: Annotated[
        float,
        key(
            "the most that one site can weigh, as a share of all, in (0, 1]",
            LARGEST_SHARE,
            gt=0,
            le=1,
        ),
    ] = LARGEST_SHARE


def check_sites(study: Study) -> None:
    """Refuse what goes with no method of sites.

    Raises ConfigError, naming the key, what is allowed and the way out.
    """
    kind = study.estimator.kind
    if study.estimator.class_weights is not None:
        raise ConfigError(
            f'estimator.class_weights: kind = "{kind}" does not use this key; remove it'
        )
    if study.largest_share is not None:
        raise ConfigError(
            f'trust.largest_share: kind = "{kind}" bounds what a site weighs, whatever it sends; '
            "use estimator.method.largest_share"
        )


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
