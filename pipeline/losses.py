"""The losses of one record: what each offers, and the families by name.

A loss is a value, a slope and a curvature in the linear predictor, with the public bounds that
the sensitivity of a release needs. A `Likelihood` of classes gives probabilities as well, a
`Regression` the expected response. To add one: a class like `Loss`, and its line in `FAMILIES`.

With noise, the losses of numbers are in Huber's form beyond a threshold. Poisson regression has a
log link, continued by a straight line beyond a public mean.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Literal, Protocol, runtime_checkable

import numpy as np
import scipy

from pipeline.errors import ConfigError
from pipeline.types import Vector


@dataclass(frozen=True, slots=True)
class Terms:
    """What a study file says about its loss; each loss reads what is its own.

    q, smoothing: Tail and step of generalised DWD; a smoothing of None lets the loss choose.
    noised: Whether slopes and curvatures will carry noise: they must then have public bounds, and
        the smaller these are the smaller the noise.
    residual_bound: Largest residual that a regression of a number counts in full, in units of the
        encoded response; None for the default.
    tau: Level of an expectile, in (0, 1).
    largest: Largest count that the public range allows, >= 1.
    """

    q: float = 1.0
    smoothing: float | None = None
    noised: bool = True
    residual_bound: float | None = None
    tau: float = 0.5
    largest: float = 1.0

    @property
    def threshold(self) -> float | None:
        """Of a regression of a number: with noise 2 by default, the width of the range."""
        return 2.0 if self.noised and self.residual_bound is None else self.residual_bound


#: What a response is: one of two classes (-1 or +1), a number on [-1, 1], or a count.
Kind = Literal["class", "number", "count"]


class Loss(Protocol):
    """A convex loss of one record, as a function of its linear predictor.

    All methods take the predictors (n,) and the responses (n,) and return (n,).
    """

    @property
    def name(self) -> str:
        """The name that a study file uses."""

    @property
    def responses(self) -> str:
        """The kind of response that it explains, a `Kind`."""

    @property
    def slope_bound(self) -> float:
        """Largest absolute slope over all predictors and responses: a public constant.

        Infinite for a loss that has none; such a loss cannot be released with noise.
        """

    @property
    def curvature_bound(self) -> float:
        """Largest curvature over all predictors and responses: a public constant."""

    @property
    def sharp_curvature_bound(self) -> float:
        """Largest second derivative without smoothing: what makes a majoriser of the loss."""

    @property
    def remainder(self) -> float:
        """How much a linearised score leaves out, as a multiple of the squared distance.

        Of a predictor u from the point t of its linearisation, relative to the curvature: about 1
        where curvature changes as fast as the predictor does, 0 where it is constant.
        """

    @property
    def start_curvature(self) -> float:
        """Public guess of a record's curvature per squared norm, for the very first step."""

    @property
    def start_intercept(self) -> float:
        """Public intercept of the first expansion point; its slopes are zero."""

    @property
    def start_slope_bound(self) -> float:
        """Largest absolute slope at the public start: a public constant, finite for every loss."""

    def value(self, predictor: Vector, response: Vector) -> Vector:
        """Return the loss of each record."""

    def slope(self, predictor: Vector, response: Vector) -> Vector:
        """Return the derivative of the loss in the predictor."""

    def curvature(self, predictor: Vector, response: Vector) -> Vector:
        """Return the second derivative, or its smoothed form; never negative."""

    def sharp_curvature(self, predictor: Vector, response: Vector) -> Vector:
        """Return the second derivative without smoothing; never released, so never noised."""


@runtime_checkable
class Bends(Protocol):
    """A loss whose slope and curvature are not largest together.

    So a record that moves one sum of a release as far as it can moves another one less.
    """

    def joint_bounds(self) -> tuple[Vector, Vector]:
        """Return upper bounds of |slope| and of curvature, in shares of their largest, (k,) each.

        Together the k pieces cover all predictors and responses: each record has one of which both
        bounds hold, up to the rounding of floats. So do all that are smaller.
        """


