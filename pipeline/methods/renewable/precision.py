"""How well noised releases can tell coefficients apart, from public numbers alone.

Used to decide when intervals are given, and to plan a study before there are any data. The noise of
a curvature is a symmetric matrix E with the variance v on its diagonal and v / 2 beside it. Its
largest eigenvalue is near sqrt(2 d v) and the root mean square of all of them is
sqrt((d + 1) v / 2); its spectral size s = sqrt(d v) stands between. Directions in which
M = Abar + ridge R is below READY s are not known beside it; below FLOOR s M is raised.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from pipeline.errors import PrivacyError
from pipeline.methods.renewable.task import RenewableTask

#: Least eigenvalue of the bread with which an interval is given, and its floor, in units of s.
READY, FLOOR = 0.75, 0.5
#: A ridge of so many s, at so many releases for each coefficient, makes intervals certain and
#: hardly longer than they must be.
AMPLE, AT_RELEASES = 1.5, 16
#: Intervals need this many releases for each coefficient, and so many in all: the spread between
#: them is then known well enough, with the factor of `between_releases`, for normal quantiles.
RELEASES_PER_COEFFICIENT, LEAST_RELEASES = 4, 20
#: Share of the releases that the epochs of an estimate hold, in plans: usually more.
RECENT = 0.75
#: No least eigenvalue is said to be further below the noise of one release.
FARTHEST = 1e15


def releases_needed(size: int) -> int:
    """Return how many recent releases intervals of so many coefficients need."""
    return max(RELEASES_PER_COEFFICIENT * size, LEAST_RELEASES)


@dataclass(frozen=True, slots=True)
class Noise:
    """The noise of one release of a study.

    gradient, curvature: Standard deviation of an entry of the gradient, and of the curvature's
        diagonal; > 0.
    size: d, the number of coefficients.
    slots: Record slots of a window.
    """

    gradient: float
    curvature: float
    size: int
    slots: int

    def of_gradient(self, releases: float) -> float:
        """Return the standard deviation of an entry of the mean gradient of one record."""
        return self.gradient / (self.slots * math.sqrt(releases))

    def of_curvature(self, releases: float) -> float:
        """Return s, the spectral size of the noise of the mean curvature of one record."""
        return self.curvature * math.sqrt(self.size / releases) / self.slots

    def certain_ridge(self, releases: float) -> float:
        """Return the least ridge that is enough for intervals of slopes without any curvature."""
        return READY * self.of_curvature(RECENT * releases)

    def ample_ridge(self) -> float:
        """Return a ridge for which intervals come soon, rounded up to two digits."""
        ridge = AMPLE * self.of_curvature(AT_RELEASES * self.size)
        unit = 10.0 ** (math.floor(math.log10(ridge)) - 1)
        return math.ceil(ridge / unit) * unit

    def releases_until(self, least: float) -> float:
        """Return how many releases it takes until M with this least eigenvalue is known.

        least: >= 0; with the ridge, how many suffice for slopes without curvature. 0 gives
            infinity.
        """
        return max(releases_needed(self.size) / RECENT, self._squared(least) / RECENT)

    def slope_error(self, releases: float, ridge: float, norm_bound: float) -> float:
        """Return what the privacy part of a slope's standard error is at most.

        A row of M^-1 is at most norm_bound / ridge long, since a ridge holds all but the
        intercept, and the mean of the features is within the norm bound.

        releases: > 0; the gradients of at least a share RECENT of them are used.
        """
        return self.of_gradient(RECENT * releases) * norm_bound / ridge if ridge else math.inf

    def _squared(self, least: float) -> float:
        # whose square is finite, however small the ridge is
        further = min(READY * self.of_curvature(1.0) / max(least, 1e-300), FARTHEST)
        return further**2 if least > 0 else math.inf


def noise_of(task: RenewableTask) -> Noise:
    """Return the noise of a study's releases behind the public start.

    Raises PrivacyError if the study has no noise, or its releases hold no curvature.
    """
    curvature = task.update_channels.curvature
    if curvature is None:
        raise PrivacyError("the releases of this study hold no curvature")
    return Noise(
        gradient=task.update_channels.gradient.standard_deviation,
        curvature=curvature.standard_deviation,
        size=task.size,
        slots=task.slots,
    )
