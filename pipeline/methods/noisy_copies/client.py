"""A site's own fit, and its noisy copies as mean and scatter, which say the same as all of them.

Of K copies N(theta, psi F^-1) the mean is N(theta, psi F^-1 / K), and the scatter, the sum of
squares about it, is the sum of K - 1 squares of N(0, psi F^-1), independent of the mean. Both are
drawn so, in floating point, and leave rounded to public lattices: docs/privacy/copies.md.

Fits are exact minimisers with a public ridge, whose information is never singular: there are fits
of separated classes, of fewer records than coefficients and of none at all.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import numpy as np
from scipy.linalg import solve_triangular

from pipeline.errors import PrivacyError
from pipeline.linalg import pack_upper, solve_positive
from pipeline.losses import Loss
from pipeline.methods.noisy_copies import accounting as copies
from pipeline.methods.noisy_copies.accounting import Change, Promise, Sizes, distance
from pipeline.methods.noisy_copies.spec import Spec, spec_of
from pipeline.methods.sites.client import WeighedTask
from pipeline.privacy.accounting import normal_numbers
from pipeline.privacy.events import Event, TotalVariation, compose
from pipeline.privacy.guarantee import Guarantee, guarantee_of
from pipeline.privacy.mechanism import INTEGER_LIMIT
from pipeline.privacy.randomness import SecureStream
from pipeline.records.blocks import finite, with_intercept
from pipeline.records.encoder import Arrays
from pipeline.release.budget import Budget
from pipeline.release.layout import Field, Layout
from pipeline.release.model import COEFFICIENT_EXPONENT, COEFFICIENT_LIMIT, Model
from pipeline.release.query import Query
from pipeline.release.task import inside
from pipeline.types import Integers, Matrix, Vector


@dataclass(frozen=True)
class Law:
    """The law of one copy of a window's fit.

    theta, information: The fit, shapes (d,) and (d, d).
    scale, copies: psi and K, public.
    """

    theta: Vector
    information: Matrix
    scale: float
    copies: int

    @cached_property
    def root(self) -> Matrix:
        """A with A A' = psi F^-1, shape (d, d)."""
        lower = np.linalg.cholesky(self.information)
        inverse: Matrix = solve_triangular(lower, np.eye(len(lower)), lower=True)
        return math.sqrt(self.scale) * inverse.T

    def divergences(self, other: Law, orders: Vector) -> Vector:
        """Return the Renyi divergences of all copies from those of another law, exactly, (n,).

        Infinite where the other's precision is too large for an order.

        orders: Above 1, shape (n,).
        """
        ratios = np.linalg.eigvals(np.linalg.solve(self.information, other.information)).real
        at, found = orders[:, None, None], np.full(len(orders), math.inf)
        mixed = at * self.information - (at - 1) * other.information
        finite = np.linalg.eigvalsh(mixed)[:, 0] > 0
        away, order = self.theta - other.theta, orders[finite][:, None]
        pulled = np.linalg.solve(mixed[finite], (other.information @ away)[:, None])[:, :, 0]
        spread = np.log(order - (order - 1) * ratios) / (order - 1) + np.log(ratios)
        shifted = orders[finite] * (pulled @ (self.information @ away)) / (2 * self.scale)
        found[finite] = self.copies * (shifted - spread.sum(axis=1) / 2)
        return found


@dataclass(frozen=True, slots=True)
class CopiedPart:
    """Mean or scatter of the copies, on a public lattice.

    scatter: Which of the two it is.
    exponent: The lattice unit is 2^exponent.
    largest: No number leaves beyond it, in lattice units; public.
    simulated: Whether the study is a simulation, whose noise protects nobody.
    """

    law: Law
    scatter: bool
    exponent: int
    largest: float
    simulated: bool

    def noised(self, stream: SecureStream) -> Integers:
        """Draw mean or scatter, round it and cut it to its bound: post-processing."""
        law, size = self.law, len(self.law.theta)
        columns = law.copies - 1 if self.scatter else 1
        drawn = normal_numbers(size * columns, stream, simulated=self.simulated).reshape(
            size, columns
        )
        moved = law.root @ drawn
        if self.scatter:
            found = pack_upper(moved @ moved.T)
        else:
            found = law.theta + moved[:, 0] / math.sqrt(law.copies)
        bound = math.floor(self.largest)
        rounded = np.rint(np.ldexp(found, -self.exponent))
        return np.clip(rounded, -bound, bound).astype(np.int64)


#: Newton steps at most, and the length of the last one as a share of what one record can pull.
STEPS, SHORT = 200, 1e-7
#: Steps that move no predictor further than this are whole ones: curvature hardly changes on them.
NEAR = 0.1
#: Of a linear fit at the edge of its ball: halvings of the search for its multiplier.
HALVINGS = 200