def joint_bounds(loss: Loss) -> tuple[Vector, Vector]:
    """As `Bends.joint_bounds`; of a loss that does not say better, both are 1."""
    return loss.joint_bounds() if isinstance(loss, Bends) else (np.ones(1), np.ones(1))


@runtime_checkable
class Likelihood(Loss, Protocol):
    """A loss that is a negative log-likelihood, so that its predictor means a probability."""

    def probability(self, predictor: Vector, response: Vector) -> Vector:
        """Return the probability of each response, given its predictor; shape (n,), in [0, 1]."""


@runtime_checkable
class Regression(Loss, Protocol):
    """A loss of numbers or counts, whose predictor means an expected response."""

    def start_slope(self, response: Vector) -> Vector:
        """Return the slopes at the public start, shape (n,), without any cut of residuals."""

    def intercept_of(self, slope: float, spread: float) -> float:
        """Return the intercept of the best model without features.

        slope: Mean slope at the public start, with noise.
        spread: Standard deviation of that noise.
        """

    def mean(self, predictor: Vector) -> Vector:
        """Return the expected encoded response of each predictor, shape (n,)."""


#: Pieces of the joint bounds: each loses less than its width.
PIECES = 2**16


class Logistic:
    """log(1 + exp(-u)), u = response times predictor: the negative log-likelihood of classes."""

    name = "logistic"
    remainder = 1.0
    responses = "class"
    slope_bound = 1.0
    curvature_bound = 0.25
    sharp_curvature_bound = 0.25
    start_curvature = 0.25
    start_intercept = 0.0
    # every probability is 1/2 at the start, and so is every slope up to its sign
    start_slope_bound = 0.5

    @classmethod
    def of(cls, terms: Terms) -> Logistic:
        """Return the loss of a study; it needs nothing of it."""
        del terms
        return cls()

    def value(self, predictor: Vector, response: Vector) -> Vector:
        """Return log(1 + exp(-u)), shape (n,)."""
        return np.logaddexp(0.0, -response * predictor)

    def slope(self, predictor: Vector, response: Vector) -> Vector:
        """Return the derivative in the predictor, shape (n,), in [-1, 1]."""
        slope: Vector = -response * scipy.special.expit(-response * predictor)
        return slope

    def curvature(self, predictor: Vector, response: Vector) -> Vector:
        """Return p (1 - p), shape (n,), in [0, 1/4]; it does not depend on the response."""
        probability = scipy.special.expit(predictor)
        curvature: Vector = probability * (1.0 - probability)
        return curvature

    sharp_curvature = curvature

    def probability(self, predictor: Vector, response: Vector) -> Vector:
        """Return 1 / (1 + exp(-u)), shape (n,): exact to rounding also where it is tiny."""
        probability: Vector = scipy.special.expit(response * predictor)
        return probability

    def joint_bounds(self) -> tuple[Vector, Vector]:
        """As `Bends.joint_bounds`."""
        return _joint_bounds()


@cache
def _joint_bounds() -> tuple[Vector, Vector]:
    """Cut p, the size of the slope, into pieces from 1/2 to 1.

    Relative to its largest the curvature is 4 p (1 - p), which falls there: it is largest where a
    piece begins, and p where it ends. Below 1/2 the curvature is that of 1 - p, with a smaller
    slope.
    """
    ends = np.linspace(0.5, 1.0, PIECES + 1)
    return ends[1:], 4 * ends[:-1] * (1 - ends[:-1])


#: Pieces of the joint bounds beyond the knee.
STEP_PIECES = 2**12
#: What the square of the step's height lacks where a record has spent its budget on a full slope.
SUNK = 0.7
#: Nodes of a quadrature between the knee and the step's end. Halvings find that end, at the latest
#: where the slope is exp(-FLAT) of its largest.
STEP_NODES, HALVINGS, FLAT = np.polynomial.legendre.leggauss(64), 60, 60.0


