"""Sites' noisy copies put together by INFEMBLER: the estimate, its bias, and when it is shown.

The windows of a site are one site of all its records: their means are averaged, their scatters
added up. An estimate starts from the middle of all sites and not from the one before it, so that it
is a function of the sums alone. Derived in docs/methods/noisy-copies.md.

Linear fits near the bound of their norm: those that were cut at it lie on it, however far beyond it
the truth is, so that intervals come only where fits stay clear of it. Whether they do is seen with
the estimate's own noise: near the bound those estimates come first that chance drew inwards. So the
number that decides has the interval of a normal number that is shown only below a limit (Lee, Sun,
Sun and Taylor 2016, Exact post-selection inference, theorem 5.2).

The sites' ridges: a fit with a ridge goes the share k = l / (l + ridge) of the way from where the
ridge draws it, l being the information of a record. An estimate divides by that share, which is
known from scatters and has their noise, (1 - k) sqrt(2 / degrees).

The study's ridge, part of what is estimated, draws coefficients to 0:
(J + R) theta = J theta_0, where theta_0 is what the sites say without it and J the mean information
of a record. J is that of the scatters: the posterior informations of INFEMBLER are drawn to what
all sites have in common, and so a ridge beside them would draw further than in a fit of all
records wherever sites differ.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from pipeline.estimators.estimate import Estimate
from pipeline.linalg import condition_number, floor_eigenvalues
from pipeline.methods.noisy_copies import infembler
from pipeline.methods.noisy_copies.client import CopiesTask
from pipeline.methods.noisy_copies.infembler import Assembled, Copies, Matrices, Sent, sent_of
from pipeline.methods.sites import report, robust
from pipeline.methods.sites.robust import FARTHEST, NEAR, Shown, reach, widened
from pipeline.methods.sites.state import UNSURE, Weighed
from pipeline.types import Matrix, Vector

#: Rounds at most, and the length of the last one in standard errors.
ROUNDS, CLOSE = 40, 1e-4
#: The least eigenvalue of a record's information with which intervals are given, in deviations of
#: the noise of the scatters, by which the sites' ridge is taken out of it.
READY = 2.0
#: Fewer coefficients have the limit of so many: ends of intervals near a nearer one are cut short.
FEWEST = 4
#: A scatter may say so many times the others' precision, beyond what chance and sites vary.
SHARPEST = 3.0
#: Scatters of the ridge alone are as wide, in deviations: at most one in seven. A site that is left
#: out so has next to no records, and says nothing.
EMPTY = 2.0
#: Eigenvalues of a median of scatters are no smaller than this share of the largest.
LEAST = 1e-9


def estimate(task: CopiesTask, parts: Weighed) -> Estimate:
    """As `Server.estimate`, a deterministic function of the sums."""
    if not any(state.releases for _, state in parts):
        return report.empty(task.first_model.coefficients, parts)
    return report.chosen(parts, partial(sent_of, task, parts), partial(_solution, task, parts))


def _solution(task: CopiesTask, parts: Weighed, sent: Sent) -> report.Solution:
    fit = settled(task, sent)
    found, copies = fit.found, sent.copies
    drawn, (apart, noise) = penalised(task, sent, fit), variances(sent, fit)
    bent, moved = left_out(task, sent, fit, apart)
    clear = slack(task, sent, fit)
    if clear > 0:
        apart = apart + selected(task, sent, fit, clear, apart)
    covariance, privacy = drawn.covariance(apart), drawn.covariance(noise)
    # a bound, whose square keeps 95 % intervals at 95 % or more, however large it is
    uneven = np.diag(askew(task, fit) ** 2)
    chance = float(np.sum((covariance + uneven) * found.information))
    near = bool(np.all(moved <= NEAR * np.sqrt(np.diag(covariance + uneven))))
    least = float(np.linalg.eigvalsh(found.information)[0])
    wanted = limit(task.size) / math.sqrt(max(float(fit.weights @ copies.degrees), 1.0))
    share = min(1.0, (least / (wanted * (least + copies.ridge))) ** 2)
    if share == 1:
        covariance, privacy = widened(
            deciding(sent, fit, drawn, wanted), covariance, privacy, task.study.estimator.level
        )
        if np.isnan(covariance).all():
            share = UNSURE
    covariance = covariance + uneven
    lacks = ""
    if share < 1:
        lacks = (
            "the noise of the scatters still hides what the records add to the sites' ridge: "
            "intervals need more releases, or larger windows (window.records)"
        )
    elif found.step > CLOSE:
        lacks = f"no estimate has settled within {ROUNDS} rounds: sites contradict each other"
    elif clear <= 0:
        lacks = (
            "fits of sites come within their noise to the bound of their norm, "
            f"estimator.method.coefficient_bound = {task.radius:g}: intervals would miss what lies "
            "beyond it. Wait for more releases, or begin a study with a larger bound; its noise is "
            "larger, and `veilstream study check` prints by how much (noise_over_sampling)"
        )
    far = not (lacks or near)
    error = chance / max(float(found.information[0, 0]), 1e-12) + bent**2

    def estimate_at(standing: report.Standing) -> Estimate:
        told = report.estimate_of(
            task, parts, sent.names, drawn.coefficients, covariance, privacy,
            weights=fit.weights, records=copies.records, varied=sent.squared * task.slots,
            squared=fit.squared, share=share, reason=FAR if far else lacks, far=far,
            # what far fits leave out is no reason for a short way
            points=copies.centres, settled=not lacks,
            more={"rounds": found.rounds, "last_round": found.step},
        )  # fmt: skip
        return replace(told, condition=condition_number(found.whole))

    return report.Solution(bool(lacks), far, error, estimate_at)


def limit(size: int) -> float:
    """Return the least share of the way with intervals, in deviations of one degree's noise."""
    return READY * math.sqrt(max(size, FEWEST))


