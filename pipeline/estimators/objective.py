"""The mean penalised loss over rows that can all be read: its value, gradient and curvature.

It needs sums alone: rows are read anew for each point, and memory does not grow with them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from pipeline.errors import DataError, NumericError
from pipeline.linalg import is_singular
from pipeline.losses import Loss
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
