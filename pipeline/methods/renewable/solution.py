"""The coefficients from the sums of the newest epochs, and what is known of their errors.

theta = t - M^-1 (G / N + ...), one step of Newton's method from the mean model t of the releases
with the mean score G / N and the mean curvature A, where A is known beside its noise; where it is
not, coefficients are drawn to 0. With the eigenvalues a_i and vectors v_i of A, a ridge that the
study asks for included, and s the spectral size of its noise,

    w_i = clip(1 - a_i / 1.75 s, 0, 1),  r_i = s w_i,  m_i = max(max(a_i, 0) + r_i, s / 2),
    step = sum_i v_i (v_i' score + r_i v_i't) / m_i.

So a ridge stands where the curvature is not known, and nowhere else, and vanishes with the noise.
The covariance is the sandwich of M with the released middle of it, the noise of scores, and that of
the curvature times the step. Derived in docs/methods/renewable.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.polynomial.hermite_e import hermegauss
from numpy.typing import NDArray

from pipeline.errors import PrivacyError
from pipeline.methods.renewable.client import RenewableTask
from pipeline.methods.renewable.state import Sums
from pipeline.types import Matrix, Vector

#: An eigenvalue of so many s is known.
KNOWN = 1.75
#: Where many directions are unknown, noise alone makes an eigenvalue of 1.4 s: what it hides is
#: surely nothing from so many s on.
SURELY_KNOWN = 2.5
#: No eigenvalue of M is below so many s.
FLOOR = 0.5
#: A coefficient has no interval where what unknown directions may hide of it is more than this
#: share of the rest of its variance.
HIDE = 0.5
#: Coefficients along a direction of which nothing is known may be so large at least, by loss: units
#: of log odds, of the largest residual that counts in full, of the log of a mean. Real features
#: that fill a sliver of their range have larger ones than the directions that are known.
USUAL = {"gdwd": 0.5, "logistic": 1.0, "linear": 0.25, "poisson": 0.3}
#: A feature whose values fill too little of its range to be seen may matter like any other: it may
#: add so much to the mean square of predictors, by loss. Without it classes have smaller
#: coefficients, and counts another intercept; means of numbers have the same.
LEFT_OUT = {"gdwd": 1.0, "logistic": 3.0, "poisson": 0.25}
#: An eigenvalue of which nothing is known is no smaller than this share of s, but once in ten.
LOWEST = 0.01
#: The variance of a logistic variable over that of the normal one whose law is nearest, inverse.
AS_NORMAL = 0.346
#: A score that unknown directions leave is no chance from so many standard deviations on.
LEFT_OVER = 2.0
#: What a coefficient lacks is a share of its size, to which so many of its errors are added: else
#: those that are near 0 by chance would be the ones with an interval.
SELECTED = 1.5
#: Below this share of the ridge in M, what it takes off a direction is known from what it leaves.
PARTLY = 0.7
#: A step ends where curvature says nothing any more. It moves no record's predictor further than
#: the first, or all of them, as the root of their mean square weighed by curvature, no further than
#: the second; of the two the longer step is taken, the second where features fill little of ranges.
LONGEST_STEP, FARTHEST = 2.0, 0.5
#: Coefficients that are so many standard errors from the mean model of their releases still move;
#: as do those of which a shortened step leaves out more than the share `HIDE` of their variance.
MOVING = 5.0
#: Where models differ so much that predictors have the mean square distance D, linearised scores
#: move the estimate's by half of it, times how fast the curvature changes.
SECOND_ORDER = 0.5
#: It counts so many times as much as chance: intervals know chance and not the bend.
CAUTION = 2.0
#: Releases that the newest epochs must have before there are intervals.
LEAST_RELEASES = 10
#: The spread between releases stands for a middle that is not released from so many of them on, for
#: each coefficient and in all.
PER_COEFFICIENT, LEAST_SPREAD = 4, 20
#: Groups of clients have means of their own where there are so many releases for each of them and
#: each coefficient.
PER_GROUP = 3
#: A design effect below 1 by so many standard errors, or above by fewer, is taken for chance.
CHANCE = 2.0
#: Squares of noise that remembers go together: their sum varies as if it were so many times larger.
ALIKE = 1.25
#: The middle is taken to be no smaller than this share of the curvature where it is compared.
LEAST_MIDDLE = 0.3
#: Nodes of the quadrature over predictors.
NODES, WEIGHTS = hermegauss(21)


@dataclass(frozen=True, slots=True)
class Noise:
    """The noise of one release that remembers nothing, at the cost of those of a study.

    gradient, curvature: Standard deviation of an entry of the gradient, and of the curvature's
        diagonal; > 0.
    middle: The same of the middle; 0 where it is not released.
    size: d, the number of coefficients.
    """

    gradient: float
    curvature: float
    middle: float
    size: int

    def of_gradient(self, noise: float, slots: float) -> float:
        """Return the standard deviation of an entry of the mean gradient of one record.

        noise: V, the variance of the noise in the sums, in units of one release's.
        slots: N, how many slots they have.
        """
        return self.gradient * math.sqrt(noise) / slots

    def of_curvature(self, noise: float, slots: float) -> float:
        """Return s, the spectral size of the noise of the mean curvature of one record.

        That noise is a symmetric matrix with the variance v on its diagonal and v / 2 beside it.
        Its largest eigenvalue is near sqrt(2 d v), the root mean square of all of them is sqrt((d +
        1) v / 2), and s = sqrt(d v) stands between.
        """
        return self.curvature * math.sqrt(self.size * noise) / slots


@dataclass(frozen=True, slots=True)
class Bread:
    """M, the curvature and ridges of one record, and what is known of it.

    values, vectors: Eigenvalues of curvature and ridge, shape (d,), and their vectors, (d, d).
    weak: How little is known of each, in [0, 1]: w.
    drawn: Ridge that stands for what is not known, r.
    matrix, inverse: M and its inverse, shape (d, d).
    noise: s.
    """

    values: Vector
    vectors: Matrix
    weak: Vector
    drawn: Vector
    matrix: Matrix
    inverse: Matrix
    noise: float

    @property
    def hidden(self) -> int:
        """How many directions are nearer to unknown than to known."""
        return int(np.count_nonzero(self.weak > KNOWN_BY_HALF))

    @property
    def turned(self) -> Vector:
        """How much of each coefficient's axis lies in those directions, in [0, 1], shape (d,)."""
        return np.asarray((self.vectors[:, self.weak > KNOWN_BY_HALF] ** 2).sum(axis=1))

    def variances(self, meat: Matrix) -> Vector:
        """Return the diagonal of M^-1 meat M^-1, shape (d,)."""
        return np.asarray(np.einsum("ij,jk,ik->i", self.inverse, meat, self.inverse))

    def left_over(self, own: Vector, chance: Vector) -> float:
        """Return the mean square that unknown directions leave out of predictors, at least.

        Where M has a ridge r_i, the score along that direction stays at -r_i v_i'theta, and theta
        would go on by as much over its curvature, which is s at most.

        own: Coefficients along the directions, shape (d,).
        chance: Variance of the mean score along each direction, shape (d,).
        """
        score = (self.drawn * own) ** 2
        found = np.maximum(score - LEFT_OVER**2 * chance, 0.0)
        return float(np.sum(found / np.maximum(self.values, self.noise)))