def linear_fit(
    design: Matrix, responses: Vector, ridge: float, deviation: float, most: float
) -> tuple[Vector, Matrix]:
    """Return the ridge fit within |theta| <= most and its information X'X / deviation^2 + ridge I.

    Shapes (n, d) and (n,); returns (d,) and (d, d).
    """
    size, precision = design.shape[1], deviation**-2
    information = precision * (design.T @ design) + ridge * np.eye(size)
    right = precision * (design.T @ responses)
    theta = solve_positive(information, right)
    if np.linalg.norm(theta) <= most:
        return theta, information
    values, vectors = np.linalg.eigh(information)
    turned = vectors.T @ right

    def length(multiplier: float) -> float:
        return float(np.linalg.norm(turned / (values + multiplier)))

    low, high = 0.0, float(np.linalg.norm(right)) / most
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if length(middle) > most else (low, middle)
    return vectors @ (turned / (values + high)), information


def logistic_fit(
    loss: Loss, design: Matrix, responses: Vector, weights: Vector, start: Vector, ridge: float
) -> tuple[Vector, Matrix]:
    """Return the minimiser of the weighed loss and ridge |theta|^2 / 2, and the curvature there.

    start: Predictors at theta = 0, shape (n,): it is the way from a public point.

    Newton's method with steps halved until they help; strictly convex, so that it ends at the one
    minimiser. The curvature of `loss` changes by at most a factor e^s on a way s of predictors:
    near the end whole steps help, where rounding would hide it. Shapes as in `linear_fit`.

    Raises PrivacyError if it has not ended after `STEPS` steps.
    """
    size, weights = design.shape[1], np.ascontiguousarray(weights)
    squares = np.einsum("ij,ij->i", design, design)
    near = NEAR**2 * ridge / float(np.max(squares, initial=1.0))
    small = SHORT**2 * float(np.max(weights**2 * squares, initial=0.0)) / ridge
    theta = np.zeros(size)

    def value(at: Vector) -> float:
        return float(weights @ loss.value(start + design @ at, responses)) + ridge / 2 * float(
            at @ at
        )

    def curved(at: Vector) -> Matrix:
        bends = weights * loss.curvature(start + design @ at, responses)
        found: Matrix = (design.T * bends) @ design + ridge * np.eye(size)
        return found

    for _ in range(STEPS):
        slope = design.T @ (weights * loss.slope(start + design @ theta, responses)) + ridge * theta
        move = solve_positive(curved(theta), slope)
        decrement, share = float(slope @ move), 1.0
        if decrement > near:
            here = value(theta)
            while value(theta - share * move) > here - share * decrement / 4:
                share /= 2
        theta = theta - share * move
        if decrement <= min(small, near):
            return theta, curved(theta)
    raise PrivacyError(
        f"estimator.method.site_ridge: the fit of a window has not ended within {STEPS} steps, so "
        "that nothing was sent; the study's operator must give a larger one"
    )


def reach_of(radius: float, deviation: float) -> float:
    """Return what a normal number plus a bounded one practically never passes."""
    return radius + 16 * deviation


def scatter_reach(largest: float, degrees: int) -> float:
    """Return what no entry of a scatter practically passes, for variances up to `largest`."""
    return largest * (math.sqrt(degrees) + 16) ** 2


#: The ridge, where a study names none, over the least one that its budget allows.
RIDGES = 2.0
#: Units of the lattices: at most quarters of the least deviation of a mean, halves of that of a
#: scatter: what floating point can tell falls with them, and rounding adds to variances.
MEAN_BITS, SCATTER_BITS = 2, 1
#: The share of delta that is left to what floating point can tell.
FLOATING = 0.5


