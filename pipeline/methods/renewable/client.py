"""A window at the client: public numbers of the study, and exact sums at the model.

A window of records to its sums at an expansion point: gradient, curvature, middle, counts.

Two forms. `summarise` is plain float64, for studies without privacy. `summarise_bounded` is what
a private release starts from: it clips, truncates features and weights to dyadic fractions so
that every product and every sum is exact in float64, and so keeps the stated sensitivity without
any reliance on rounding (proof note: docs/privacy/discrete-gaussian.md).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from pipeline.linalg import pack_upper, solve_positive
from pipeline.losses import Loss, Regression, joint_bounds
from pipeline.methods.renewable.spec import remembers, spent_by_records, split_of
from pipeline.privacy import sensitivity
from pipeline.privacy.mechanism import Channel
from pipeline.privacy.sensitivity import Neighbours, Order
from pipeline.records.blocks import (
    CURVATURE_BITS,
    GRADIENT_BITS,
    MOST_RECORDS,
    blocks,
    exact_sums,
    exponent_of,
    finite,
    one_or_all,
    predictors,
    whole_factors,
    with_intercept,
)
from pipeline.records.encoder import Arrays
from pipeline.release.budget import Budget
from pipeline.release.layout import Field, Layout
from pipeline.release.model import COEFFICIENT_EXPONENT, COEFFICIENT_LIMIT, Model
from pipeline.release.query import NOTHING, Exact, MatrixPart, OpenQuery, Part, Query, VectorPart
from pipeline.release.task import Task, clipped_to_norm, inside, weight_of
from pipeline.study.model import Split
from pipeline.types import Matrix, Vector

#: What rounding may add to a sum of floats, as a share of it.
ROUNDING = 1e-6


@dataclass(frozen=True, slots=True)
class Channels:
    """The noised parts of one kind of release; at the start without matrices.

    gradient: One vector, at the start one for each group of records.
    curvature, off_diagonal: Of the curvature's diagonal, and of its entries off the diagonal.
    middle, middle_off_diagonal: Of the sum of outer products of the records' gradients, the middle
        of the sandwich; None where it is not released.
    counts: Class counts, or the sum of squared slopes of a regression; None where nothing is
        counted.
    """

    gradient: Channel
    curvature: Channel | None
    off_diagonal: Channel | None
    middle: Channel | None
    middle_off_diagonal: Channel | None
    counts: Channel | None

    @property
    def parts(self) -> dict[str, Channel]:
        """What is released, by name and in the order of the release."""
        names = ("gradient", "curvature", "middle", "counts")
        return {name: part for name in names if (part := getattr(self, name)) is not None}


class RenewableTask(Task):
    """As `Task`: sums of a window at the model, a gradient alone while that is the public start."""

    most_records = MOST_RECORDS

    @property
    def groups(self) -> int:
        """How many gradients a release at the start holds: one for each class, else one."""
        return 2 if self.classes else 1

    @property
    def grows(self) -> bool:
        """As `Task.grows`: where releases have noise."""
        return self.study.noised

    @property
    def remembers(self) -> bool:
        """As `Task.remembers`: by default wherever it can."""
        return remembers(self.study) and self.study.privacy.noise_memory != 0

    def make_budget(self, level: str | None) -> Budget:
        counted = "sums of squared slopes" if self.counted(1) else ""
        matrices = 0
        if self.study.noised:
            matrices = 2 if self.split.middle else 1
        touched = 2 * self.size + matrices * (self.size * (self.size + 1) // 2) + 2
        return Budget(
            self.study,
            level,
            touched=touched,
            counted="class counts" if self.classes else counted,
        )

    def counted(self, version: int) -> int:
        """Return how many numbers a release holds beside gradient and curvature."""
        if self.classes:
            return 2
        return int(version > 0 and self.study.estimator.noise_scale is None)

    @cached_property
    def split(self) -> Split:
        """Shares of the budget that the parts of a release have."""
        return split_of(self.study, self.loss)

    @cached_property
    def initial_channels(self) -> Channels:
        """Channels of releases at model 0: one gradient for each group, unweighted, no matrices.

        Class weights are not known yet, and a record touches the sums of its own class alone, so
        the two gradients together have the sensitivity of one, at weight 1.
        """
        split = self.split
        together = split.shares["gradient"] + split.shares["curvature"]
        shares = {"gradient": together if split.middle is None else 1 - split.counts}
        if self.counted(0):
            shares["counts"] = split.counts
        return self._channels(shares, self.loss.start_slope_bound)

    @cached_property
    def update_channels(self) -> Channels:
        """Channels of releases at any later model: weighted gradient and curvature."""
        shares = self.split.shares
        if not self.counted(1):
            del shares["counts"]
        return self._channels(shares, self.largest_weight * self.loss.slope_bound)

    def channels(self, version: int) -> Channels:
        """Return the channels of a release at this model version."""
        return self.initial_channels if version == 0 else self.update_channels

    @cached_property
    def layout(self) -> Layout:
        """As `Task.layout`: sums of a window, at the start without curvature."""
        if not self.study.noised:
            return self._open_layout()
        size = self.size
        start, later = self.initial_channels, self.update_channels
        return Layout.noised(
            size,
            start=self._fields(start, self.groups * size, self.counted(0)),
            later=self._fields(later, size, self.counted(1)),
        )

    def _open_layout(self) -> Layout:
        """Return the layout without noise: numbers as large as so many records can make them."""
        size, packed, loss = self.size, self.size * (self.size + 1) // 2, self.loss
        most, weight = self.growth.largest * (1 + ROUNDING), self.largest_weight
        entry = min(max(1.0, float(self.magnitudes.max(initial=0.0))), self.norm_bound)
        # a residual without a threshold is as large as a predictor and a response
        slope = weight * min(loss.slope_bound, 1.0 + FURTHEST * self.farthest)
        fields = [
            Field("gradient", size, 0, most * slope * entry),
            Field("curvature", packed, 0, most * weight * loss.curvature_bound * entry**2),
            Field("scores", packed, 0, most * (slope * entry) ** 2),
            Field("counts", 2, 0, most),
        ]
        return Layout.without_noise(size, FURTHEST, fields)

    def _fields(self, channels: Channels, gradient: int, counted: int) -> list[Field]:
        packed = self.size * (self.size + 1) // 2
        lengths = {"gradient": gradient, "curvature": packed, "middle": packed, "counts": counted}
        return [
            Field.of(name, lengths[name], channel, self.slots)
            for name, channel in channels.parts.items()
        ]

    def query(self, window: Arrays, model: Model) -> Query:
        self.check_window(window)
        return self.query_blocks(window, model)

    def query_blocks(self, slots: Arrays, model: Model) -> Query:
        """As `Task.query_blocks`: of all blocks at once, since whole numbers are added."""
        sound = slots.sound
        sums = summarise_bounded(self, sound.features, sound.responses, model)
        return query_of(self, sums, self.blocks_of(slots))

    def open_query(self, window: Arrays, model: Model) -> OpenQuery:
        """As `Task.open_query`; where no model is known yet, at a fit of the window's own."""
        return open_query(self, window, model)

    def _channels(self, shares: dict[str, float], slope: float) -> Channels:
        """Return channels for parts that have shares of the budget, for slopes within a bound."""
        neighbours, order = self.neighbourhood
        bounds, size = self.bounds, self.size
        later = "curvature" in shares
        vectors = size if later else self.groups * size
        distances = {
            "gradient": sensitivity.of_gradient(bounds, slope, neighbours, order),
            # counts are whole numbers, but with a tiny budget the lattice is coarser than that
            "counts": sensitivity.of_class_counts(neighbours, order)
            if self.classes
            else sensitivity.of_squares(slope),
        }
        rounding = {
            "gradient": sensitivity.rounding_of_vector(vectors, order),
            "counts": sensitivity.rounding_of_vector(2 if self.classes else 1, order),
        }
        bent = self.largest_weight * self.loss.curvature_bound
        for name, factor in (("curvature", bent), ("middle", slope * slope)):
            distances[name] = self._of_matrix(factor, neighbours, order)
            rounding[name] = sensitivity.rounding_of_matrix(size, order)

        def made(whole: float) -> dict[str, Channel]:
            return {
                name: self.budget.mechanism.channel(
                    distances[name], rounding[name], self.budget.per_record, share / whole,
                    remembers=self.remembers and later,
                )
                for name, share in shares.items()
                if share
            }  # fmt: skip

        joint = later and self.split.middle is not None
        whole = 1.0 if joint else sum(shares.values())
        channels = made(whole)
        # what a record can use up depends on the lattices, and these, by powers of two, on it
        while joint and (spent := self._spent(shares, channels, distances)) > whole:
            whole, channels = spent, made(spent)
        curvature, middle = channels.get("curvature"), channels.get("middle")
        return Channels(
            gradient=channels["gradient"],
            curvature=curvature,
            off_diagonal=curvature and curvature.off_diagonal(),
            middle=middle,
            middle_off_diagonal=middle and middle.off_diagonal(),
            counts=channels.get("counts"),
        )

    def _of_matrix(self, factor: float, neighbours: Neighbours, order: Order) -> float:
        """Return the sensitivity of a sum of outer products with factors of at most `factor`."""
        if self.split.middle is None:
            return sensitivity.of_curvature(self.bounds, factor, neighbours, order)
        # as far as two records can be apart whatever their factors: what one of them uses up then
        # does not depend on the other
        return sensitivity.of_outer_product(
            self.bounds, factor, self.bounds.l2, self.size, neighbours, order
        )

    def _spent(
        self, shares: dict[str, float], channels: dict[str, Channel], distances: dict[str, float]
    ) -> float:
        """Return the most that one record uses up, as a share of the budget, on these lattices."""
        rounding = {name: one.sensitivity / distances[name] - 1 for name, one in channels.items()}
        order = self.budget.mechanism.order
        spent = spent_by_records(shares, joint_bounds(self.loss), order, rounding)
        return float(spent.max())