#: A direction counts as known where the weight of what is not known is below this.
KNOWN_BY_HALF = 0.5


@dataclass(frozen=True, slots=True)
class Solution:
    """Coefficients from the releases of some epochs.

    sums, bread: Of these releases.
    coefficients: Shape (d,).
    covariance, privacy: Of the coefficients with all that is known, and the noise's part of it,
        shape (d, d); without what unknown directions hide. None while nothing says how much records
        differ.
    hidden: Variance that unknown directions may hide of each, shape (d,).
    unknown: Which of them have no interval for that, shape (d,).
    moving: Whether any is still to move, as `moves` says.
    bent: About how far linearised scores bend predictors.
    error: Mean square error of predictors, records weighed by their curvature.
    design_effect: How many times the spread between releases is what independent records would
        make it; 1 where that may be chance; None without a middle.
    """

    sums: Sums
    bread: Bread
    coefficients: Vector
    covariance: Matrix | None
    privacy: Matrix
    hidden: Vector
    unknown: NDArray[np.bool_]
    moving: bool
    bent: float
    error: float
    design_effect: float | None

    @property
    def least_error(self) -> float:
        """The least standard error of a coefficient."""
        if self.covariance is None:
            return 0.0
        return math.sqrt(float(np.min(np.diag(self.covariance) + self.hidden)))


