"""Exact fits to records that can all be read, without privacy: what estimates aim at.

The losses may have no curvature at the start and jumps in their second derivative, so this is a
Newton method on the generalised Hessian, held by a share of the majoriser: with all of it every
step descends, and the share falls tenfold with every step that does, so that the end is a plain
Newton method. It needs sums alone: rows are read anew for each pass, and memory does not grow.

A fit's intervals are what privacy is compared with: M-estimation, theta +- z sqrt(diag(B^-1 M
B^-1)) with B the curvature and M the sum of the scores' products, both with the penalty in them
(Huber 1967; Theorem 5.21 of van der Vaart 1998).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from pipeline.errors import DataError, NumericError
from pipeline.estimators.estimate import Estimate, class_weights, dispersion_of
from pipeline.linalg import condition_number, is_singular, sandwich, solve_positive
from pipeline.losses import Loss
from pipeline.records.encoder import Arrays
from pipeline.release.task import Task
from pipeline.types import Matrix, Vector

#: A step must gain this part of what its gradient promises (Armijo).
SUFFICIENT = 1e-4
#: Rows that are worked on at once.
BLOCK = 8192


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows (1, x) of shape (n, d), responses (n,), and weights (n,) >= 0; None: all weigh one."""

    design: Matrix
    responses: Vector
    weights: Vector | None = None


#: Reads all rows from the start.
Read = Callable[[], Iterable[Rows]]


@dataclass(frozen=True, slots=True)
class Sums:
    """The mean penalised loss at a point: (sum w V) / n + penalty' point^2 / 2.

    gradient, curvature: Shapes (d,) and (d, d): the generalised Hessian, without smoothing.
    score: Largest entry of the gradient in units of its column's root mean square.
    separated: Whether the point puts every row strictly on the side of its class.
    """

    point: Vector
    value: float
    gradient: Vector
    curvature: Matrix
    score: float
    separated: bool

    def descends(self, trial: Sums) -> bool:
        """Whether a trial gains enough, as far as rounding can tell.

        Near the end the value no longer shows a gain that the gradient does.
        """
        gained = self.value - trial.value
        if abs(gained) <= 1e-13 * abs(self.value):
            return trial.score < 0.99 * self.score
        return gained >= SUFFICIENT * float(self.gradient @ (self.point - trial.point))

    @property
    def flat(self) -> bool:
        """Whether there is no curvature in some direction, and no penalty gives one."""
        root = np.sqrt(np.maximum(np.diag(self.curvature), np.finfo(float).tiny))
        return bool(np.linalg.eigvalsh(self.curvature / np.outer(root, root))[0] < 1e-10)


@dataclass(slots=True)
class _Facts:
    """What the first pass finds: rows, mean square of the columns, mean (1, x)(1, x)', ends."""

    rows: int
    scale: Vector
    gram: Matrix
    least: float
    most: float