#: No coefficient of an expansion point is larger: none of a published model is.
FURTHEST = COEFFICIENT_LIMIT * 2.0**COEFFICIENT_EXPONENT


def query_of(task: RenewableTask, sums: BoundedSums, blocks: int = 1) -> Query:
    """Return bounded sums over so many blocks of slots with the noise that each part needs."""
    channels, slots = task.channels(sums.model.version), task.slots * blocks
    parts: dict[str, Part] = {"gradient": VectorPart(sums.gradient, channels.gradient, slots)}
    for name, matrix, diagonal, beside in (
        ("curvature", sums.curvature, channels.curvature, channels.off_diagonal),
        ("middle", sums.middle, channels.middle, channels.middle_off_diagonal),
    ):
        if matrix is not None and diagonal and beside:
            parts[name] = MatrixPart(matrix, diagonal, beside, task.size, slots)
    if channels.counts is not None:
        parts["counts"] = VectorPart(sums.counts, channels.counts, slots)
    return Query(sums.model, parts, blocks)


def open_query(task: RenewableTask, window: Arrays, model: Model) -> OpenQuery:
    """As `Task.open_query`."""
    point = model.coefficients
    if model.version == 0 and len(window.responses):
        ridge = task.study.estimator.ridge
        point = local_fit(task.loss, window.features, window.responses, ridge)
        point = np.clip(point, -FURTHEST, FURTHEST)
    summary = summarise(task, window.features, window.responses, point, model.class_weights)
    return open_query_of(summary, model)