class GeneralisedDWD:
    """V(u) = 1 - u below u0 = q / (q + 1), then a power tail; u = response times predictor.

    The slope is exact. The curvature jumps at u0 to (q + 1)^2 / q, and noise would be in proportion
    to that. So a step is released in place of the peak, and the curvature itself beyond the step:

        h(u) = T sqrt(1 - 0.7 V'(u)^2)  for foot <= u < top,  T = V''(u0 + smoothing).

    Foot and top are where the step has the area and the mean place of what it stands for. So its
    mean over records is that of V'' wherever the density of margins is about a straight line along
    the step. Source of the loss: Guo et al. 2025 (renewable DWD).

    q: Exponent of the tail, in [1e-6, 1e6]; 1 is classical DWD, large values approach the hinge.
    smoothing: How far above u0 V'' has fallen to T; > 0, and at most u0 min(1, 2 / (q + 1)). The
        default is a third of that. A larger one makes the step lower and wider, and so the noise
        of a private Hessian smaller.
    height: T, and curvature_bound, the step's height at its top.

    Raises ConfigError if a parameter is outside its range.
    """

    name = "gdwd"
    remainder = 1.0
    responses = "class"
    slope_bound = 1.0
    start_curvature = 0.5
    start_intercept = 0.0
    # zero lies below the knee for every q: all slopes are full there
    start_slope_bound = 1.0

    def __init__(self, q: float = 1.0, smoothing: float | None = None) -> None:
        if not 1e-6 <= q <= 1e6:
            raise ConfigError("estimator.q must lie in [1e-6, 1e6], for example q = 1.0")
        self.q = q
        self.knee = q / (q + 1)
        most = self.most_smoothing(q)
        self.smoothing = most / 3 if smoothing is None else smoothing
        if not 0 < self.smoothing <= most:
            raise ConfigError(f"estimator.smoothing must lie in (0, {most:.6g}] for q = {q:g}")
        self.sharp_curvature_bound = (q + 1) ** 2 / q
        beyond = self.knee + self.smoothing
        # (q + 1) u0^(q+1) / (u0 + e)^(q+2), by way of logarithms: large q must not overflow
        self.height = math.exp(
            math.log(q + 1) + (q + 1) * math.log(self.knee / beyond) - math.log(beyond)
        )
        self.foot, self.top = _step(q, self.height)
        self.curvature_bound = float(self._of_step(np.array([self.top]))[0])

    @staticmethod
    def most_smoothing(q: float) -> float:
        """Return the largest smoothing, at which V'' is less than a quarter of its peak."""
        return q / (q + 1) * min(1.0, 2 / (q + 1))

    @classmethod
    def of(cls, terms: Terms) -> GeneralisedDWD:
        """Return the loss of a study: without noise, a sharper curvature is the better default."""
        if terms.smoothing is None and not terms.noised:
            return cls(terms.q, cls.most_smoothing(terms.q) / 15)
        return cls(terms.q, terms.smoothing)

    def value(self, predictor: Vector, response: Vector) -> Vector:
        """Return V(u), shape (n,)."""
        margin = response * predictor
        tail = np.maximum(margin, self.knee)
        curved = (self.knee / tail) ** self.q / (self.q + 1)
        return np.where(margin <= self.knee, 1.0 - margin, curved)

    def slope(self, predictor: Vector, response: Vector) -> Vector:
        """Return response * V'(u), shape (n,), in [-1, 1]."""
        tail = np.maximum(response * predictor, self.knee)
        return -response * (self.knee / tail) ** (self.q + 1)

    def curvature(self, predictor: Vector, response: Vector) -> Vector:
        """Return h(u), shape (n,), in [0, curvature_bound]."""
        margin = response * predictor
        step = np.where(margin >= self.foot, self._of_step(margin), 0.0)
        return np.where(margin >= self.top, self.sharp_curvature(predictor, response), step)

    def _of_step(self, margin: Vector) -> Vector:
        step: Vector = self.height * np.sqrt(1 - SUNK * self.slope(margin, np.ones(1)) ** 2)
        return step

    def sharp_curvature(self, predictor: Vector, response: Vector) -> Vector:
        """Return V''(u), shape (n,): 0 up to u0, in [0, (q + 1)^2 / q]."""
        margin = response * predictor
        tail = np.maximum(margin, self.knee)
        curved = (self.q + 1) * (self.knee / tail) ** (self.q + 1) / tail
        return np.where(margin > self.knee, curved, 0.0)

    def joint_bounds(self) -> tuple[Vector, Vector]:
        """As `Bends.joint_bounds`: pieces of the step from the knee to its top.

        The slope falls from there, so that a piece has its largest where it begins; the curvature
        rises to its end. Below the knee the slope is as large and the curvature no larger than in
        the first piece; beyond the top both are no larger than in the last one.
        """
        ends = np.linspace(self.knee, self.top, STEP_PIECES + 1)
        curved = np.minimum(self._of_step(ends[1:]) / self.curvature_bound, 1.0)
        curved[-1] = 1.0
        return -self.slope(ends[:-1], np.ones(1)), curved