def settled(task: CopiesTask, sent: Sent) -> Fit:
    """Return the fit with all sites weighed by their distance."""
    copies, size = sent.copies, task.size
    kept = _plausible(copies)
    found, weights, shares = _middle(copies, kept), kept, None
    differ = math.inf if len(kept) >= robust.LEAST_SITES else 0.0
    while found.rounds < ROUNDS:
        squared, differ = _distances(sent, found, shares, differ)
        weights = kept * robust.factors(squared, size)
        weights *= robust.capped(weights * copies.records, task.spec.largest_share)
        if not weights.any():
            weights = np.ones(len(weights))
        after = infembler.step(copies, found, weights)
        after = infembler.stretched(copies, found, after, weights)
        settled_too = np.abs(after.information - found.information).max()
        found = after
        # theta is the mean of what sites say by their informations
        shares = weights * copies.shares * copies.records
        shares /= float(shares.sum())
        if found.step < CLOSE and settled_too < CLOSE * np.abs(found.information).max():
            break
    return Fit(found, weights, squared)


def variances(sent: Sent, fit: Fit) -> tuple[Matrix, Matrix]:
    """Return the covariance of the coefficients, and the part of it that noise causes."""
    repeated = sent.squared / sent.windows
    return infembler.covariance(sent.copies, fit.found, fit.weights, repeated)


def _middle(copies: Copies, kept: Vector) -> Assembled:
    """Return a start that no minority of sites moves far: medians of means and of scatters."""
    size, some = copies.means.shape[1], kept > 0
    spread = np.median((copies.records[:, None, None] * copies.inverses)[some], axis=0)
    values, vectors = np.linalg.eigh(spread)
    values = np.maximum(values, LEAST * max(float(values[-1]), 1e-300))
    information = (vectors / values) @ vectors.T - copies.ridge * np.eye(size)
    theta = np.median(copies.means[some], axis=0)
    information = floor_eigenvalues(information, 0.0).matrix
    # a fit with a ridge is short of what its records say
    full = information + copies.ridge * np.eye(size)
    least = 0.05 * copies.ridge + 1e-12
    drawn = np.zeros((1, size)) if copies.centres is None else copies.centres[some]
    middle: Vector = np.median(drawn, axis=0)
    way = full @ (theta - middle)
    theta = middle + np.linalg.solve(floor_eigenvalues(information, least).matrix, way)
    return Assembled(theta, information, np.eye(size), np.zeros_like(copies.scatters))


