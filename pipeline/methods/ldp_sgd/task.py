"""The public numbers of locally private gradients: their bound, their noise, their shares."""

from __future__ import annotations

import math
from functools import cached_property
from typing import Literal

from pipeline.errors import ConfigError, PrivacyError
from pipeline.methods.ldp_sgd import client
from pipeline.methods.ldp_sgd.channels import Channels, of_single_records
from pipeline.methods.ldp_sgd.gradients import mallows
from pipeline.methods.ldp_sgd.spec import spec_of, split_of
from pipeline.privacy.channel import INTEGER_LIMIT, Channel
from pipeline.records.encode import Arrays
from pipeline.release.budget import Budget
from pipeline.release.layout import MOST_NUMBERS, Field, Layout
from pipeline.release.model import COEFFICIENT_EXPONENT, COEFFICIENT_LIMIT, Model
from pipeline.release.query import OpenQuery, Query
from pipeline.release.task import Task
from pipeline.study.model import Study
from pipeline.types import Matrix, Vector

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
        """As `Task.kept_norm`."""
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
        neighbours = self.study.privacy.neighbours
        if neighbours == "add-remove":
            raise PrivacyError(
                'privacy.neighbours: "add-remove" does not fit windows of a fixed number of '
                "slots; use zero-out or replace-one"
            )
        return of_single_records(
            self.budget.mechanism, self.loss, self.bounds, self.clipping_norm, self.size,
            neighbours, self.budget.per_record, self.shares,
        )  # fmt: skip

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
        """As `Task.query`."""
        return client.query(self, window, model)

    def open_query(self, window: Arrays, model: Model) -> OpenQuery:
        """As `Task.open_query`."""
        return client.open_query(self, window, model)

    def check_fit(self) -> None:
        """As `Task.check_fit`."""
        matrices = (self.channels.curvature, self.channels.products)
        sums = [(part, self.slots) for part in matrices if part is not None]
        sums += [(part, 1) for part in self.record_channels]
        if any(part.largest(records) >= INTEGER_LIMIT for part, records in sums):
            raise PrivacyError(
                "window.records: the sums of so many records are too large to be sent; use smaller "
                "windows"
            )