@lru_cache(maxsize=64)
def _step(q: float, height: float) -> tuple[float, float]:
    """Return where the step of a generalised DWD loss begins and ends.

    Along y = (q + 1) log(u / u0), where slopes are exp(-y) for every q. For each end y the area
    says where the step begins; the later it ends, the higher its mean place is for what it is.

    height: T, of V''.
    """
    part, (nodes, weights) = height * q / (q + 1) ** 2, STEP_NODES
    level = part * math.sqrt(1 - SUNK)

    def of(end: float) -> tuple[float, float]:
        """Return how far below u0 it begins, in u0 / (q + 1), and how much too high it lies."""
        y, share = end * (nodes + 1) / 2, weights * end / 2
        distance = (q + 1) * np.expm1(y / (q + 1))
        gained = share * np.exp(-y)
        filled = share * part * np.sqrt(1 - SUNK * np.exp(-2 * y)) * np.exp(y / (q + 1))
        width = (float(gained.sum()) - float(filled.sum())) / level
        return width, float((filled - gained) @ distance) - level * width * abs(width) / 2

    least, most = 0.0, FLAT
    for _ in range(HALVINGS):
        middle = (least + most) / 2
        width, above = of(middle)
        least, most = (middle, most) if width > 0 and above < 0 else (least, middle)
    # the same on every machine, whatever its last digits
    width, end, knee = round(of(least)[0], 9), round(least, 9), q / (q + 1)
    return knee * (1 - width / (q + 1)), knee * math.exp(end / (q + 1))