class CopiesTask(WeighedTask):
    """As `WeighedTask`: the mean and the scatter of noisy copies of the fit of a window."""

    #: Releases hold no squared slopes.
    squares = 0

    @cached_property
    def spec(self) -> Spec:
        return spec_of(self.study)

    @property
    def copies(self) -> int:
        """K, public as psi (`scale`) and the ridge are."""
        return self.spec.copies

    @property
    def moving(self) -> bool:
        """Whether ridges draw to the newest model, as those of curved losses do, and not to 0."""
        return self.classes

    at_models = moving

    @property
    def most_in_flight(self) -> int:
        """As `Task.most_in_flight`: linear fits wait for no model."""
        return super().most_in_flight if self.moving else 0

    @property
    def most_at_start(self) -> int:
        """As `Task.most_at_start`: linear fits wait for no model."""
        return super().most_at_start if self.moving else 0

    @cached_property
    def deviation(self) -> float:
        """Public deviation of a linear model's residuals, encoded; 1 for classes."""
        scale = self.study.estimator.noise_scale
        return 1.0 if scale is None else scale / self.response_scale[1]

    @property
    def radius(self) -> float:
        """Largest norm of a linear fit."""
        return self.spec.coefficient_bound or 1.0

    @property
    def promise(self) -> Promise:
        """What the copies must keep."""
        privacy = self.study.privacy
        if privacy.epsilon is None or privacy.delta is None or privacy.neighbours == "add-remove":
            raise PrivacyError("privacy: copies need a delta, and neighbours other than add-remove")
        return Promise(privacy.epsilon, privacy.delta, privacy.neighbours, privacy.records or 1)

    @property
    def exact(self) -> Promise:
        """What they must keep in exact arithmetic, so that delta holds in floating point, too."""
        return replace(self.promise, delta=(1 - FLOATING) * self.promise.delta)

    def change(self, ridge: float) -> Change:
        """Return how far one record changes the law of a fit, errors of floating point with it."""
        sizes = Sizes(self.size, self.slots, ridge, self.most_informed(ridge))
        if self.classes:
            change = copies.of_logistic(self.norm_bound, ridge, self.longest)
            farthest = math.sqrt(self.size) * math.ldexp(COEFFICIENT_LIMIT, COEFFICIENT_EXPONENT)
            added = 1 + sizes.of_logistic(self.longest, farthest, self.norm_bound)
        else:
            # encoded responses lie in [-1, 1]
            residual = 1 + self.norm_bound * self.radius
            change = copies.of_linear(self.norm_bound, residual, ridge, self.deviation)
            added = 1 + sizes.of_linear(change.one - 1)
        return Change(change.one * added, change.others * added, change.shift * added)

    @cached_property
    def least_ridge(self) -> float:
        """The least ridge with which any scale keeps the budget; infinite if there is none."""
        unit = (self.norm_bound / self.deviation) ** 2
        longer = self.longest / self.norm_bound if self.classes else None
        return unit * _least_ridge(longer, self.size, self.copies, self.exact)

    @cached_property
    def ridge(self) -> float:
        """Of a site's fit, in units of its information."""
        return self.spec.site_ridge or RIDGES * self.least_ridge

    @cached_property
    def least_scale(self) -> float:
        """The least psi that keeps the budget; infinite if none does."""
        return copies.least_scale(self.change(self.ridge), self.size, self.copies, self.exact)

    @cached_property
    def scale(self) -> float:
        """Psi: the variance of a copy in units of the inverse information of a window."""
        return self.spec.psi or self.least_scale

    def most_informed(self, ridge: float) -> float:
        """Return what no eigenvalue of a window's information passes."""
        curved = self.norm_bound**2 * (0.25 if self.classes else self.deviation**-2)
        return self.slots * curved + ridge

    def make_budget(self, level: str | None) -> Budget:
        return CopiesBudget(self, level)

    def check_fit(self) -> None:
        """As `Task.check_fit`: scale and ridge must keep the budget, and numbers fit a lattice."""
        if not math.isfinite(self.least_ridge):
            raise PrivacyError(
                f"privacy.epsilon: {self.promise.epsilon:g} is too small for {self.copies} copies, "
                "whatever their ridge; use a larger one, fewer estimator.method.copies, or a "
                "smaller privacy.records where the unit is a user"
            )
        if not math.isfinite(self.least_scale) and self.spec.site_ridge is None:
            raise PrivacyError(
                f"estimator.noise_scale: {self.deviation * self.response_scale[1]:g} is so small "
                "beside what residuals can be that no noise keeps this budget; give the standard "
                "deviation that residuals have"
            )
        if not math.isfinite(self.least_scale):
            raise PrivacyError(
                f"estimator.method.site_ridge: {self.ridge:.4g} is too small for this budget and "
                f"{self.copies} copies; use more than {self.least_ridge:.4g}, or leave it out"
            )
        if self.scale < self.least_scale * (1 - 1e-9):
            raise PrivacyError(
                f"estimator.method.psi: {self.scale:.4g} is too small for this budget; use at "
                f"least {self.least_scale:.4g}, or leave it out"
            )
        if self.study.private and self.floating_delta > FLOATING * self.promise.delta:
            raise PrivacyError(
                f"privacy.delta: floating point can add {self.floating_delta:.2g} to it, more than "
                f"half of {self.promise.delta:g}; use a smaller privacy.epsilon, a larger delta, "
                "fewer features or copies, or a larger estimator.method.site_ridge"
            )
        if any(field.largest >= INTEGER_LIMIT for field in self.layout.later):
            raise PrivacyError(
                "window.records: with so many records a copy is too precise for a release; "
                "use smaller windows, or a larger estimator.method.site_ridge"
            )

    @cached_property
    def layout(self) -> Layout:
        variance, most_informed = self.scale / self.copies, self.most_informed(self.ridge)
        exponent = _floor_log(math.sqrt(variance / most_informed)) - MEAN_BITS
        # a logistic fit is no farther from its centre than its slopes over its ridge
        longest = self.slots * self.norm_bound / self.ridge if self.classes else self.radius
        most = reach_of(longest, math.sqrt(variance / self.ridge))
        deviation = self.scale / most_informed * math.sqrt(2 * (self.copies - 1))
        scattered = _floor_log(deviation) - SCATTER_BITS
        widest = scatter_reach(self.scale / self.ridge, self.copies - 1)
        packed = self.size * (self.size + 1) // 2
        fields = [
            Field("mean", self.size, exponent, most * 2.0**-exponent),
            Field("scatter", packed, scattered, widest * 2.0**-scattered),
        ]
        return Layout.noised(self.size, fields)

    @cached_property
    def distance(self) -> float:
        """Total variation of a release from that of exact copies, at most."""
        mean, scatter = self.layout.later
        return distance(mean, scatter, self.size, self.copies, self.scale / self.ridge)

    @property
    def floating_delta(self) -> float:
        """What floating point can add to delta, at most: each window of a unit is drawn in it."""
        apart = self.promise.records * self.distance
        return (1 + math.exp(min(self.promise.epsilon, 700.0))) * apart

    def query(self, window: Arrays, model: Model) -> Query:
        """As `Task.query`: whatever the records hold, the bounds of the task hold."""
        self.check_window(window)
        features, responses = inside(window.features, self), finite(window.responses)
        design = with_intercept(features)
        weights = np.broadcast_to(self.record_weights(design), len(design))
        fit = self.fit(design, np.clip(responses, -1.0, 1.0), weights, model)
        law = Law(*fit, self.scale, self.copies)
        simulated = self.study.privacy.mechanism == "insecure-simulation"
        return Query(
            model,
            {
                field.name: CopiedPart(
                    law, field.name == "scatter", field.exponent, field.largest, simulated
                )
                for field in self.layout.later
            },
        )

    def fit(
        self, design: Matrix, responses: Vector, weights: Vector, model: Model
    ) -> tuple[Vector, Matrix]:
        """Return a window's own fit, as its way from where the ridge draws to, and information."""
        if self.moving:
            start = design @ model.coefficients
            return logistic_fit(self.loss, design, responses, weights, start, self.ridge)
        root = np.sqrt(weights)
        rows, weighed = design * root[:, None], responses * root
        return linear_fit(rows, weighed, self.ridge, self.deviation, self.radius)


