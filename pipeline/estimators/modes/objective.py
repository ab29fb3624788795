"""Records, their sums at a point, and the penalised loss that offline fits minimise.

L(theta) = sum_i w_i V(y_i, (1, x_i)' theta) + (n lambda / 2) theta' R theta. A message holds sums
over records without the ridge: n is public, so whoever adds messages adds the ridge once.
Source: dwd, eq. (5), (6) and (16).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from pipeline.errors import ConfigError, DataError, NumericError
from pipeline.estimators.modes.ridge import Ridge
from pipeline.linalg import is_singular
from pipeline.losses import Kind, Loss
from pipeline.types import Matrix, Vector

#: A step must gain this part of what its gradient promises (Armijo).
SUFFICIENT = 1e-4


@dataclass(frozen=True, slots=True)
class Records:
    """Records of one client: design (n, d) with ones first, responses and weights (n,).

    Responses are -1 or +1, numbers, or counts, as the loss explains them.

    Without weights every record counts once.
    """

    design: Matrix
    responses: Vector
    weights: Vector | None = None

    @classmethod
    def of(cls, features: Matrix, responses: Vector, kind: Kind = "class") -> Records:
        """Check features (n, p) and responses (n,) and put the intercept in front.

        Raises
        ------
        DataError
            If shapes do not fit, a value is not finite or a response is not of its kind: -1 or +1
            of a class, a whole number from 0 on of a count.
        """
        if features.ndim != 2 or responses.shape != (len(features),):
            raise DataError("features must have shape (n, p) and responses shape (n,)")
        if not np.all(np.isfinite(features)):
            raise DataError("features must be finite numbers")
        if kind == "class" and not np.all(np.abs(responses) == 1):
            raise DataError("responses must be -1 or +1")
        if not np.all(np.isfinite(responses)):
            raise DataError("responses must be finite numbers")
        if kind == "count" and not np.all((responses >= 0) & (responses == np.floor(responses))):
            raise DataError("responses must be counts, whole numbers from 0 on")
        return cls(np.column_stack([np.ones(len(features)), features]), responses)

    def __len__(self) -> int:
        return self.responses.size

    @property
    def size(self) -> int:
        """Number d of coefficients."""
        return int(self.design.shape[1])

    def class_counts(self) -> tuple[int, int]:
        """Return how many records are negative, and how many positive."""
        positive = int(np.count_nonzero(self.responses > 0))
        return len(self) - positive, positive

    def weighted(self, weights: tuple[float, float]) -> Records:
        """Return the records with one weight for the negative and one for the positive class."""
        if weights == (1.0, 1.0):
            return replace(self, weights=None)
        return replace(self, weights=np.where(self.responses > 0, weights[1], weights[0]))

    def clipped(self, *, l1: float = math.inf, l2: float = math.inf) -> Records:
        """Shorten features so that (1, x) keeps public bounds of its 1-norm and 2-norm.

        Raises
        ------
        ConfigError
            If a bound is not > 1: the intercept alone has norm 1.
        """
        if not (l1 > 1 and l2 > 1):
            raise ConfigError("l1_bound and l2_bound must be > 1, the norm of the intercept alone")
        if math.isinf(l1) and math.isinf(l2):
            return self
        shares = np.ones(len(self))
        if math.isfinite(l1):
            lengths = np.abs(self.design).sum(axis=1) - 1
            shares = (l1 - 1) / np.maximum(lengths, l1 - 1)
        if math.isfinite(l2):
            room = l2 * l2 - 1
            squares = np.einsum("ij,ij->i", self.design, self.design) - 1
            shares = np.minimum(shares, np.sqrt(room / np.maximum(squares, room)))
        design = self.design * shares[:, None]
        design[:, 0] = self.design[:, 0]
        return replace(self, design=design)


@dataclass(frozen=True, slots=True)
class Sums:
    """Sums over records at one point: their number, gradient (d,), curvature (d, d)."""

    records: int
    gradient: Vector
    curvature: Matrix

    def __add__(self, other: Sums) -> Sums:
        return Sums(
            self.records + other.records,
            self.gradient + other.gradient,
            self.curvature + other.curvature,
        )


def sums_at(loss: Loss, records: Records, point: Vector) -> Sums:
    """Return a client's sums at `point`, shape (d,), with the loss's own smoothed curvature."""
    predictor = records.design @ point
    return Sums(
        len(records),
        records.design.T @ _times(loss.slope(predictor, records.responses), records.weights),
        _gram(records, loss.curvature(predictor, records.responses)),
    )


def add_up(parts: Iterable[Sums], size: int) -> Sums:
    """Add messages, in the order given."""
    return sum(parts, Sums(0, np.zeros(size), np.zeros((size, size))))


class PenalisedLoss:
    """The objective over the records of some clients, per record: L(theta) / n.

    Raises
    ------
    DataError
        If there is no record, or clients differ in their number of features.
    """

    def __init__(self, loss: Loss, clients: Sequence[Records], ridge: Ridge) -> None:
        self.loss, self.ridge = loss, ridge
        self.clients = [client for client in clients if len(client)]
        self.records = sum(len(client) for client in self.clients)
        if self.records == 0:
            raise DataError("clients must hold at least one record")
        if len({client.size for client in self.clients}) > 1:
            raise DataError("clients must all have the same number of features")
        self.size = self.clients[0].size
        self._penalty = ridge.of_gradient(self.size)
        moments = sum(np.square(client.design).sum(axis=0) for client in self.clients)
        self._scale = np.sqrt(np.maximum(moments / self.records, np.finfo(float).tiny))

    def value(self, point: Vector) -> float:
        """Return the mean loss and its penalty."""
        total = sum(
            float(np.sum(_times(self.loss.value(c.design @ point, c.responses), c.weights)))
            for c in self.clients
        )
        return total / self.records + float(self._penalty @ np.square(point)) / 2

    def gradient(self, point: Vector) -> Vector:
        """Return the gradient, shape (d,)."""
        total = np.zeros(self.size)
        for c in self.clients:
            total += c.design.T @ _times(self.loss.slope(c.design @ point, c.responses), c.weights)
        return total / self.records + self._penalty * point

    def score(self, gradient: Vector) -> float:
        """Return the largest gradient entry in units of its column's root mean square."""
        return float(np.max(np.abs(gradient) / self._scale))

    def descends(self, point: Vector, gradient: Vector, trial: Vector) -> bool:
        """Whether a trial gains enough on `point` with its gradient, as far as rounding can tell.

        Near the end the value no longer shows a gain that the gradient does.
        """
        value = self.value(point)
        gained = value - self.value(trial)
        if abs(gained) <= 1e-13 * abs(value):
            return self.score(self.gradient(trial)) < 0.99 * self.score(gradient)
        return gained >= SUFFICIENT * float(gradient @ (point - trial))

    def sharp_curvature(self, point: Vector) -> Matrix:
        """Return the generalised Hessian, without smoothing; shape (d, d)."""
        total = np.diag(self.records * self._penalty)
        for c in self.clients:
            total += _gram(c, self.loss.sharp_curvature(c.design @ point, c.responses))
        return total / self.records

    def majoriser(self) -> Matrix:
        """Return the largest curvature of the loss part, without the ridge.

        Of a count's loss it is the largest on the way to any minimiser: without noise its mean has
        no useful bound.
        """
        bound = self.loss.sharp_curvature_bound
        if self.loss.responses == "count":
            bound = min(bound, 4 * max(1.0, *(float(np.max(c.responses)) for c in self.clients)))
        total = np.zeros((self.size, self.size))
        for c in self.clients:
            total += _gram(c, np.full(len(c), bound))
        return total / self.records

    def separates(self, point: Vector) -> bool:
        """Whether a point puts every record strictly on the side of its class."""
        return self.loss.responses == "class" and all(
            np.min(c.responses * (c.design @ point)) > 0 for c in self.clients
        )

    def is_flat_at(self, point: Vector) -> bool:
        """Whether the loss has no curvature in some direction there, and no ridge gives one."""
        if self.ridge.weight > 0:
            return False
        curvature = self.sharp_curvature(point)
        root = np.sqrt(np.maximum(np.diag(curvature), np.finfo(float).tiny))
        return bool(np.linalg.eigvalsh(curvature / np.outer(root, root))[0] < 1e-10)

    def falls_for_ever(self, point: Vector) -> bool:
        """Whether, without a ridge, a point shows that the loss has no minimiser."""
        return self.ridge.weight == 0 and self.separates(point)

    def require_a_minimiser(self) -> None:
        """Refuse a problem that cannot have a unique minimiser, before any step.

        Raises
        ------
        NumericError
            If the intercept is free and only one class occurs or all counts are zero, or columns
            are collinear without a ridge.
        """
        free, kind = self.ridge.intercept_is_free, self.loss.responses
        if free and kind == "count" and not any(np.any(c.responses) for c in self.clients):
            raise NumericError(
                "all counts are zero, so a free intercept has no best value: a count above zero or "
                "ridge.shape = identity with ridge.weight > 0 is needed"
            )
        counts = np.sum([client.class_counts() for client in self.clients], axis=0)
        if free and kind == "class" and np.min(counts) == 0:
            raise NumericError(
                "responses hold one class only, so a free intercept has no best value: records of "
                "both classes or ridge.shape = identity with ridge.weight > 0 are needed"
            )
        bound = self.majoriser() + np.diag(self._penalty)
        if is_singular(bound):
            raise NumericError(
                "features are collinear, or constant beside the intercept, and nothing holds their "
                "coefficients: ridge.weight > 0 or fewer features are needed"
            )


def _times(values: Vector, weights: Vector | None) -> Vector:
    return values if weights is None else values * weights


def _gram(records: Records, curvature: Vector) -> Matrix:
    """Return sum c x x' as the product of one matrix with itself, which is exactly symmetric."""
    rows = records.design * np.sqrt(_times(curvature, records.weights))[:, None]
    product: Matrix = rows.T @ rows
    return product