class Objective:
    """The mean penalised loss over rows.

    read: Called once for each point.
    penalty: For each coefficient, >= 0, shape (d,).
    """

    def __init__(self, loss: Loss, read: Read, penalty: Vector) -> None:
        self.loss, self.penalty = loss, penalty
        self._read = read
        self._known: _Facts | None = None

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return self._facts.rows

    @property
    def majoriser(self) -> Matrix:
        """The largest curvature of the loss part, without the penalty, shape (d, d).

        Of a count's loss it is the largest on the way to any minimiser: without noise its mean has
        no useful bound.
        """
        bound = self.loss.sharp_curvature_bound
        if self.loss.responses == "count":
            bound = min(bound, 4 * max(1.0, self._facts.most))
        return bound * self._facts.gram

    def at(self, point: Vector, *, curved: bool = True) -> Sums:
        """Return the sums at a point, shape (d,); their curvature is zero where nobody needs it.

        DataError if there is no row, or rows of different clients differ in their number of
        columns.
        """
        size, loss = len(self.penalty), self.loss
        value, gradient, curvature = 0.0, np.zeros(size), np.zeros((size, size))
        found = None if self._known else _Facts(0, np.zeros(size), np.zeros((size, size)), 0.0, 0.0)
        separated = loss.responses == "class"
        for part in _blocks(self._read()):
            if part.design.shape[1] != size:
                raise DataError("rows must all have the same number of features")
            predictor = part.design @ point
            # a step out of the range of numbers is not taken
            with np.errstate(over="ignore", invalid="ignore"):
                value += float(np.sum(_times(loss.value(predictor, part.responses), part)))
                gradient += part.design.T @ _times(loss.slope(predictor, part.responses), part)
                if curved:
                    curvature += _gram(part, loss.sharp_curvature(predictor, part.responses))
            separated = separated and bool(np.min(part.responses * predictor) > 0)
            if found is not None:
                _look(found, part)
        if found is not None:
            self._known = _told(found)
        facts = self._facts
        gradient = gradient / facts.rows + self.penalty * point
        return Sums(
            point,
            value / facts.rows + float(self.penalty @ point**2) / 2,
            gradient,
            curvature / facts.rows + np.diag(self.penalty),
            float(np.max(np.abs(gradient) / facts.scale)),
            separated,
        )

    def require_a_minimiser(self) -> None:
        """Refuse a problem that cannot have a unique minimiser, before any step.

        NumericError if the intercept is free and only one class occurs or all counts are
        zero, or columns are collinear without a penalty.
        """
        facts, kind = self._facts, self.loss.responses
        if self.penalty[0] == 0 and kind == "count" and facts.most <= 0:
            raise NumericError(
                "all counts are zero, so a free intercept has no best value: a count above zero or "
                "a penalty of the intercept is needed"
            )
        if self.penalty[0] == 0 and kind == "class" and facts.least * facts.most > 0:
            raise NumericError(
                "responses hold one class only, so a free intercept has no best value: records of "
                "both classes or a penalty of the intercept are needed"
            )
        if is_singular(self.majoriser + np.diag(self.penalty)):
            raise NumericError(
                "features are collinear, or constant beside the intercept, and nothing holds their "
                "coefficients: estimator.ridge > 0 or fewer features are needed"
            )

    def refuse_endless(self, sums: Sums) -> None:
        """Refuse a point from which the loss falls all the way to infinity.

        Raises NumericError if, without a penalty, it separates the classes.
        """
        if sums.separated and not self.penalty.any():
            raise NumericError(
                "the classes are separable, so there is no best fit: estimator.ridge > 0 is needed"
            )

    @property
    def _facts(self) -> _Facts:
        if self._known is None:
            self.at(np.zeros(len(self.penalty)))
        assert self._known is not None  # noqa: S101  `at` has just looked
        return self._known


def _blocks(parts: Iterable[Rows]) -> Iterable[Rows]:
    for part in parts:
        for start in range(0, len(part.responses), BLOCK):
            cut = slice(start, start + BLOCK)
            weights = None if part.weights is None else part.weights[cut]
            yield Rows(part.design[cut], part.responses[cut], weights)


def _look(facts: _Facts, part: Rows) -> None:
    facts.least = min(facts.least if facts.rows else np.inf, float(part.responses.min()))
    facts.most = max(facts.most if facts.rows else -np.inf, float(part.responses.max()))
    facts.rows += len(part.responses)
    facts.scale += np.square(part.design).sum(axis=0)
    facts.gram += _gram(part, np.ones(len(part.responses)))


def _told(facts: _Facts) -> _Facts:
    if not facts.rows:
        raise DataError("there are no records to fit")
    scale = np.sqrt(np.maximum(facts.scale / facts.rows, np.finfo(float).tiny))
    return _Facts(facts.rows, scale, facts.gram / facts.rows, facts.least, facts.most)


def _times(values: Vector, part: Rows) -> Vector:
    return values if part.weights is None else values * part.weights


def _gram(part: Rows, curvature: Vector) -> Matrix:
    """Return sum c x x' as the product of one matrix with itself, which is exactly symmetric."""
    rows = part.design * np.sqrt(_times(curvature, part))[:, None]
    product: Matrix = rows.T @ rows
    return product