def open_query_of(summary: Summary, model: Model) -> OpenQuery:
    """Return sums of a study without privacy as a release holds them."""
    parts: dict[str, Vector] = {
        "gradient": summary.gradient,
        "curvature": pack_upper(summary.curvature),
        "scores": pack_upper(summary.scores),
        "counts": np.array(summary.counts, dtype=np.float64),
    }
    return OpenQuery(model, summary.records, summary.expansion, parts)


@dataclass(frozen=True, slots=True)
class Summary:
    """Exact sums over the records of one window; raw data, so nothing can encode it.

    records: How many records entered.
    expansion: The point of linearisation, shape (d,).
    gradient, curvature: Sum of weighted slopes times (1, x), shape (d,); of weighted curvatures
        times the outer products, shape (d, d). No ridge: the estimate adds it.
    scores: Sum of the outer products of the records' gradients, shape (d, d).
    counts: Records of the negative and the positive class; zeros if there are no classes.
    """

    records: int
    expansion: Vector
    gradient: Vector
    curvature: Matrix
    scores: Matrix
    counts: tuple[int, int]


@dataclass(frozen=True, slots=True)
class BoundedSums:
    """Sums of clipped records, exact; raw data as well, so nothing can encode it.

    model: The model at which they were taken.
    gradient: d entries; at the start d for each group, the negative class first.
    curvature, middle: Packed upper triangles, d (d + 1) / 2 entries each, of the curvature and of
        the sum of outer products of the records' gradients; None where one is not released.
    counts: Records of the negative and the positive class; or the sum of squared slopes, one entry,
        or none at the start or where the noise scale is known.
    """

    model: Model
    gradient: Exact
    curvature: Exact | None
    middle: Exact | None
    counts: Exact


