"""The public numbers of a renewable study's releases: what is summed, and with what noise."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from pipeline.errors import PrivacyError
from pipeline.losses.secant import Secant
from pipeline.methods.renewable import again, client
from pipeline.methods.renewable.client import FURTHEST
from pipeline.methods.renewable.spec import reexpands, remembers, secant_width_of
from pipeline.privacy import sensitivity
from pipeline.privacy.channel import INTEGER_LIMIT, Channel
from pipeline.records.encode import Arrays
from pipeline.release.budget import Budget
from pipeline.release.layout import Field, Layout
from pipeline.release.model import Model
from pipeline.release.query import OpenQuery, Query
from pipeline.release.task import Task
from pipeline.study.release_tables import Split
from pipeline.types import Vector

#: What rounding may add to a sum of floats, as a share of it.
ROUNDING = 1e-6
#: The most records that sums of all windows of a client may stand for: what a release can say.
MOST_AGAIN = 2**32 - 1
#: Widths of a secant, with the spectral size of the noise up to which each is taken, at so many
#: releases for each coefficient.
WIDTHS = {0.5: 0.03, 1.0: 0.067, 2.0: math.inf}
AT_RELEASES = 16


@dataclass(frozen=True, slots=True)
class Channels:
    """The noised parts of one kind of release; at the start without curvature.

    gradient: One vector, at the start one for each group of records.
    counts: Class counts, or the sum of squared slopes of a regression; None where nothing is
        counted.
    curvature, off_diagonal: Of the curvature's diagonal, and of its entries off the diagonal.
    """

    gradient: Channel
    counts: Channel | None
    curvature: Channel | None
    off_diagonal: Channel | None


class RenewableTask(Task):
    """As `Task`: sums of a window at the model, a gradient alone while that is the public start."""

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
        """As `Task.make_budget`."""
        counted = "sums of squared slopes" if self.counted(1) else ""
        return Budget(
            self.study,
            level,
            touched=2 * self.size + self.size * (self.size + 1) // 2 + 2,
            counted="class counts" if self.classes else counted,
        )

    def counted(self, version: int) -> int:
        """Return how many numbers a release holds beside gradient and curvature."""
        if self.classes:
            return 2
        return int(version > 0 and self.study.estimator.noise_scale is None)

    @property
    def split(self) -> Split:
        """Shares of the budget that go to gradient, curvature and counts."""
        return (self.study.privacy.split or Split()).filled()

    @cached_property
    def secant(self) -> Secant:
        """The curvature of one record in a noised release.

        By default over the least width that keeps its noise small enough; a function of the
        privacy, the window and the bounds alone.
        """
        width = secant_width_of(self.study)
        if width is not None:
            return Secant(self.loss, width)
        for width, most in WIDTHS.items():
            secant = Secant(self.loss, width)
            channel = self._update_channels(secant).curvature
            size = channel.standard_deviation if channel else 0.0
            if size * math.sqrt(self.size / (AT_RELEASES * self.size)) / self.slots <= most:
                break
        return secant

    @cached_property
    def initial_channels(self) -> Channels:
        """Channels of releases at model 0: one gradient for each group, unweighted, no curvature.

        Class weights are not known yet, and a record touches the sums of its own class alone, so
        the two gradients together have the sensitivity of one, at weight 1.
        """
        split = self.split
        return self._channels(
            self.loss.start_slope_bound,
            0.0,
            split.shares["gradient"] + split.shares["curvature"],
            0.0,
            self.counted(0),
        )

    @cached_property
    def update_channels(self) -> Channels:
        """Channels of releases at any later model: weighted gradient and curvature."""
        return self._update_channels(self.secant)

    def _update_channels(self, secant: Secant) -> Channels:
        split, weight = self.split, self.largest_weight
        slope, curvature_weight = weight * self.loss.slope_bound, weight * secant.bound
        return self._channels(
            slope,
            curvature_weight,
            split.shares["gradient"],
            split.shares["curvature"],
            self.counted(1),
        )

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
        most, weight = self.most_records * (1 + ROUNDING), self.largest_weight
        entry = min(max(1.0, float(self.magnitudes.max(initial=0.0))), self.norm_bound)
        # a residual without a threshold is as large as a predictor and a response
        slope = weight * min(loss.slope_bound, 1.0 + FURTHEST * self.farthest)
        fields = [
            Field("gradient", size, 0, most * slope * entry),
            Field("curvature", packed, 0, most * weight * loss.curvature_bound * entry**2),
            Field("scores", packed, 0, most * (slope * entry) ** 2),
            Field("counts", 2, 0, most),
        ]
        if self.reexpands:
            fields.append(Field("again", 1, 0, 1.0))
        return Layout.without_noise(size, FURTHEST, fields)

    @cached_property
    def reexpands(self) -> bool:  # type: ignore[override]
        """As `Task.reexpands`."""
        return reexpands(self.study)

    @property
    def most_records(self) -> int:
        """As `Task.most_records`."""
        return MOST_AGAIN if self.reexpands else self.growth.largest

    def point_again(self, windows: Iterable[Arrays], before: Vector, model: Model) -> Vector | None:
        """As `Task.point_again`."""
        return again.point_again(self, windows, before, model)

    def query_again(self, windows: Iterable[Arrays], point: Vector, model: Model) -> OpenQuery:
        """As `Task.query_again`."""
        return client.query_again(self, windows, point, model)

    def _fields(self, channels: Channels, gradient: int, counted: int) -> list[Field]:
        parts = (
            ("gradient", gradient, channels.gradient),
            ("curvature", self.size * (self.size + 1) // 2, channels.curvature),
            ("counts", counted, channels.counts),
        )
        return [
            Field.of(name, length, channel, self.slots)
            for name, length, channel in parts
            if channel is not None
        ]

    def query(self, window: Arrays, model: Model) -> Query:
        """As `Task.query`."""
        return client.query(self, window, model)

    def open_query(self, window: Arrays, model: Model) -> OpenQuery:
        """As `Task.open_query`; where no model is known yet, at a fit of the window's own."""
        return client.open_query(self, window, model)

    def check_fit(self) -> None:
        """As `Task.check_fit`."""
        parts = [
            part
            for one in (self.initial_channels, self.update_channels)
            for part in (one.gradient, one.curvature, one.counts)
            if part is not None
        ]
        if any(part.largest(self.growth.largest) >= INTEGER_LIMIT for part in parts):
            raise PrivacyError(
                f"window.{'most' if self.growth.divisor else 'records'}: the sums of so many "
                "records are too large to be sent; use smaller windows"
            )

    def _channels(
        self, slope: float, curvature_weight: float, gradient: float, curvature: float, counted: int
    ) -> Channels:
        """Return channels for slopes and curvatures within bounds, by shares of the budget."""
        neighbours, order = self.study.privacy.neighbours, self.budget.mechanism.order
        if neighbours == "add-remove":
            raise PrivacyError(
                'privacy.neighbours: "add-remove" does not fit windows of a fixed number of '
                "slots; use zero-out or replace-one"
            )
        counts = self.split.counts if counted else 0.0
        total = gradient + curvature + counts
        bounds = self.bounds

        def part(distance: float, rounding: float, share: float) -> Channel:
            budget = self.budget
            return budget.mechanism.channel(
                distance, rounding, budget.per_record, share / total,
                remembers=self.remembers and bool(curvature),
            )  # fmt: skip

        bent = None
        if curvature:
            bent = part(
                sensitivity.of_curvature(bounds, curvature_weight, neighbours, order),
                sensitivity.rounding_of_matrix(self.size, order),
                curvature,
            )
        entries = self.size if curvature else self.groups * self.size
        # counts are whole numbers, but with a tiny budget the lattice is coarser than that
        spread = (
            sensitivity.of_class_counts(neighbours, order)
            if self.classes
            else sensitivity.of_squares(slope)
        )
        return Channels(
            gradient=part(
                sensitivity.of_gradient(bounds, slope, neighbours, order),
                sensitivity.rounding_of_vector(entries, order),
                gradient,
            ),
            counts=part(spread, sensitivity.rounding_of_vector(counted, order), counts)
            if counted
            else None,
            curvature=bent,
            off_diagonal=bent and bent.off_diagonal(),
        )