#: Score at which a fit has converged: divided by the least curvature per record it bounds the
#: error of the coefficients.
TOLERANCE = 1e-10
#: Passes over the rows, at most.
PASSES = 500
#: The share of the majoriser never falls below this, so that no matrix is singular.
LEAST_SHARE = 1e-12
#: Beyond this one, no step descends that rounding could tell.
MOST_SHARE = 1e6


@dataclass(frozen=True, slots=True)
class Pooled:
    """A pooled fit: coefficients (d,), Newton steps taken, and the score that is left."""

    coefficients: Vector
    steps: int
    score: float


def pooled_fit(
    loss: Loss,
    read: Read,
    penalty: Vector,
    *,
    start: Vector | None = None,
    share: float = 1.0,
    passes: int = PASSES,
    tolerance: float = TOLERANCE,
) -> Pooled:
    """Minimise (sum w V) / n + penalty' theta^2 / 2 over rows.

    read: Called once for each pass.
    penalty: For each coefficient, >= 0, shape (d,).
    start, share: Where to begin, by default at zero, and with which share of the majoriser: a start
        that is near the end needs little.
    tolerance: Of the score of the result.

    Raises NumericError if there is no unique minimiser (one class only, collinear columns or
    separable classes, where no penalty helps), or the passes do not suffice; DataError if there is
    no row.
    """
    objective = Objective(loss, read, penalty)
    here, steps = objective.at(np.zeros(len(penalty)) if start is None else start), 0
    objective.require_a_minimiser()
    for _ in range(passes):
        objective.refuse_endless(here)
        if here.score <= tolerance:
            if here.flat:
                raise NumericError(
                    "the fit has no curvature in some direction (few records, or classes separable "
                    "but for ties): estimator.ridge > 0 or more records are needed"
                )
            return Pooled(here.point, steps, here.score)
        held = here.curvature + share * objective.majoriser
        trial = objective.at(here.point - solve_positive(held, here.gradient))
        if here.descends(trial):
            here, share, steps = trial, max(share / 10, LEAST_SHARE), steps + 1
        elif share > MOST_SHARE:
            break
        else:
            share *= 10
    raise NumericError(
        f"the pooled fit did not converge in {passes} passes: one class alone, classes that are "
        "nearly separable, or features that are nearly collinear; a larger estimator.ridge is "
        "needed"
    )


def target(
    task: Task,
    read: Callable[[], Iterable[Rows]],
    *,
    start: Vector | None = None,
    share: float = 1.0,
    passes: int = PASSES,
) -> Pooled:
    """Return the pooled fit of a study to rows of `study_rows`, on encoded features.

    start: By default the public start of the study; the rest is as in `pooled_fit`.

    Raises NumericError if the records do not determine it; DataError if there is none.
    """
    begin = task.first_model.coefficients if start is None else start
    return pooled_fit(task.loss, read, task.penalty, start=begin, share=share, passes=passes)


def study_rows(
    task: Task, features: Matrix, responses: Vector, weights: tuple[float, float] = (1.0, 1.0)
) -> Rows:
    """Return records as clients see them: clipped, or weighted by their length.

    features, responses: Shapes (n, p) and (n,), encoded.
    weights: Of the negative and the positive class.
    """
    design, weight = task.reference_rows(features, responses, weights)
    return Rows(design, responses, weight)


#: How its intervals are made.
INTERVAL = "sandwich, all records at once"
#: Intervals need this many records for each coefficient.
RECORDS_PER_COEFFICIENT = 10
#: Records of a sample that a fit starts from, at most twice as many; and passes that it then takes.
SAMPLE, FEW = 20_000, 40


@dataclass(frozen=True, slots=True)
class Spread:
    """How precise a pooled fit is.

    covariance, bread: Of the coefficients, and the summed curvature with the penalty; shape (d, d).
    dispersion: Mean squared slope over mean curvature, as `Estimate` has it.
    records: How many rows there were.
    """

    covariance: Matrix
    bread: Matrix
    dispersion: float | None
    records: int


