"""What an estimator yields: coefficients, both parts of their variance, how far to trust it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import scipy

from pipeline.types import Matrix, Vector

#: Why there is no interval although there are records enough.
FAR = (
    "clients computed too many of these releases at models far from this estimate, so intervals "
    "would be too short: wait for more releases at newer models, or use larger windows "
    "(window.records)"
)
#: "empty": nothing folded; "starting": only releases from the public start; "warming": too little
#: information for intervals; "ready".
Status = Literal["empty", "starting", "warming", "ready"]


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a stream is on the way to an interval for every coefficient.

    share: In [0, 1]; 1 where all have one.
    records: About how many record slots are missing, with as many empty ones among them as so far;
        None while nobody can tell.
    """

    share: float
    records: int | None

    @classmethod
    def of(cls, share: float, slots: int) -> Progress:
        """Return that of a stream that has come so far with so many record slots."""
        missing = slots * (1 / share - 1) if share > 0 else math.inf
        return cls(share, math.ceil(missing) if missing < 1e15 else None)


@dataclass(frozen=True, slots=True)
class Estimate:
    """Coefficients with the two sources of their variance.

    coefficients: Shape (d,), the intercept first, on encoded features.
    status, reason: Whether intervals are given, and if not, why and what would help.
    records, releases: Record slots and releases folded.
    covariance, privacy_covariance: Total, and the part that the privacy noise causes; shape (d, d),
        or None without intervals.
    weights: Class weights for the next model: negative, positive.
    condition: Condition number of the curvature after its repair; None before the first release.
    floored: How many eigenvalues of the noisy curvature were raised.
    dispersion: Mean squared slope over mean curvature: the residual variance of a linear regression
        in encoded units, 1 for counts that are truly Poisson; None where it is not estimated.
    effective_records: (sum w n)^2 / sum w^2 n over the releases that the coefficients rest on, n
        record slots of weight w each: their number where nothing is forgotten. None where it is not
        known.
    point: Where clients linearise next, if not at the coefficients, shape (d,).
    widths: Half the length of the intervals at a level, by method, where they are not those of a
        normal estimate with `covariance`.
    staleness: How many records late the models of releases were on average; None where it is not
        known.
    interval: By what method the intervals that are shown are made.
    needs: What the intervals of each method of `widths` are read from, and what that costs, in
        words.
    kept: About which share of its size without a penalty each coefficient keeps, the others held,
        shape (d,); NaN or None where that is not known.
    progress: Towards intervals; None where the method has no measure of it.
    details: What else the method says, as JSON has it.
    """

    coefficients: Vector
    status: Status
    reason: str
    records: int
    releases: int
    covariance: Matrix | None = None
    privacy_covariance: Matrix | None = None
    weights: tuple[float, float] = (1.0, 1.0)
    condition: float | None = None
    floored: int = 0
    dispersion: float | None = None
    effective_records: float | None = None
    point: Vector | None = None
    widths: Mapping[str, Callable[[float], Vector]] | None = None
    staleness: float | None = None
    interval: str = "none"
    needs: Mapping[str, str] = field(default_factory=dict)
    kept: Vector | None = None
    progress: Progress | None = None
    details: Mapping[str, Any] = field(default_factory=dict)

    @property
    def expansion(self) -> Vector:
        """Where clients linearise next, shape (d,)."""
        return self.coefficients if self.point is None else self.point

    @property
    def privacy_share(self) -> float | None:
        """Median over the coefficients of privacy variance / total variance; None as intervals.

        A ratio for each coefficient, so that no unit of a feature rules it.
        """
        errors = self.standard_errors()
        if errors is None:
            return None
        known = errors[0] > 0
        return float(np.median((errors[2][known] / errors[0][known]) ** 2)) if known.any() else 0.0

    def standard_errors(self) -> tuple[Vector, Vector, Vector] | None:
        """Return total, sampling and privacy standard errors, each (d,), or None.

        NaN stands for a coefficient of which the data say too little.

        The sampling variance is the total less the known privacy variance, never below zero; the
        total is never below the privacy variance, which is known and not estimated.
        """
        if self.covariance is None or self.privacy_covariance is None:
            return None
        privacy = np.diag(self.privacy_covariance)
        total = np.maximum(np.diag(self.covariance), privacy)
        return np.sqrt(total), np.sqrt(total - privacy), np.sqrt(privacy)

    def intervals(self, level: float, method: str | None = None) -> tuple[Vector, Vector] | None:
        """Return lower and upper ends of the intervals at `level`, each (d,), or None.

        method: A key of `widths`; anything else means the normal intervals of the covariance. By
            default those that are shown.
        """
        method = self.interval if method is None else method
        if self.widths and method in self.widths:
            reach = self.widths[method](level)
        else:
            errors = self.standard_errors()
            if errors is None:
                return None
            reach = float(scipy.special.ndtri((1 + level) / 2)) * errors[0]
        return self.coefficients - reach, self.coefficients + reach


def kept_of(bread: Matrix, penalty: Vector) -> Vector:
    """Return which share of its size without the penalty each coefficient keeps, shape (d,).

    bread: Mean curvature A and the penalty R together: the fit is (A + R)^-1 A times that without.
    """
    try:
        shares: Vector = 1.0 - penalty * np.diag(np.linalg.inv(bread))
    except np.linalg.LinAlgError:
        return np.full(len(bread), math.nan)
    return np.clip(shares, 0.0, 1.0)


def median_kept(bread: Matrix, penalty: Vector) -> float | None:
    """Return the median of `kept_of` over slopes; None without any, or where it is unknown."""
    found = float(np.median(kept_of(bread, penalty)[1:])) if len(bread) > 1 else math.nan
    return None if math.isnan(found) else found


def is_far(bent: float, variances: Vector) -> bool:
    """Whether what linearised scores leave out is not small compared with the standard errors.

    It is the same for all records.

    bent: About how far it moves predictors: half the mean square of their distance from where
        scores were taken, times the loss's `remainder`.
    variances: Of the coefficients, shape (d,); NaN where unknown.
    """
    if np.isnan(variances).all():
        return False
    return bent > math.sqrt(max(float(np.nanmin(variances)), 0.0))


def dispersion_of(square: float, curvature: float) -> float | None:
    """Return mean squared slope over mean curvature, None where noise has drowned one of them."""
    return square / curvature if square > 0 and curvature > 0 else None


def class_weights(negative: float, positive: float, largest: float) -> tuple[float, float]:
    """Return n / (2 n_class) for both classes, at most `largest`; (1, 1) when `largest` is 1.

    Noised counts may be zero or negative: such a class gets the largest weight.
    """
    if largest <= 1.0:
        return 1.0, 1.0
    total = max(negative, 0.0) + max(positive, 0.0)
    if total <= 0:
        return 1.0, 1.0
    least = total / (2 * largest)
    return total / (2 * max(negative, least)), total / (2 * max(positive, least))