def noise_of(task: RenewableTask) -> Noise:
    """Return the noise of a study's releases behind the public start.

    Raises PrivacyError if the study has no noise, or its releases hold no curvature.
    """
    channels = task.update_channels
    if channels.curvature is None:
        raise PrivacyError("the releases of this study hold no curvature")
    return Noise(
        gradient=channels.gradient.standard_deviation,
        curvature=channels.curvature.standard_deviation,
        middle=channels.middle.standard_deviation if channels.middle else 0.0,
        size=task.size,
    )


def bread_of(curvature: Matrix, penalty: Vector, size: float) -> Bread:
    """Return M.

    curvature: Mean curvature A of one record, shape (d, d).
    penalty: Of each coefficient, shape (d,).
    size: s, > 0.
    """
    values, vectors = np.linalg.eigh(curvature + np.diag(penalty))
    weak, drawn, raised = raise_to_noise(values, size)
    return Bread(
        values=values,
        vectors=vectors,
        weak=weak,
        drawn=drawn,
        matrix=(vectors * raised) @ vectors.T,
        inverse=(vectors / raised) @ vectors.T,
        noise=size,
    )


def raise_to_noise(values: Vector, size: float | Vector) -> tuple[Vector, Vector, Vector]:
    """Return w, r and m of the module's text for eigenvalues of curvature and ridge, (..., d) each.

    size: s, shape () or (..., 1), > 0.
    """
    weak = np.clip(1 - values / (KNOWN * size), 0.0, 1.0)
    drawn = size * weak
    return weak, drawn, np.maximum(np.maximum(values, 0.0) + drawn, FLOOR * size)


class Directions(NamedTuple):
    """Combinations of coefficients, and what is known of each, in one estimate or in several.

    curvature: Mean curvature of one record, shape (d, d).
    values, vectors: Eigenvalues of it and the ridge, shape (..., d), and their vectors, (d, d).
    size: s, shape (...,), > 0.
    own, spread: Coefficients along the vectors, and the variance that they have besides, shape
        (..., d) each.
    chance: Variance of the mean score along each, shape (..., d).
    """

    curvature: Matrix
    values: Vector
    vectors: Matrix
    size: float | Vector
    own: Vector
    spread: Vector
    chance: Vector


def hides(task: RenewableTask, at: Directions) -> Vector:
    """Return the variance that unknown directions may hide of each coefficient, shape (..., d)."""
    usual, size = usual_of(task), np.asarray(at.size)[..., None]
    unknown, drawn, raised = raise_to_noise(at.values, size)
    if task.loss.name != "gdwd":
        # with the ridge that `gdwd` has no eigenvalue is 0, and fewer are chance
        unknown = np.clip((SURELY_KNOWN - at.values / size) / (SURELY_KNOWN - KNOWN), 0.0, 1.0)
    own = np.sqrt(at.own**2 + at.spread)
    along = _hides_along(at, unknown, drawn, own, usual)
    # it moves the others by its curvature with them, of which nothing is known but by the noise:
    # by chance that shows in the vectors, which would count it twice
    moved = size**2 / (2 * own.shape[-1]) / raised**2 * along.sum(axis=-1, keepdims=True)
    squares = at.vectors.T**2
    left, apart = _left_out(task, at, unknown, drawn * own)
    sizes = np.hypot(at.own @ at.vectors.T, SELECTED * np.sqrt(at.chance / raised**2 @ squares))
    lost = _lacks(task, sizes, left, apart)
    return np.asarray(np.maximum(along @ squares, moved @ squares) + lost**2)


def _hides_along(
    at: Directions, unknown: Vector, drawn: Vector, own: Vector, usual: float
) -> Vector:
    """Return the variance that each direction may hide, shape (..., d).

    Where nothing is known of it, coefficients may be as large as in the others, or as they usually
    are; in one that is known in part, they are drawn to 0 by a share that is known.
    """
    sure = unknown < KNOWN_BY_HALF
    count = np.count_nonzero(sure, axis=-1, keepdims=True)
    squares = np.where(sure, own, 0.0) ** 2
    others = squares.sum(axis=-1, keepdims=True) / np.maximum(count, 1)
    others = np.maximum(np.where(count, others, 1.0), usual**2)
    share = drawn / np.maximum(np.maximum(at.values, 0.0) + drawn, 1e-12)
    lost = share / np.maximum(1 - share, 0.1) * own
    return np.maximum(unknown**2 * others, np.where(share < PARTLY, lost**2, 0.0))