def summarise(
    task: RenewableTask,
    features: Matrix,
    responses: Vector,
    point: Vector,
    weights: tuple[float, float],
) -> Summary:
    """Sum gradients, curvatures and score products at `point`.

    features, responses: Shapes (n, p) and (n,), encoded; n may be 0.
    point: Shape (d,) with d = p + 1.
    weights: Of the negative and the positive class.
    """
    d = task.size
    gradient, curvature, scores = np.zeros(d), np.zeros((d, d)), np.zeros((d, d))
    design = with_intercept(clipped_to_norm(features, task))
    weight = weight_of(weights, responses)
    predictor = design @ point
    slope = weight * task.loss.slope(predictor, responses)
    curvature_weight = weight * task.loss.curvature(predictor, responses)
    for part, work in blocks(design):
        np.multiply(design[part], slope[part, None], out=work)
        gradient += work.sum(axis=0)
        scores += work.T @ work
        np.multiply(design[part], curvature_weight[part, None], out=work)
        curvature += work.T @ design[part]
    counts = _counts(responses) if task.classes else (0, 0)
    return Summary(len(responses), point, gradient, curvature, scores, counts)


def summarise_bounded(
    task: RenewableTask, features: Matrix, responses: Vector, model: Model
) -> BoundedSums:
    """Sum clipped gradients and curvatures exactly, for a private release.

    features, responses: Shapes (n, p) and (n,) with n <= `MOST_RECORDS`; slots without a record
        contribute nothing.
    model: The expansion point. Whatever it holds, one record moves the sums by no more than the
        task's sensitivities: weights beyond the public maximum are cut here, and so are features
        beyond their public range.
    """
    # rows in units of their last bit: powers of two, which change no digit of the predictors
    columns = task.column_exponents
    scale = one_or_all(np.ldexp(1.0, GRADIENT_BITS[0] - columns))
    design = with_intercept(clipped_to_norm(inside(features, task), task), scale)
    predictor = predictors(design, model.coefficients / scale)
    slope = finite(task.loss.slope(predictor, responses))
    if model.version == 0:
        # looked up by name: to ask whether it is a `Regression` takes longer than the slopes
        if hasattr(task.loss, "start_slope"):
            slope = finite(task.loss.start_slope(responses))
        bound = task.loss.start_slope_bound
        slope = np.clip(slope, -bound, bound)
        groups = (responses < 0, responses > 0) if task.classes else (np.full(len(slope), True),)
        chosen = np.stack([np.where(group, slope, 0.0) for group in groups])
        factors, unit = whole_factors(chosen, bound, GRADIENT_BITS[1])
        (sums,) = exact_sums(design, factors)
        exponents = np.tile(columns + (unit - GRADIENT_BITS[0]), len(groups))
        gradient = Exact(sums.ravel(), exponents)
        return BoundedSums(model, gradient, None, None, _exact_counts(task, responses, slope, 0))
    most = task.largest_weight
    # a weight that is no number fails the comparison and is cut as well
    negative, positive = (w if 0 <= w <= most else most for w in model.class_weights)
    weight = weight_of((negative, positive), responses)
    slope_bound, curvature_bound = most * task.loss.slope_bound, most * task.loss.curvature_bound
    slope = np.clip(weight * slope, -slope_bound, slope_bound)
    curvature_weight = np.maximum(weight * finite(task.loss.curvature(predictor, responses)), 0.0)
    slopes, slope_unit = whole_factors(slope, slope_bound, GRADIENT_BITS[1])
    weights = [whole_factors(curvature_weight, curvature_bound, CURVATURE_BITS[1])]
    if task.update_channels.middle is not None:
        weights.append(whole_factors(slope * slope, slope_bound * slope_bound, CURVATURE_BITS[1]))
    totals, *matrices = exact_sums(design, slopes, *(factors for factors, _ in weights))
    curvature, *middle = (
        Exact(pack_upper(matrix), task.product_exponents + (unit - 2 * CURVATURE_BITS[0]))
        for matrix, (_, unit) in zip(matrices, weights, strict=True)
    )
    return BoundedSums(
        model=model,
        gradient=Exact(totals, columns + (slope_unit - GRADIENT_BITS[0])),
        curvature=curvature,
        middle=middle[0] if middle else None,
        counts=_exact_counts(task, responses, slope, model.version),
    )


