"""Plug-in intervals: the sandwich A^-1 M A^-1 / n with curvature and middle from what was released.

PPI-0 needs no release of its own: A is the least-squares slope of the noised gradients on the
points at which they were taken, M their mean product, noise included. PPI-1 takes A from noised
curvatures instead, which are released beside gradients. The published form releases noised products
as well. Paths of their own, whose data may differ, have A and M of their own.
Source: ldp-sgd, plug-in. PPI-0 and PPI-1 are this project's, and so are pooled paths, which are
independent: their variances add with squared weights.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pipeline.errors import NumericError
from pipeline.linalg import floor_eigenvalues, sandwich, unpack_upper
from pipeline.methods.ldp_sgd.state import Sums
from pipeline.methods.ldp_sgd.step_rule import Known, Scaling
from pipeline.types import Matrix, Vector

#: Eigenvalues of a curvature are raised to this share of their mean.
FLOOR = 0.02
#: Directions that noise hides may hold this share of a coefficient's variance.
HIDDEN = 0.05
#: How far a loss bends hangs on a population that is guessed: it is known to this share of itself.
BENT_ERROR = 0.5


@dataclass(frozen=True, slots=True)
class PlugIn:
    """A covariance of the average iterate of one path.

    curvature: A after its repair, shape (d, d).
    covariance: Of the average, shape (d, d).
    floored: How many eigenvalues of A were raised.
    records: How many the average is over.
    centre: The average of the points, moved by A^-1 times the mean gradient: what it would be if
        the path had come to rest. Shape (d,); None where A is regressed on the path itself.
    width_error: Relative error of each standard error that the noise of a released curvature
        causes, shape (d,); infinite where that noise hides more than `HIDDEN` of the variance.
    there: The curvature where the estimate is, by which `covariance` is, shape (d, d); None where
        that is A.
    """

    curvature: Matrix
    covariance: Matrix
    floored: int
    records: int
    centre: Vector | None = None
    width_error: Vector | None = None
    there: Matrix | None = None

    def privacy_covariance(self, noise: float) -> Matrix:
        """Return the part of the covariance that noise of this variance causes, shape (d, d)."""
        curvature = self.curvature if self.there is None else self.there
        return sandwich(curvature, noise * np.eye(len(curvature))) / self.records


@dataclass(frozen=True, slots=True)
class PooledPlugIn:
    """A covariance of the pooled average of independent paths, weighted by their records.

    paths: The plug-in of each path; one where there is one path, or one that is shared.
    bent: About how far models off the minimum of a curved loss bend the mean of the centres, which
        is taken off it, shape (d,); None where that is not known.
    """

    paths: tuple[PlugIn, ...]
    bent: Vector | None = None

    @property
    def floored(self) -> int:
        """How many eigenvalues were raised, over all paths."""
        return sum(plug.floored for plug in self.paths)

    @property
    def condition(self) -> float:
        """The largest condition number of a path's curvature."""
        return max(float(np.linalg.cond(plug.curvature)) for plug in self.paths)

    @property
    def centre(self) -> Vector | None:
        """The mean of the paths' centres by their records, straight, shape (d,), or None."""
        centres = [plug.centre for plug in self.paths if plug.centre is not None]
        if not centres:
            return None
        mean: Vector = np.average(centres, axis=0, weights=[plug.records for plug in self.paths])
        return mean if self.bent is None else mean - self.bent

    @property
    def width_error(self) -> Vector:
        """The largest of the paths' own, shape (d,); zeros where no curvature was released."""
        known = [plug.width_error for plug in self.paths if plug.width_error is not None]
        return np.max(known, axis=0) if known else np.zeros(len(self.paths[0].curvature))

    @property
    def square(self) -> float:
        """The mean square of predictors by which chance moves the pooled average."""
        own, curvature = self._pooled([p.covariance for p in self.paths]), self.paths[0].curvature
        return float(np.sum(own * curvature)) / float(curvature[0, 0])

    @property
    def covariance(self) -> Matrix:
        """Of the pooled average, shape (d, d); what is taken off counts as known to a half."""
        own = self._pooled([plug.covariance for plug in self.paths])
        return own if self.bent is None else own + np.diag((BENT_ERROR * self.bent) ** 2)

    def privacy_covariance(self, noise: float) -> Matrix:
        """Return the part of the covariance that noise of this variance causes, shape (d, d)."""
        return self._pooled([plug.privacy_covariance(noise) for plug in self.paths])

    def _pooled(self, covariances: Sequence[Matrix]) -> Matrix:
        """Return sum w_p^2 C_p with w_p the shares of the records."""
        total = sum(plug.records for plug in self.paths)
        shares = [plug.records / total for plug in self.paths]
        pooled: Matrix = np.sum(
            [share**2 * part for share, part in zip(shares, covariances, strict=True)], axis=0
        )
        return pooled


def regressed_curvature(parts: Sequence[Sums]) -> Matrix:
    """Return the slope of gradients on their points, symmetrised, shape (d, d); not yet repaired.

    Logs have intercepts of their own: what one regresses on is the wandering within each.

    parts: Sums of the logs of one path: several where partitions share it.

    Raises NumericError if the points do not span all directions yet.
    """
    used = [sums for sums in parts if sums.records]
    if not used:
        raise NumericError(
            "no record has come after the burn-in, so there is nothing to average yet: "
            "more records are needed"
        )
    cross, spread = np.zeros_like(used[0].gu), np.zeros_like(used[0].uu)
    for sums in used:
        cross = cross + sums.gu - np.outer(sums.g, sums.u) / sums.records
        spread = spread + sums.uu - np.outer(sums.u, sums.u) / sums.records
    try:
        slope = np.linalg.solve(spread, cross.T).T
    except np.linalg.LinAlgError as error:
        raise NumericError(
            "the path has not moved in every direction yet, so the curvature cannot be "
            "estimated: more records are needed"
        ) from error
    if not np.isfinite(slope).all():
        raise NumericError(
            "the path has not moved in every direction yet, so the curvature cannot be "
            "estimated: more records are needed"
        )
    return (slope + slope.T) / 2


