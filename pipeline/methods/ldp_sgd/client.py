"""Gradients of single records at an expansion point, and sums of matrices beside them.

A record gives w(x) s(y, x' theta) x with the weight w(x) = min(1, clipping_norm^2 / |x|^2),
intercept included, so that its norm is at most clipping_norm times the largest slope whatever the
record is. Weights bound the influence of a record without bending the estimate, as clipped
gradients would. A study may also release the window's sums of the curvatures w h x x' and of the
gradients' outer products.
Source: ldp-sgd, losses; Mallows weights.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from pipeline.errors import ConfigError, PrivacyError
from pipeline.linalg import pack_upper
from pipeline.methods.ldp_sgd.spec import spec_of, split_of
from pipeline.privacy import sensitivity
from pipeline.privacy.mechanism import INTEGER_LIMIT, Channel
from pipeline.privacy.randomness import SecureStream
from pipeline.records.blocks import (
    CURVATURE_BITS,
    GRADIENT_BITS,
    exact_sums,
    finite,
    predictors,
    whole_factors,
    with_intercept,
)
from pipeline.records.encoder import Arrays
from pipeline.release.budget import Budget
from pipeline.release.layout import MOST_NUMBERS, Field, Layout
from pipeline.release.model import COEFFICIENT_EXPONENT, COEFFICIENT_LIMIT, Model
from pipeline.release.query import Exact, MatrixPart, OpenQuery, Part, Piece, Query, with_noise
from pipeline.release.task import Task, inside
from pipeline.study.model import Study
from pipeline.types import Integers, Matrix, Vector


@dataclass(frozen=True, slots=True)
class Channels:
    """The noised parts of a release.

    gradient: One vector for each record.
    curvature, off_diagonal: Of the curvature's diagonal, and of its entries off the diagonal; None
        where not released.
    products, products_off_diagonal: The same of the sum of the outer products of records'
        gradients; None where not released.
    """

    gradient: Channel
    curvature: Channel | None
    off_diagonal: Channel | None
    products: Channel | None = None
    products_off_diagonal: Channel | None = None


@dataclass(frozen=True, slots=True)
class RecordSums:
    """The gradients of a window's clipped records, exact; raw data, so nothing can encode it.

    model: The model at which they were taken.
    gradient: d entries for each slot, one slot after the other.
    curvature, products: Sums of curvatures, and of the outer products of gradients, packed; None
        where they are not released.
    levels: The place of each slot's level of privacy, 0 for the strictest, shape (slots,).
    """

    model: Model
    gradient: Exact
    curvature: Exact | None
    products: Exact | None
    levels: Integers


@dataclass(frozen=True, slots=True)
class OpenSums:
    """The same as floats, for a study without privacy.

    records: How many records entered.
    gradients: Shape (slots, d); zeros where there is no record.
    curvature, products: Shape (d, d); None where they are not released.
    """

    records: int
    gradients: Matrix
    curvature: Matrix | None
    products: Matrix | None


def record_gradients(
    task: GradientTask, features: Matrix, responses: Vector, model: Model
) -> Matrix:
    """Return the weighted gradient of each record, shape (n, d), in float64.

    features, responses: Shapes (n, p) and (n,), encoded; n may be 0.
    model: Where the gradients are taken.
    """
    design = with_intercept(features)
    slope = task.loss.slope(predictors(design, model.coefficients), responses)
    gradients: Matrix = weighted(task, design) * slope[:, None]
    return gradients


def open_gradients(
    task: GradientTask, features: Matrix, responses: Vector, model: Model
) -> OpenSums:
    """Return the gradients of a window and its matrices as they are, for a study without privacy.

    Slots without a record hold zeros.
    """
    whole = np.zeros((task.slots, task.size))
    whole[: len(responses)] = record_gradients(task, features, responses, model)
    curvature = products = None
    if "curvature" in task.shares:
        design = with_intercept(features)
        curvature_weight = task.loss.curvature(predictors(design, model.coefficients), responses)
        rows = weighted(task, design, root=True)
        curvature = (rows * curvature_weight[:, None]).T @ rows
    if "products" in task.shares:
        products = whole.T @ whole
    return OpenSums(len(responses), whole, curvature, products)


def bounded_gradients(
    task: GradientTask,
    features: Matrix,
    responses: Vector,
    model: Model,
    levels: Integers | None = None,
) -> RecordSums:
    """Return the gradients of a window as exact integers, one record after the other.

    The sums of matrices that the study releases go with them. Slots without a record, whose
    response is NaN, and those behind the last one hold zeros: what leaves has the same length and
    noise for them.

    features, responses, model: As for `record_gradients`.
    levels: The place of each record's level of privacy, shape (n,); by default that of slots
        without a record.

    Raises PrivacyError if there are more records than slots.
    """
    if len(responses) > task.slots:
        raise PrivacyError(f"a window holds at most {task.slots} records (window.records)")
    design = with_intercept(inside(features, task))
    bound = task.loss.slope_bound
    predictor = predictors(design, model.coefficients)
    slope = finite(task.loss.slope(predictor, responses))
    columns, (feature_bits, slope_bits) = task.column_exponents, GRADIENT_BITS
    # cut towards zero, so that no magnitude grows; a product of 20 and 20 bits is exact
    bounded = weighted(task, design)
    rows = np.trunc(bounded * np.ldexp(1.0, feature_bits - columns))
    factors, unit = whole_factors(slope, bound, slope_bits)
    whole = np.zeros((task.slots, task.size), dtype=np.int64)
    whole[: len(slope)] = rows * factors[:, None]
    exponents = columns - feature_bits + unit
    # one exponent stands for all numbers where they agree, as they do for ranges of one unit
    same = bool((exponents == exponents[0]).all())
    exponents = exponents[:1] if same else np.tile(exponents, task.slots)
    curvature = products = None
    if "curvature" in task.shares:
        curvature_weight = np.maximum(finite(task.loss.curvature(predictor, responses)), 0.0)
        # some losses bend the same way whatever the response is, and so in an empty slot
        curvature_weight = np.where(np.isnan(responses), 0.0, curvature_weight)
        rows = weighted(task, design, root=True)
        curvature = _exact_matrix(task, rows, curvature_weight, task.loss.curvature_bound)
    if "products" in task.shares:
        # the square of a cut slope is within the square of its bound up to rounding, and cut again
        products = _exact_matrix(task, bounded, np.clip(slope, -bound, bound) ** 2, bound**2)
    places = np.full(task.slots, task.budget.empty_level, dtype=np.int64)
    if levels is not None:
        places[: len(levels)] = np.where(np.isnan(responses), task.budget.empty_level, levels)
    gradient = Exact(whole.ravel(), exponents)
    return RecordSums(model, gradient, curvature, products, places)


def mallows(design: Matrix, clipping_norm: float) -> Vector:
    """Return the weight of each record (1, x), shape (n,): a longer one counts as if clipped.

    A hair below the bound, so that the rounding of products cannot pass it.
    """
    square = clipping_norm**2 * (1.0 - 2.0**-40)
    weights: Vector = np.minimum(1.0, square / (design * design).sum(axis=1))
    return weights


def weighted(task: GradientTask, design: Matrix, *, root: bool = False) -> Matrix:
    """Return w(x) (1, x), or the root of w(x) times (1, x): of norm at most the clipping_norm."""
    if task.clipping_norm >= task.longest:
        return design
    weights = mallows(design, task.clipping_norm)
    found: Matrix = design * (np.sqrt(weights) if root else weights)[:, None]
    return found


def _exact_matrix(task: GradientTask, rows: Matrix, factors: Vector, bound: float) -> Exact:
    """Sum factors, of at most `bound`, times the outer products of rows, exactly; packed."""
    whole, unit = whole_factors(factors, bound, CURVATURE_BITS[1])
    design = rows * np.ldexp(1.0, GRADIENT_BITS[0] - task.column_exponents)
    _, total = exact_sums(design, np.zeros((0, len(rows))), whole)
    exponents = task.product_exponents + (unit - 2 * CURVATURE_BITS[0])
    return Exact(pack_upper(total), exponents)


#: Sums of floats may pass the bound of exact ones by this share: 2^17 records, 2^-53 for each.
_ROUNDING = 2.0**-30


class GradientTask(Task):
    """As `Task`: the gradients of single records, and sums of matrices beside them.

    ConfigError too where a release of so many records would be too large to be sent.

    path: The study's table of steps.
    """

    def __init__(self, study: Study, revision: str = "", level: str | None = None) -> None:
        self.path = spec_of(study)
        super().__init__(study, revision, level)
        # when a release is sent it is too late: what it costs has been spent
        beside = self.layout.point.length + self.extra_numbers
        most = (MOST_NUMBERS - beside) // self.size
        if self.slots > most:
            raise ConfigError(
                f"window.records: a release holds {self.size} numbers for each record, and Kafka "
                f"takes no release of {self.slots} records; use at most {most}"
            )

    # gradients keep their slots: one that cannot be used would else move all behind it, and the
    # release would tell neighbours apart by far more than one gradient
    keeps_slots = True
    weighs = True

    @property
    def counts_slots(self) -> bool:
        """As `Task.counts_slots`: steps are capped by how late models are."""
        return True

    @property
    def partition_strategy(self) -> Literal["pooled", "shared"] | None:  # type: ignore[override]
        """As `Task.partition_strategy`: how the paths of several partitions go together."""
        return self.path.partitions

    def make_budget(self, level: str | None) -> Budget:
        """As `Task.make_budget`: sums of a window have one noise for all of its records."""
        return Budget(
            self.study,
            level,
            touched=self.size + self.extra_numbers,
            noise_per_record=not self.extra_numbers,
            shares=self.shares,
        )

    @cached_property
    def extra_numbers(self) -> int:
        """How many numbers a release holds beside the gradients of its single records."""
        return self.path.matrices * (self.size * (self.size + 1) // 2)

    @cached_property
    def clipping_norm(self) -> float:
        """Bound of the weighted norm of (1, features) in the gradient of a single record."""
        return min(self.path.clipping_norm or math.sqrt(max(2, self.size)), self.longest)

    @property
    def kept_norm(self) -> float:
        return self.clipping_norm

    @cached_property
    def shares(self) -> dict[str, float]:
        """Shares of the budget of what a release holds; they sum to one."""
        names, split = self.path.parts, split_of(self.study, self.path)
        if "products" in names:
            return dict.fromkeys(names, 1 / 3)
        parts = (split.shares["gradient"], split.shares["curvature"])[: len(names)]
        return {name: part / sum(parts) for name, part in zip(names, parts, strict=True)}

    @cached_property
    def channels(self) -> Channels:
        """Channels of every release, at the loosest level."""
        mechanism, shares, size = self.budget.mechanism, self.shares, self.size
        (neighbours, order), bounds, norm = self.neighbourhood, self.bounds, self.clipping_norm

        def part(name: str, distance: float, rounding: float) -> Channel:
            return mechanism.channel(distance, rounding, self.budget.per_record, shares[name])

        def matrix(name: str, factor: float) -> Channel | None:
            if name not in shares:
                return None
            apart = sensitivity.of_outer_product(bounds, factor, norm, size, neighbours, order)
            return part(name, apart, sensitivity.rounding_of_matrix(size, order))

        curvature = matrix("curvature", self.loss.curvature_bound)
        products = matrix("products", self.loss.slope_bound**2)
        return Channels(
            gradient=part(
                "gradients",
                sensitivity.of_record(bounds, self.loss.slope_bound, norm, size, neighbours, order),
                sensitivity.rounding_of_vector(size, order),
            ),
            curvature=curvature,
            off_diagonal=curvature and curvature.off_diagonal(),
            products=products,
            products_off_diagonal=products and products.off_diagonal(),
        )

    @cached_property
    def layout(self) -> Layout:
        """As `Task.layout`: a gradient for each slot, and the matrices that are released."""
        size, gradients = self.size, self.slots * self.size
        packed = size * (size + 1) // 2
        if not self.study.noised:
            square = self.slots * self.clipping_norm**2 * (1 + _ROUNDING)
            curvature, products = self.loss.curvature_bound, self.loss.slope_bound**2
            bounds = {"curvature": square * curvature, "products": square * products}
            fields = [Field("gradient", gradients, 0, self.largest_gradient)]
            fields += [Field(n, packed, 0, bounds[n]) for n in bounds if n in self.shares]
            furthest = math.ldexp(COEFFICIENT_LIMIT, COEFFICIENT_EXPONENT)
            return Layout.without_noise(size, furthest, fields)
        channels = self.channels
        one = channels.gradient
        fields = [Field("gradient", gradients, one.exponent, self.largest_gradient / one.unit)]
        for name, part in (("curvature", channels.curvature), ("products", channels.products)):
            if part is not None:
                fields.append(Field(name, packed, part.exponent, part.largest(self.slots)))
        return Layout.noised(size, fields)

    @cached_property
    def record_channels(self) -> tuple[Channel, ...]:
        """Channels of a record's gradient at each level, all on the loosest one's lattice."""
        loosest, budget = self.channels.gradient, self.budget
        levels = [budget.mechanism_of(epsilon) for epsilon in budget.epsilons[:-1]]
        stricter = (budget.per_record / budget.per_record_of(level) for level in levels)
        return (*map(loosest.stricter, stricter), loosest)

    @cached_property
    def record_noise(self) -> float:
        """Standard deviation of a record's noise; over equal shares of all levels."""
        squares = [part.standard_deviation**2 for part in self.record_channels]
        return math.sqrt(math.fsum(squares) / len(squares))

    @cached_property
    def largest_gradient(self) -> float:
        """Largest absolute entry of a single record's released gradient, noise included."""
        if not self.study.noised:
            return self.clipping_norm * self.loss.slope_bound
        # the worker does not know a slot's level: any of them may have made its noise
        parts = self.record_channels
        return max(part.largest(1) for part in parts) * parts[0].unit

    @property
    def penalty(self) -> Vector:
        """As `Task.penalty`: a path has none."""
        return 0.0 * super().penalty

    def record_weights(self, design: Matrix) -> Vector | float:
        """As `Task.record_weights`: longer records count as if they were on the clipping_norm."""
        return 1.0 if self.clipping_norm >= self.longest else mallows(design, self.clipping_norm)

    def query(self, window: Arrays, model: Model) -> Query:
        sums = bounded_gradients(self, window.features, window.responses, model, window.levels)
        return query_of(self, sums)

    def open_query(self, window: Arrays, model: Model) -> OpenQuery:
        sums = open_gradients(self, window.features, window.responses, model)
        matrices = {"curvature": sums.curvature, "products": sums.products}
        parts = {"gradient": sums.gradients.ravel()}
        parts |= {name: pack_upper(one) for name, one in matrices.items() if one is not None}
        return OpenQuery(model, sums.records, model.coefficients, parts)

    def check_fit(self) -> None:
        matrices = (self.channels.curvature, self.channels.products)
        sums = [(part, self.slots) for part in matrices if part is not None]
        sums += [(part, 1) for part in self.record_channels]
        if any(part.largest(records) >= INTEGER_LIMIT for part, records in sums):
            raise PrivacyError(
                "window.records: the sums of so many records are too large to be sent; use smaller "
                "windows"
            )