class Linear:
    """Half the squared residual; beyond `residual_bound` it goes on as a straight line.

    Without a threshold this is least squares. A private release needs one, because the slope of a
    record is its residual: the noise is in proportion to the largest.

    residual_bound: Threshold, > 0, in units of the encoded response; None for none.

    Raises ConfigError if the threshold is not a positive number.
    """

    name = "linear"
    responses = "number"
    curvature_bound = 1.0
    sharp_curvature_bound = 1.0
    start_curvature = 1.0
    start_intercept = 0.0
    start_slope_bound = 1.0

    def __init__(self, residual_bound: float | None = None) -> None:
        if residual_bound is not None and not 0 < residual_bound < math.inf:
            raise ConfigError("estimator.residual_bound must be a positive number")
        self.slope_bound = self._threshold = math.inf if residual_bound is None else residual_bound
        # up to the threshold nothing is left out, and most records stay within it
        self.remainder = 1 / (4 * self._threshold)

    @classmethod
    def of(cls, terms: Terms) -> Linear:
        """Return the loss of a study."""
        return cls(terms.threshold)

    def value(self, predictor: Vector, response: Vector) -> Vector:
        """Return r^2 / 2 of the residual r, or its linear continuation; shape (n,)."""
        size = np.abs(predictor - response)
        inner = np.minimum(size, self._threshold)
        value: Vector = inner * (size - inner / 2)
        return value

    def slope(self, predictor: Vector, response: Vector) -> Vector:
        """Return the residual, cut at the threshold, shape (n,)."""
        # two calls of numpy take half as long as its clip, which windows of 100 records notice
        least = np.maximum(predictor - response, -self._threshold)
        slope: Vector = np.minimum(least, self._threshold)
        return slope

    def curvature(self, predictor: Vector, response: Vector) -> Vector:
        """Return 1 up to the threshold and 0 beyond, shape (n,)."""
        return np.where(np.abs(predictor - response) <= self._threshold, 1.0, 0.0)

    sharp_curvature = curvature

    def start_slope(self, response: Vector) -> Vector:
        """Return the residuals of the predictor 0, in [-1, 1], shape (n,).

        They are not cut at the threshold: a mean response beyond it would be out of reach.
        """
        return -response

    def intercept_of(self, slope: float, spread: float) -> float:
        """Return the mean response from the mean slope at the start, within its range."""
        del spread
        return min(max(-slope, -1.0), 1.0)

    def mean(self, predictor: Vector) -> Vector:
        """Return the expected response, which is the predictor itself."""
        return predictor


class Expectile(Linear):
    """a r^2 / 2 of the residual r = y - u with a = tau for r >= 0 and 1 - tau below.

    At tau = 1/2 it is half the loss of a linear regression; a larger tau explains a higher part of
    the response's distribution.

    tau: In (0, 1).
    residual_bound: As of `Linear`.

    Raises ConfigError if one of them is out of range.
    """

    name = "expectile"

    def __init__(self, tau: float, residual_bound: float | None = None) -> None:
        if not 0 < tau < 1:
            raise ConfigError("estimator.tau must lie in (0, 1), for example 0.5")
        super().__init__(residual_bound)
        self._tau = tau
        largest = max(tau, 1 - tau)
        # equal sides are half a linear loss; others change their curvature at zero
        self.remainder = self.remainder if tau == 0.5 else 1.0
        self.slope_bound = largest * self._threshold
        self.curvature_bound = self.sharp_curvature_bound = largest
        self.start_curvature, self.start_slope_bound = 0.5, largest

    @classmethod
    def of(cls, terms: Terms) -> Expectile:
        """Return the loss of a study."""
        return cls(terms.tau, terms.threshold)

    def value(self, predictor: Vector, response: Vector) -> Vector:
        """Return the weighted loss of each record, shape (n,)."""
        value: Vector = self._sides(predictor, response) * super().value(predictor, response)
        return value

    def slope(self, predictor: Vector, response: Vector) -> Vector:
        """Return the derivative in the predictor, shape (n,)."""
        slope: Vector = self._sides(predictor, response) * super().slope(predictor, response)
        return slope

    def curvature(self, predictor: Vector, response: Vector) -> Vector:
        """Return a up to the threshold and 0 beyond, shape (n,)."""
        flat = super().curvature(predictor, response)
        curvature: Vector = self._sides(predictor, response) * flat
        return curvature

    sharp_curvature = curvature

    def start_slope(self, response: Vector) -> Vector:
        """Return the slopes at a predictor of zero, shape (n,), without a cut."""
        slope: Vector = self._sides(np.zeros_like(response), response) * -response
        return slope

    def intercept_of(self, slope: float, spread: float) -> float:
        """Return one step from zero against the mean slope: the best intercept has no formula."""
        del spread
        return -slope

    def _sides(self, predictor: Vector, response: Vector) -> Vector:
        return np.where(response >= predictor, self._tau, 1 - self._tau)


#: Largest mean without noise: far beyond any count, and far below an overflow.
_NO_LIMIT = math.exp(50.0)