def _distances(
    sent: Sent, found: Assembled, shares: Vector | None, most: float
) -> tuple[Vector, float]:
    """Return the squared distance of each site's mean from what all imply, shape (M,).

    And by what variance sites differ, in [0, most]. By what a mean varies beside the middle where
    all sites have the common information, and by what sites differ.

    shares: Of the sites in the middle, with the sum 1; None: it is the median.
    """
    copies, size = sent.copies, len(found.theta)
    full = found.information + copies.ridge * np.eye(size)
    way = np.atleast_2d(found.theta - (0.0 if copies.centres is None else copies.centres))
    expected = found.theta - copies.ridge * np.linalg.solve(full, way.T).T
    away = copies.means - expected
    squares = np.einsum("mi,mi->m", away @ full, away)
    own = (1 + copies.noise) * sent.squared / (sent.windows * copies.records)

    beside = robust.beside_middle(own, 1.0, shares)

    def squared(variance: float) -> Vector:
        each: Vector = squares / beside(variance)
        return each

    differ = robust.difference(squared, size, most)
    return squared(differ), differ


def _plausible(copies: Copies) -> Vector:
    """Return 0 for sites whose scatter is none, or claims far more precision than the others'.

    A scatter that is wider than the others' only weighs less: slots may be empty. But none is much
    wider than that of the ridge alone (Davidson and Szarek 2001, theorem II.13).
    """
    spread, size = copies.records[:, None, None] * copies.inverses, copies.means.shape[1]
    positive = _positive(spread)
    if copies.ridge:
        widest = (1 + (math.sqrt(size) + EMPTY) / np.sqrt(copies.degrees)) ** 2 / copies.ridge
        positive &= _positive(widest[:, None, None] * np.eye(size) - spread)
    if np.count_nonzero(positive) < robust.LEAST_SITES:
        return np.where(positive, 1.0, 0.0) if positive.any() else np.ones(len(positive))
    middle = np.median(spread[positive], axis=0)
    # medians of the entries of positive matrices need not be positive together
    middle = floor_eigenvalues(middle, LEAST * float(np.linalg.eigvalsh(middle)[-1])).matrix
    inverse = np.linalg.inv(np.linalg.cholesky(middle))
    whitened = np.matmul(np.matmul(inverse, spread), inverse.T)
    least = np.log(np.maximum(np.linalg.eigvalsh(whitened)[:, 0], 1e-300))
    usual = float(np.median(least[positive]))
    spreading = 1.4826 * float(np.median(np.abs(least[positive] - usual)))
    chance = np.sqrt(2 / copies.degrees)
    sharp = least < usual - SHARPEST * 2 * np.hypot(spreading, chance)
    return np.where(positive & ~sharp, 1.0, 0.0)


def _positive(matrices: Matrices) -> NDArray[np.bool_]:
    """Return which symmetric matrices are positive definite, shape (M,)."""
    try:
        np.linalg.cholesky(matrices)
    except np.linalg.LinAlgError:
        least: NDArray[np.bool_] = np.linalg.eigvalsh(matrices)[:, 0] > 0
        return least
    return np.ones(len(matrices), dtype=np.bool_)


#: Of what can make fits longer than they are on average, so many deviations.
CLEAR = 2.0


def slack(task: CopiesTask, sent: Sent, fit: Fit) -> float:
    """Return by how much the fits of windows stay clear of their bound; infinite without one.

    Their length has two deviations of what can make them longer: their noise, what they vary, and
    what sites differ by. Fits that were cut lie on the bound all together.
    """
    if task.moving:
        return math.inf
    copies, size = sent.copies, len(fit.found.theta)
    mass = fit.weights * copies.records / float(fit.weights @ copies.records)
    full = fit.found.information + copies.ridge * np.eye(size)
    alone = float(np.trace(np.linalg.inv(full))) / copies.records
    repeated = sent.squared / sent.windows
    noise = repeated * (copies.noise * alone + size * copies.rounding)
    middle = _bound_middle(sent, fit)
    squares = ((copies.means - middle) ** 2).sum(axis=1)
    varied = max(float(mass @ (sent.windows * alone)), float(mass @ (squares - noise)))
    unsure = float(mass**2 @ (noise + repeated * alone))
    return task.radius - float(np.linalg.norm(middle)) - CLEAR * math.sqrt(varied + unsure)