def plug_in(curvature: Matrix, middle: Matrix, records: int) -> PlugIn:
    """Return the sandwich of a curvature and a middle, both per record, shape (d, d).

    Raises NumericError if the curvature has no positive trace.
    """
    mean = float(np.trace(curvature)) / len(curvature)
    if not mean > 0:
        raise NumericError("the curvature is not positive yet: more records are needed")
    repaired, floored, _ = floor_eigenvalues(curvature, FLOOR * mean)
    return PlugIn(repaired, sandwich(repaired, middle) / records, floored, records)


def without_release(parts: Sequence[Sums]) -> PlugIn:
    """Return PPI-0 of the average of one path, of whose logs these are the sums.

    Raises NumericError as `regressed_curvature` and `plug_in`.
    """
    curvature = regressed_curvature(parts)
    records = sum(sums.records for sums in parts)
    middle: Matrix = np.sum([sums.gg for sums in parts], axis=0) / records
    return plug_in(curvature, middle, records)


def with_curvature(parts: Sequence[Sums], scaling: Scaling | None = None) -> PlugIn:
    """Return PPI-1: the curvature that was released, and the mean product of noised gradients.

    scaling: The public guess of the curvature and the noise of the released one, for `centre` and
        `width_error`; None for the sandwich alone.

    Raises NumericError as `plug_in`.
    """
    records = sum(sums.records for sums in parts)
    middle: Matrix = np.sum([sums.gg for sums in parts], axis=0) / records
    if scaling is None:
        return plug_in(released_mean(parts, 0), middle, records)
    return moved(parts, middle, scaling)


def moved(parts: Sequence[Sums], middle: Matrix, scaling: Scaling) -> PlugIn:
    """Return the sandwich about the average moved by A^-1 times the mean gradient.

    With E the noise of A's mean, the move b errs by A^-1 E b. Entries of E are independent, with
    deviation s on the diagonal and s / sqrt 2 beside it.
    """
    records = sum(sums.records for sums in parts)
    known = scaling.known(released_mean(parts, 0), records)
    inverse = np.asarray(np.linalg.inv(known.curvature), dtype=np.float64)
    mean_point = np.sum([sums.u for sums in parts], axis=0) / records
    move = inverse @ (np.sum([sums.g for sums in parts], axis=0) / records)
    square = scaling.noise**2 / records
    error = square / 2 * (move @ move * np.eye(len(move)) + np.outer(move, move))
    limit = inverse @ middle @ inverse
    covariance = limit / records + inverse @ error @ inverse
    width_error = known_widths(known, middle, math.sqrt(square))
    return PlugIn(
        known.curvature, covariance, known.floored, records, mean_point - move, width_error
    )


def known_widths(known: Known, middle: Matrix, noise: float) -> Vector:
    """As `width_errors`; infinite where too much of a coefficient's variance is hidden, (d,)."""
    inverse = np.asarray(np.linalg.inv(known.curvature), dtype=np.float64)
    hidden = np.diag(known.hidden @ middle @ known.hidden) / np.diag(inverse @ middle @ inverse)
    return np.where(hidden > HIDDEN, np.inf, width_errors(inverse, middle, noise))


def width_errors(inverse: Matrix, middle: Matrix, noise: float) -> Vector:
    """Return the relative error of each standard error, shape (d,), that noise of A causes.

    inverse: A^-1, shape (d, d).
    noise: Deviation of a diagonal entry of A.
    """
    # the variance a' M a of a coefficient, a = A^-1 e_j, errs by 2 a' M A^-1 E a
    left = inverse @ middle @ inverse
    inner = (left * inverse).sum(axis=0) ** 2
    norms = (left**2).sum(axis=0) * (inverse**2).sum(axis=0)
    found: Vector = noise * np.sqrt((inner + norms) / 2) / np.diag(left)
    return found


def published_middle(products: Matrix, noise: float) -> Matrix:
    """Return the middle of the paper's PPI, shape (d, d): noised products and the known noise.

    Gradient, curvature and product are three releases at mu each: sqrt 3 mu. The paper leaves its
    floors of eigenvalues open; here the products' are raised to zero.

    products: Mean of the noised releases, shape (d, d).
    noise: Variance of the noise of one gradient entry, 4 B^2 / mu^2.
    """
    return floor_eigenvalues(products, 0.0).matrix + noise * np.eye(len(products))


def released_mean(parts: Sequence[Sums], number: int) -> Matrix:
    """Return the mean of a released matrix over all record slots, shape (d, d).

    number: 0 for the curvature, 1 for the outer product.
    """
    size = len(parts[0].g)
    packed = size * (size + 1) // 2
    total = np.sum([sums.extra for sums in parts], axis=0)[number * packed :][:packed]
    return unpack_upper(total / sum(sums.records for sums in parts), size)


def standard_errors(plug: PlugIn | PooledPlugIn) -> Vector:
    """Return the standard errors of the average, shape (d,)."""
    return np.sqrt(np.maximum(np.diag(plug.covariance), 0.0))