def _left_out(
    task: RenewableTask, at: Directions, unknown: Vector, score: Vector
) -> tuple[Vector, Vector]:
    """Return the mean square of predictors that unknown directions may leave out, shape (..., 1).

    Also the part of it that features may add of which the mean is not known beside their spread.

    A feature may add `LEFT_OUT`, as far as its own variance is not known beside the noise, and the
    score that is left along these directions, with its chance, allows for it. A level, which
    records have or not, is no such feature: a rare one adds little.
    """
    weight, size, squares = _weight(at.curvature), np.asarray(at.size)[..., None], at.vectors**2
    apart = np.diag(at.curvature) - np.append(0.0, at.curvature[0, 1:] ** 2 / weight) - size
    levels = np.append(False, task.encoding.levels)
    apart = np.maximum(apart, np.where(levels, weight / 4, 1e-12))
    loads = unknown * (np.maximum(at.values, 0.0) + size)
    share = np.minimum(loads * ((1 / apart) @ squares), 1.0)
    most = LEFT_OUT.get(task.loss.name, 0.0)
    # of a feature that is seen, an effect of 1 for each of its deviations is large
    each = np.minimum(loads @ squares.T / apart * min(most, 1.0), most)
    found = (np.abs(score) + LEFT_OVER * np.sqrt(at.chance)) ** 2
    # with a ridge no direction of the target holds more than one whose curvature is the ridge
    held = 4 * (task.penalty @ squares)
    found /= np.maximum(np.maximum(at.values - size, LOWEST * size), held) * weight
    held_by = np.sum(share * found, axis=-1, keepdims=True)
    each *= np.minimum(held_by / np.maximum(share.sum(axis=-1, keepdims=True), 1e-12), 1.0)
    unseen = np.where(apart <= size, each, 0.0)
    return each.sum(axis=-1, keepdims=True), unseen.sum(axis=-1, keepdims=True)


def _lacks(task: RenewableTask, coefficients: Vector, square: Vector, apart: Vector) -> Vector:
    """Return how far coefficients are from where they would be with all predictors, shape (..., d).

    Of classes all are drawn to 0, as probit coefficients are by a normal predictor that is left
    out, and the intercept takes its mean, which may be half a deviation; of counts the intercept
    takes its place.

    square, apart: As `_left_out` returns them, >= 0.
    """
    if task.loss.name == "poisson":
        found = np.zeros(np.broadcast_shapes(coefficients.shape, square.shape))
        found[..., :1] = square / 2
        return found
    found = coefficients * (1 - 1 / np.sqrt(1 + AS_NORMAL * square))
    found[..., :1] = np.hypot(found[..., :1], np.sqrt(apart) / 2)
    return found


def shortened(task: RenewableTask, step: Vector, square: float = math.inf) -> Vector:
    """Return a step of the coefficients as far as the longest one.

    square: Mean square by which it moves predictors, at most, records weighed by their curvature.
    """
    moved = task.norm_bound * float(np.linalg.norm(step)) / LONGEST_STEP
    moved = min(moved, math.sqrt(square) / FARTHEST)
    return step if moved <= 1 else step / moved


def moves(whole: Vector, step: Vector, errors: Vector) -> NDArray[np.bool_]:
    """Return which coefficients are still to move, shape (d,).

    They are far from the models of the releases, for their errors; or a step was shortened, and
    lacks more than their intervals allow for.

    whole, step: The step, and what is taken of it, shape (d,) each.
    errors: Variances of the coefficients, shape (d,).
    """
    found: NDArray[np.bool_] = whole**2 > MOVING**2 * errors
    return found | ((whole - step) ** 2 > HIDE * errors)