class Poisson:
    """exp(u) - y u, the negative log-likelihood up to a constant; linear where exp(u) > the limit.

    With counts y in [0, largest] and the same limit for the mean, slopes lie in
    [-largest, largest] and curvatures in [0, largest]: public bounds. Where the true means are
    within the limit the minimiser is the same as without it.

    largest: Largest count, >= 1.
    limit: Largest mean, > 0; None for exp(50), which is no limit.

    Raises ConfigError if one of them is outside its range.
    """

    name = "poisson"
    remainder = 1.0
    responses = "count"

    def __init__(self, largest: float, limit: float | None = None) -> None:
        if not 1 <= largest < math.inf:
            raise ConfigError("data.response.max must be at least 1 for counts")
        if limit is not None and not 0 < limit < math.inf:
            raise ConfigError("the largest mean must be a positive number")
        self._limit = _NO_LIMIT if limit is None else limit
        self._end = math.log(self._limit)
        self.slope_bound = max(largest, self._limit)
        self.curvature_bound = self.sharp_curvature_bound = self._limit
        # half of the range has the smallest slopes, and so the least noise
        self.start_slope_bound = self.start_curvature = largest / 2
        self.start_intercept = math.log(largest / 2)

    @classmethod
    def of(cls, terms: Terms) -> Poisson:
        """Return the loss of a study; with noise no mean is larger than the largest count."""
        return cls(terms.largest, terms.largest if terms.noised else None)

    def value(self, predictor: Vector, response: Vector) -> Vector:
        """Return the loss of each record, shape (n,)."""
        beyond = np.maximum(predictor - self._end, 0.0)
        value: Vector = self.mean(predictor) * (1.0 + beyond) - response * predictor
        return value

    def slope(self, predictor: Vector, response: Vector) -> Vector:
        """Return mean less count, shape (n,)."""
        return self.mean(predictor) - response

    def curvature(self, predictor: Vector, response: Vector) -> Vector:
        """Return the mean, and 0 beyond the limit; it does not depend on the response."""
        del response
        return np.where(predictor <= self._end, self.mean(predictor), 0.0)

    sharp_curvature = curvature

    def start_slope(self, response: Vector) -> Vector:
        """Return half of the range less the counts, shape (n,)."""
        return self.start_slope_bound - response

    def intercept_of(self, slope: float, spread: float) -> float:
        """Return the logarithm of the mean count from the mean slope at the start.

        A mean below its noise, or no mean at all, is taken for as much as the noise.
        """
        most = 2 * self.start_slope_bound
        least = min(max(spread, 1e-3), most)
        return math.log(min(max(self.start_slope_bound - slope, least), most))

    def mean(self, predictor: Vector) -> Vector:
        """Return the expected count, at most the limit, shape (n,)."""
        return np.exp(np.minimum(predictor, self._end))


FAMILIES: dict[str, Callable[[Terms], Loss]] = {
    "gdwd": GeneralisedDWD.of,
    "logistic": Logistic.of,
    "linear": Linear.of,
    "expectile": Expectile.of,
    "poisson": Poisson.of,
}
NAMES = tuple(FAMILIES)
#: What the coefficients of each say, for people who meet its name first.
MEANINGS = {
    "gdwd": "distance-weighted discrimination, a line between two classes as support vector "
    "machines draw it: signs and sizes beside each other, no log odds and no probabilities",
    "logistic": "log odds of the positive class, and its probability",
    "linear": "the mean of a number",
    "expectile": "an expectile of a number: between its mean and its extremes, as tau says",
    "poisson": "the logarithm of the mean of a count",
}


def build(name: str, terms: Terms | None = None) -> Loss:
    """Return the loss called `name` for a study with these terms.

    Raises ConfigError if no loss has this name, or a term is outside its range.
    """
    if name not in FAMILIES:
        raise ConfigError(f"estimator.loss must be one of {', '.join(NAMES)}")
    return FAMILIES[name](terms or Terms())