def selected(task: CopiesTask, sent: Sent, fit: Fit, clear: float, covariance: Matrix) -> Matrix:
    """Return what the covariance lacks as estimates are shown only where fits stay clear, (d, d).

    clear: What `slack` gives, > 0.
    covariance: Of the coefficients, without a ridge of the study.
    """
    size = len(fit.found.theta)
    if not math.isfinite(clear):
        return np.zeros((size, size))
    middle, information = _bound_middle(sent, fit), fit.found.information
    # the length of mean fits, as a product with coefficients: a fit is short by the sites' ridge
    outward = middle / max(float(np.linalg.norm(middle)), 1e-300)
    full = information + sent.copies.ridge * np.eye(size)
    along = information @ np.linalg.solve(full, outward)
    turned = covariance @ along
    variance = max(float(along @ turned), 1e-300)
    factor = lengthened(clear / math.sqrt(variance), task.study.estimator.level)
    found: Matrix = (factor**2 - 1) / variance * np.outer(turned, turned)
    return found


def lengthened(clear: float, level: float) -> float:
    """Return how many times as long an interval is of a number that is shown below a limit, >= 1.

    clear: How far below the limit it is, in standard errors, > 0.

    The upper end misses the truth in at most 1 - level of all numbers that are shown; the lower
    one, as far away, in next to none of them where it is longer than usual.
    """
    usual = -float(ndtri((1 - level) / 2))
    return reach(clear, level, usual, FARTHEST) / usual


def _bound_middle(sent: Sent, fit: Fit) -> Vector:
    mass = fit.weights * sent.copies.records
    found: Vector = mass @ sent.copies.means / float(mass.sum())
    return found


#: Rounds in which ways are found that what is left out has made short.
LENGTHENED = 3
#: No way is said to be longer, so that its square is a number in each of them.
LONGEST = 1e9
#: Why there are no intervals where fits were not near.
FAR = (
    "the sites' ridge holds fits of windows too far from this estimate, near the models that they "
    "began at, so that intervals would be too short: they come when three quarters of the sites "
    "have sent windows at newer models; make models sooner (stream.publish), or use larger windows "
    "(window.records), which a ridge holds less"
)


@dataclass(frozen=True, slots=True)
class Fit:
    """The estimate of some sites: their weights, and squared distances, (M,)."""

    found: Assembled
    weights: Vector
    squared: Vector


def left_out(task: CopiesTask, sent: Sent, fit: Fit, covariance: Matrix) -> tuple[float, Vector]:
    """Return how far predictors move at most by what is left out, in mean, and each coefficient.

    The curvature of a fit is that where it ended, short of theta. The ways are those that ridges
    hold fits back, of public models and the common information: a site's own mean would have its
    noise in them. What is left out draws the estimate to the models, so that ways to it are too
    short by as much, and chance by a standard error along them: else intervals would come to those
    streams first whose estimates chance drew to the models.
    """
    bent, moved = 0.0, np.zeros(task.size)
    if (drawn := sent.drawn) is None:
        return bent, moved
    theta, information, ridge = fit.found.theta, fit.found.information, sent.copies.ridge
    held = ridge * np.linalg.inv(information + ridge * np.eye(task.size))
    bread = floor_eigenvalues(information + np.diag(task.penalty), 1e-12).matrix
    scale = max(float(information[0, 0]), 1e-12)
    mass = fit.weights[drawn.site] * drawn.windows / float(fit.weights @ sent.windows)
    away, chance = drawn.mean - theta, held @ covariance @ held.T
    for _ in range(LENGTHENED):
        ways = (away + np.sign(away) * moved) @ held.T
        ways *= robust.longer(ways, information, chance)[:, None]
        half = _half(task, theta, float(np.max(np.sum(np.abs(ways), axis=1))))
        squares, products = robust.ways(task, ways, drawn.scatter, information / scale)
        bent = half * float(mass @ products)
        moved = np.minimum(
            robust.of_each(half * float(mass @ squares), bent, scale, bread), LONGEST
        )
    return bent, moved