class CopiesBudget(Budget):
    """The budget of copies: a curve of Renyi divergences, and what floating point adds."""

    def __init__(self, task: CopiesTask, level: str | None) -> None:
        size = task.size
        super().__init__(task.study, level, touched=size + size * (size + 1) // 2)
        self._task = task

    @cached_property
    def event(self) -> Event:
        task = self._task
        if not task.study.private:
            return super().event
        change, neighbours = task.change(task.ridge), task.promise.neighbours
        found = copies.curve(change, task.size, task.copies, task.scale, neighbours)
        if found is None:
            raise PrivacyError("estimator.method.site_ridge: too small for this budget; raise it")
        return compose([found, TotalVariation(min(1.0, task.distance))])

    @property
    def largest_event(self) -> Event:
        """As `Budget.largest_event`: all clients have the same."""
        return self.event

    @cached_property
    def guarantee(self) -> Guarantee:
        if not self._task.study.private:
            return super().guarantee
        privacy, task = self._task.study.privacy, self._task
        return guarantee_of(
            mechanism="gaussian-copies",
            mu=None,
            counted="",
            epsilon=task.promise.epsilon,
            delta=task.promise.delta,
            floating=task.floating_delta,
            unit=privacy.unit,
            records=privacy.records,
            neighbours=privacy.neighbours,
        )


@lru_cache(maxsize=256)
def _least_ridge(longer: float | None, size: int, number: int, promise: Promise) -> float:
    """Return the least ridge in units of (norm / deviation)^2, where the shift does not matter.

    longer: How many times as long as the norm bound records of classes can be; None: no classes.
    """

    def allowed(ridge: float) -> bool:
        if longer is None:
            change = copies.of_linear(1.0, 1.0, ridge)
        else:
            change = copies.of_logistic(1.0, ridge, longer)
        return math.isfinite(copies.least_scale(change, size, number, promise))

    low, high = 0.0, 1.0
    while not allowed(high):
        low, high = high, 2 * high
        if high > 1e12:
            return math.inf
    while high - low > 1e-4 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if allowed(middle) else (middle, high)
    return high


def _floor_log(value: float) -> int:
    return math.floor(math.log2(value))