@dataclass(frozen=True, slots=True)
class RecordsPart:
    """The gradients of a window's slots, each with the noise of its own level of privacy.

    sums: One gradient of `size` entries for each slot.
    channels: By level, the strictest first; all have one lattice.
    levels: The level of each slot, shape (slots,).
    ceiling: The loosest level that a slot may have.
    """

    sums: Exact
    channels: tuple[Channel, ...]
    levels: Integers
    ceiling: int
    size: int

    def pieces(self) -> tuple[Piece, ...]:
        """As `LatticePart.pieces`: by level; one that is none counts as the strictest."""
        channels = self.channels
        rounded = channels[-1].round(self.sums.integers, self.sums.exponents)
        if len(channels) == 1:
            return (Piece(slice(None), rounded, channels[0]),)
        known = (self.levels > 0) & (self.levels < len(channels))
        places = np.repeat(np.minimum(np.where(known, self.levels, 0), self.ceiling), self.size)
        return tuple(
            Piece(places == place, rounded[places == place], channel)
            for place, channel in enumerate(channels)
        )

    def noised(self, stream: SecureStream) -> Integers:
        """As `Part.noised`: one record alone contributes to each number."""
        return with_noise(self.pieces(), 1, stream)[0]


def query_of(task: GradientTask, sums: RecordSums) -> Query:
    """Return the gradients of a window with the noise that each part needs."""
    channels = task.channels
    parts: dict[str, Part] = {
        "gradient": RecordsPart(
            sums.gradient, task.record_channels, sums.levels, task.budget.ceiling, task.size
        )
    }
    if sums.curvature is not None and channels.curvature and channels.off_diagonal:
        parts["curvature"] = MatrixPart(
            sums.curvature, channels.curvature, channels.off_diagonal, task.size, task.slots
        )
    if sums.products is not None and channels.products and channels.products_off_diagonal:
        parts["products"] = MatrixPart(
            sums.products, channels.products, channels.products_off_diagonal, task.size, task.slots
        )
    return Query(sums.model, parts)