def askew(task: CopiesTask, fit: Fit) -> Vector:
    """Return by how much the fits of windows err on average at most, of each coefficient, (d,).

    A fit errs by half the mean of its loss's third derivative times the square of what it varies,
    which goes down with the records of a window, and not with how many windows come. Linear fits
    do not.
    """
    theta, information = fit.found.theta, fit.found.information
    if not task.classes:
        return np.zeros(len(theta))
    inverse = np.linalg.inv(information + task.ridge / task.slots * np.eye(task.size))
    varied = inverse @ information @ inverse / task.slots
    scale = max(float(information[0, 0]), 1e-12)
    square = float(np.sum(information * varied)) / scale
    longest = min(
        float(np.sum(np.abs(varied))), task.longest**2 * float(np.linalg.eigvalsh(varied)[-1])
    )
    half = _half(task, theta, 0.0)
    bread = floor_eigenvalues(information + np.diag(task.penalty), 1e-12).matrix
    return robust.of_each(half * square, half * math.sqrt(longest * square), scale, bread)


def _half(task: CopiesTask, theta: Vector, beyond: float) -> float:
    """Return half of the loss's third derivative over its second one, at most.

    beyond: How much farther than those of theta predictors lie.
    """
    farthest = float(np.sum(np.abs(theta))) + beyond
    # that of the logistic loss is tanh(u / 2)
    return math.tanh(farthest / 2) * task.loss.remainder / 2


def deciding(sent: Sent, fit: Fit, drawn: Penalised, limit: float) -> Shown:
    """Return the shares of the way in all directions of the information, which are all positive.

    limit: What no share is below where the estimate is shown.
    """
    copies, theta = sent.copies, fit.found.theta
    values, axes = np.linalg.eigh(fit.found.information)
    shares = values / (values + copies.ridge)
    degrees = max(float(fit.weights @ copies.degrees), 1.0)
    deviations = np.maximum((1 - shares) * math.sqrt(2 / degrees), 1e-300)
    mass = fit.weights * copies.records / float(fit.weights @ copies.records)
    return Shown(
        axes=axes,
        clear=np.maximum(shares - limit, 0.0) / deviations,
        limits=limit / deviations,
        gains=drawn.turn @ axes * (deviations / shares),
        way=theta if copies.centres is None else theta - mass @ copies.centres,
    )


#: Scatters of so many degrees of freedom for each dimension and two more show an information.
DEGREES = 2


@dataclass(frozen=True, slots=True)
class Penalised:
    """The penalised coefficients, shape (d,).

    turn: What they are times those without the ridge, shape (d, d).
    unsure: What the noise of the scatters adds to their covariance by J, shape (d, d).
    """

    coefficients: Vector
    turn: Matrix
    unsure: Matrix

    def covariance(self, of: Matrix) -> Matrix:
        """Return their covariance from that of those without the ridge, shapes (d, d)."""
        turned: Matrix = self.turn @ of @ self.turn.T + self.unsure
        return turned


def penalised(task: CopiesTask, sent: Sent, fit: Fit) -> Penalised:
    """Return the coefficients of a fit with the study's ridge."""
    size, theta, copies = task.size, fit.found.theta, sent.copies
    if not np.any(task.penalty):
        return Penalised(theta, np.eye(size), np.zeros((size, size)))
    # of windows of unequal weights together
    degrees = copies.degrees * sent.windows / sent.squared
    known = (fit.weights > 0) & (degrees > DEGREES * (size + 2))
    information, meat = fit.found.information, np.zeros((size, size))
    if known.any():
        mass, degrees = fit.weights[known], degrees[known]
        mass /= float(mass @ copies.records[known])
        # the inverse of a Wishart matrix is too large by this on average
        exact = 1 - (size + 1) / degrees
        full = exact[:, None, None] * np.linalg.inv(copies.inverses[known])
        information = np.einsum("m,mij->ij", mass, full) - copies.ridge * np.eye(size)
    rows = floor_eigenvalues(information, 0.0).matrix
    inverse = np.linalg.pinv(rows + np.diag(task.penalty) / task.deviation**2, hermitian=True)
    turn = inverse @ rows
    way = theta - turn @ theta
    if known.any():
        # as Wishart matrices vary
        turned = full @ way
        varied = (turned @ way)[:, None, None] * full + turned[:, :, None] * turned[:, None, :]
        meat = np.einsum("m,mij->ij", mass**2 / degrees, varied)
    return Penalised(turn @ theta, turn, inverse @ meat @ inverse)
