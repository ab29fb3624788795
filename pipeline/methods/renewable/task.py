"""The public numbers of a renewable study's releases: what is summed, and with what noise."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from pipeline.errors import PrivacyError
from pipeline.losses import joint_bounds
from pipeline.methods.renewable import client
from pipeline.methods.renewable.client import FURTHEST
from pipeline.methods.renewable.spec import remembers, split_of
from pipeline.privacy import sensitivity
from pipeline.privacy.channel import INTEGER_LIMIT, Channel
from pipeline.privacy.sensitivity import Neighbours, Order, spent_by_records
from pipeline.records.blocks import MOST_RECORDS
from pipeline.records.encode import Arrays
from pipeline.release.budget import Budget
from pipeline.release.layout import Field, Layout
from pipeline.release.model import Model
from pipeline.release.query import OpenQuery, Query
from pipeline.release.task import Task
from pipeline.study.release_tables import Split

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
        """As `Task.query`."""
        return client.query(self, window, model)

    def open_query(self, window: Arrays, model: Model) -> OpenQuery:
        """As `Task.open_query`; where no model is known yet, at a fit of the window's own."""
        return client.open_query(self, window, model)

    def check_fit(self) -> None:
        """As `Task.check_fit`."""
        largest = self.growth.largest
        every = (self.initial_channels, self.update_channels)
        parts = [part for channels in every for part in channels.parts.values()]
        if largest > MOST_RECORDS or any(part.largest(largest) >= INTEGER_LIMIT for part in parts):
            raise PrivacyError(
                f"window.{'most' if self.growth.divisor else 'records'}: the sums of so many "
                "records are too large to be sent; use smaller windows"
            )

    def _channels(self, shares: dict[str, float], slope: float) -> Channels:
        """Return channels for parts that have shares of the budget, for slopes within a bound."""
        neighbours, order = self.study.privacy.neighbours, self.budget.mechanism.order
        if neighbours == "add-remove":
            raise PrivacyError(
                'privacy.neighbours: "add-remove" does not fit windows of a fixed number of '
                "slots; use zero-out or replace-one"
            )
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