def solved(task: RenewableTask, sums: Sums) -> Solution:
    """Return the coefficients from the sums of some releases."""
    noise, slots, penalty = noise_of(task), sums.slots, task.penalty
    mean, size = sums.points / slots, noise.of_curvature(sums.noise, slots)
    released = sums.curvature / slots
    bread, curvature = bread_of(released, penalty, size), _positive(released)
    to_zero = bread.vectors @ (bread.drawn * (bread.vectors.T @ mean))
    whole = bread.inverse @ (sums.gradient / slots + penalty * mean + to_zero)
    square = (bread.vectors.T @ whole) ** 2 @ (np.maximum(bread.values, 0.0) + SURELY_KNOWN * size)
    step = shortened(task, whole, float(square) / _weight(released))
    coefficients = mean - step
    turned = size**2 / len(step) / 2 * (step @ step * np.eye(len(step)) + np.outer(step, step))
    known = noise.of_gradient(sums.noise, slots) ** 2 * np.eye(len(step)) + turned
    scale = _spread_of_slopes(task, sums, curvature)
    by_records = bread.variances(scale * curvature / slots)
    rough = bread.variances(known) + by_records
    by_chance = noise.of_gradient(sums.noise, slots) ** 2 + np.maximum(bread.values, 0.0) / slots
    own = bread.vectors.T @ coefficients
    hidden = hides(task, Directions(
        released, bread.values, bread.vectors, size, own, np.zeros(len(own)), by_chance
    ))  # fmt: skip
    unknown = hidden > HIDE * rough
    meat, effect = _meat(sums, bread, curvature, scale, noise, penalty * coefficients)
    errors = rough + ((effect or 1.0) - 1.0) * by_records
    bent = _bent(task, sums, curvature, coefficients, step, bread.left_over(own, by_chance))
    chance = bread.inverse @ (scale * curvature / slots + known) @ bread.inverse
    privacy = _symmetric(bread.inverse @ known @ bread.inverse)
    covariance = None
    if meat is not None:
        covariance = privacy + _symmetric(bread.inverse @ meat @ bread.inverse)
    return Solution(
        sums=sums,
        bread=bread,
        coefficients=coefficients,
        covariance=covariance,
        privacy=privacy,
        hidden=hidden,
        unknown=unknown,
        moving=bool(np.any(moves(whole, step, errors) & ~unknown)),
        bent=bent,
        error=float(np.sum(chance * curvature)) / _weight(curvature) + CAUTION**2 * bent**2,
        design_effect=effect,
    )


def _meat(
    sums: Sums, bread: Bread, curvature: Matrix, scale: float, noise: Noise, pulled: Vector
) -> tuple[Matrix | None, float | None]:
    """Return the variance of the mean score that records make, and the design effect.

    curvature: Mean curvature of one record, and its middle in about so many times that.
    pulled: Mean score at the coefficients, which a ridge holds against, shape (d,).
    """
    size, releases = len(pulled), sums.releases
    if sums.middle is None:
        if releases < max(LEAST_SPREAD, PER_COEFFICIENT * size):
            return None, None
        return _positive(_between(sums, curvature, noise)[0]) / sums.slots, None
    # of one record, about the mean of its scores
    middle = sums.middle / sums.slots - np.outer(pulled, pulled)
    effect = 1.0
    if releases >= LEAST_RELEASES:
        effect = _design_effect(sums, bread, middle, curvature, scale, noise)
    meat = effect * middle / sums.slots
    if (bread.variances(meat) < 0).any():
        # what noise has made negative is none
        meat = _positive(meat)
    return meat, effect


def _design_effect(
    sums: Sums, bread: Bread, middle: Matrix, curvature: Matrix, scale: float, noise: Noise
) -> float:
    """Return how many times releases differ by more than the middle and the noise say.

    Records that go with those before them make sums differ more than their number says. 1 where
    that may be chance: of the releases, or of the noise in the middle.
    """
    spread, lost, apart = _between(sums, curvature, noise)
    between, slots = bread.variances(spread / sums.slots), sums.slots
    least = LEAST_MIDDLE * np.maximum(bread.variances(scale * curvature / slots), 1e-300)
    base = np.maximum(bread.variances(middle / slots), least)
    by_noise = apart / slots**2 * np.eye(len(base))
    share = float(sums.second[-1, -1]) / slots**2
    varies = math.sqrt(2 * share / max(1 - lost, share))
    # of a symmetric matrix E as the noise is, a'Ea has the deviation |a|^2 of a diagonal entry
    lengths = bread.variances(np.eye(len(base)))
    of_middle = noise.middle * math.sqrt(sums.noise) / slots**2 * lengths
    sure = base / np.hypot((base + ALIKE * bread.variances(by_noise)) * varies, of_middle)
    # squares of what goes together do so by the square of its correlation
    whole = bread.inverse @ (middle / slots + by_noise) @ bread.inverse
    spreads = np.sqrt(np.maximum(np.diag(whole), 1e-300))
    alike = np.clip(whole / np.outer(spreads, spreads), -1.0, 1.0) ** 2
    weight = float(sure @ sure)
    if not weight:
        return 1.0
    mean = float(between / base @ sure**2) / weight
    error = math.sqrt(max(float(sure @ alike @ sure), weight)) / weight
    return mean if mean > 1 + CHANCE * error else 1.0