def local_fit(
    loss: Loss, features: Matrix, responses: Vector, ridge: float, *, rounds: int = 8
) -> Vector:
    """Fit one window by a few damped Newton steps from the public start, shape (d,).

    A start for studies without privacy only: the first window of a client is linearised where it
    has curvature, which generalised DWD has not at zero.
    """
    if loss.responses == "count" and not responses.any():
        # counts of zero alone have no best fit: half a count in all of them stands for one
        return np.append(math.log(0.5 / len(responses)), np.zeros(features.shape[1]))
    design = np.column_stack([np.ones(len(responses)), features])
    size = design.shape[1]
    # one class alone would drive the intercept to where the loss has no curvature left, and with it
    # the whole stream: the point is then held near zero
    one_class = loss.responses == "class" and abs(float(np.sum(responses))) == len(responses)
    held = max(ridge, 1e-6)
    lightly = max(1e-3 * held, 1.0 if one_class else 0.0)
    penalty = len(responses) * np.diag([lightly] + [held] * (size - 1))
    point, scale = np.append(loss.start_intercept, np.zeros(size - 1)), loss.start_curvature
    if isinstance(loss, Regression):
        # a start far above all counts would take more rounds than there are
        slopes = loss.start_slope(responses)
        point[0] = loss.intercept_of(float(np.mean(slopes)), 1 / len(responses))
        scale = float(np.mean(loss.curvature(design @ point, responses)))
    # keeps the step finite where no record has curvature yet
    least = 1e-2 * min(loss.curvature_bound / 8, scale) * (design.T @ design)

    def objective(at: Vector) -> float:
        return float(np.sum(loss.value(design @ at, responses)) + at @ penalty @ at / 2)

    current = objective(point)
    for _ in range(rounds):
        predictor = design @ point
        gradient = design.T @ loss.slope(predictor, responses) + penalty @ point
        curved = design * loss.curvature(predictor, responses)[:, None]
        matrix = curved.T @ design + penalty
        direction = solve_positive(matrix + least + 1e-9 * np.eye(size), gradient)
        step = 1.0
        while step > 1e-4 and objective(point - step * direction) >= current:
            step /= 2
        point = point - step * direction
        current = objective(point)
    return point


def _exact_counts(task: RenewableTask, responses: Vector, slope: Vector, version: int) -> Exact:
    """Count the classes, or sum the squared slopes of a regression."""
    if task.classes:
        return Exact(np.array(_counts(responses)), np.zeros(2, dtype=np.int64))
    counted = task.counted(version)
    if not counted:
        # slopes at the start have a bound of their own, and their squares may not fit
        return NOTHING
    # squares of 40 bits; fewer would lose small residuals
    exponent = exponent_of(task.loss.slope_bound) - GRADIENT_BITS[1]
    whole = np.trunc(np.ldexp(slope, -exponent)).astype(np.int64)
    total = np.full(counted, np.sum(whole * whole), dtype=np.int64)
    return Exact(total, np.full(counted, 2 * exponent, dtype=np.int64))


def _counts(responses: Vector) -> tuple[int, int]:
    positive = int(np.count_nonzero(responses > 0))
    return len(responses) - positive, positive