def spread_of(loss: Loss, read: Read, penalty: Vector, point: Vector) -> Spread:
    """Return the sandwich of a pooled fit, in one pass over the rows.

    Where a loss bends in a kink and features have few levels, many rows can lie at the kink at
    once; then estimates are not normal and intervals are too short (docs/methods/renewable.md).

    penalty, point: As given to `pooled_fit`, and as found by it; shape (d,).

    Raises NumericError if the rows do not determine all coefficients.
    """
    size, records = len(point), 0
    bread, meat = np.zeros((2, size, size))
    for part in read():
        design, predictor = part.design, part.design @ point
        weights = 1.0 if part.weights is None else part.weights
        scores = (weights * loss.slope(predictor, part.responses))[:, None] * design
        scores = scores + penalty * point
        bread += (design.T * (weights * loss.sharp_curvature(predictor, part.responses))) @ design
        meat += scores.T @ scores
        records += len(part.responses)
    bread += records * np.diag(penalty)
    # the intercept is first and has no penalty, so these are sums of squared slopes and curvatures
    dispersion = dispersion_of(float(meat[0, 0]), float(bread[0, 0]))
    return Spread(sandwich(bread, meat), bread, dispersion, records)


def exact_fit(task: Task, read: Callable[[], Iterable[Arrays]]) -> Estimate:
    """Fit a study to all its records, with intervals; `read` is called once for each pass.

    Raises NumericError if the records do not determine the coefficients; DataError if there is
    none.
    """
    records = positive = 0
    for part in read():
        records += int(np.count_nonzero(~np.isnan(part.responses)))
        positive += int(np.count_nonzero(part.responses > 0))
    weights = (1.0, 1.0)
    if task.classes:
        weights = class_weights(records - positive, positive, task.largest_weight)
    return counted_fit(task, read, records, weights)


def counted_fit(
    task: Task, read: Callable[[], Iterable[Arrays]], records: int, weights: tuple[float, float]
) -> Estimate:
    """Return the same of records that have been counted.

    Many of them are fitted from the fit of every k-th one on, so that few passes suffice.

    records: How many have a response.
    weights: Of the negative and the positive class.

    Raises NumericError as `exact_fit`, or if the passes do not suffice; DataError as it.
    """

    def rows() -> Iterator[Rows]:
        for part in read():
            known = ~np.isnan(part.responses)
            yield study_rows(task, part.features[known], part.responses[known], weights)

    step = records // SAMPLE
    if step < 2:
        point = target(task, rows).coefficients
    else:
        sample = list(_every(rows(), step))
        near = target(task, lambda: sample).coefficients
        point = target(task, rows, start=near, share=1e-3, passes=FEW).coefficients
    return exact_estimate(task, point, spread_of(task.loss, rows, task.penalty, point), weights)


def _every(parts: Iterable[Rows], step: int) -> Iterator[Rows]:
    """Yield every k-th of all rows, from the first one on."""
    start = 0
    for part in parts:
        chosen = slice(-start % step, None, step)
        weights = None if part.weights is None else part.weights[chosen].copy()
        yield Rows(part.design[chosen].copy(), part.responses[chosen].copy(), weights)
        start += len(part.responses)


def exact_estimate(
    task: Task, point: Vector, spread: Spread, weights: tuple[float, float]
) -> Estimate:
    """Return a pooled fit and its spread as an estimate; no noise has a part in its variance."""
    needed = RECORDS_PER_COEFFICIENT * task.size
    enough = spread.records >= needed
    return Estimate(
        coefficients=point,
        covariance=spread.covariance if enough else None,
        privacy_covariance=np.zeros_like(spread.covariance) if enough else None,
        weights=weights,
        status="ready" if enough else "warming",
        reason="" if enough else f"intervals need {needed} records; {spread.records} have come",
        records=spread.records,
        releases=0,
        condition=condition_number(spread.bread),
        effective_records=float(spread.records),
        dispersion=None if task.classes else spread.dispersion,
        interval=INTERVAL,
    )