def _between(sums: Sums, curvature: Matrix, noise: Noise) -> tuple[Matrix, float, float]:
    """Estimate the middle of one record from the differences between releases.

    y_j = g_j - n_j A t_j deviates from n_j m by chance alone, with m the mean of its client's
    group: how clients differ is not chance. With few releases for each group, all are one.

    Returns: The estimate, shape (d, d); the share of it that the means have taken away; and the
        variance of the noise in all releases one by one.
    """
    size = len(curvature)
    project = np.hstack([np.eye(size), -curvature])
    twice, once = sums.groups
    if sums.releases < PER_GROUP * (size + len(once)):
        twice, once = (part.sum(axis=0, keepdims=True) for part in (twice, once))
    # shapes (k, d), (k, d), (k,) and (k,): sums of n y and of y, of n^2 and of n
    weighed, plain = twice[:, :-1] @ project.T, once[:, :-1] @ project.T
    squares, slots = twice[:, -1], once[:, -1]
    means = plain / slots[:, None]
    crossed = weighed.T @ means
    within = project @ sums.second[:-1, :-1] @ project.T
    spread = within - crossed - crossed.T + (means * squares[:, None]).T @ means
    lost = float(np.sum(squares / slots)) / sums.slots
    per_mean = float(np.mean(squares / slots**2))
    variance = noise.gradient**2 * sums.noise_apart
    by_noise = variance - noise.gradient**2 * per_mean * sums.noise
    spread = (spread - by_noise * np.eye(size)) / (max(1 - lost, 1e-3) * sums.slots)
    return spread, lost, variance


def _spread_of_slopes(task: RenewableTask, sums: Sums, curvature: Matrix) -> float:
    """Return about what the middle is, as a multiple of the curvature; 1 for a likelihood.

    Known before the middle stands out of its noise.
    """
    if task.loss.name in ("logistic", "poisson"):
        return 1.0
    most = (task.largest_weight * task.loss.slope_bound) ** 2 / max(_weight(curvature), 1e-9)
    if sums.slopes is not None:
        found = sums.slopes / sums.slots / _weight(curvature)
    elif sums.middle is not None:
        found = float(sums.middle[0, 0]) / sums.slots / _weight(curvature)
    else:
        return 1.0
    return min(max(found, 1e-3 * most), most)


def _bent(
    task: RenewableTask, sums: Sums, curvature: Matrix, coefficients: Vector, step: Vector,
    left: float,
) -> float:  # fmt: skip
    """Return how far linearised scores bend predictors.

    From far away a step of Newton's method is too short, so that the distance is that to one more
    step beyond; but for a loss whose curvature jumps, a second step says nothing.

    left: As `Bread.left_over`: coefficients of other directions depend on what one leaves out.
    """
    jumps = task.loss.name == "gdwd"
    to = coefficients if jumps else coefficients - step
    mean = sums.points / sums.slots
    crossed = np.outer(to, mean)
    distances = sums.spread_of_points / sums.slots - crossed - crossed.T + np.outer(to, to)
    distance = (max(float(np.sum(distances * curvature)), 0.0) + left) / _weight(curvature)
    return SECOND_ORDER * rate_of_bend(task, curvature, coefficients) * distance


def usual_of(task: RenewableTask) -> float:
    """Return how large coefficients of unknown directions may be at least."""
    size = USUAL[task.loss.name]
    return size * task.loss.slope_bound if task.loss.name == "linear" else size


def rate_of_bend(task: RenewableTask, curvature: Matrix, coefficients: Vector) -> float:
    """Return how fast the curvature changes where the records lie, as a share of itself.

    For logistic regression it is tanh(u / 2), whose root mean square is taken over records weighed
    by their curvature: normal predictors with the mean and variance that these have.
    """
    if task.loss.name != "logistic":
        return task.loss.remainder
    weight = _weight(curvature)
    middle = float(curvature[0] @ coefficients) / weight
    spread = float(coefficients @ curvature @ coefficients) / weight - middle**2
    at = middle + math.sqrt(max(spread, 0.0)) * NODES
    return math.sqrt(float(WEIGHTS @ np.tanh(at / 2) ** 2 / WEIGHTS.sum()))


def _weight(curvature: Matrix) -> float:
    """Return the mean curvature of a record, which weighs its predictor."""
    return max(float(curvature[0, 0]), 1e-9)


def _positive(matrix: Matrix) -> Matrix:
    values, vectors = np.linalg.eigh(matrix)
    return _symmetric((vectors * np.maximum(values, 0.0)) @ vectors.T)


def _symmetric(matrix: Matrix) -> Matrix:
    return (matrix + matrix.T) / 2
