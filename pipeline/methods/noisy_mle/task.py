"""The public numbers of a site's releases: what is summed, and with what noise."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from pipeline.errors import PrivacyError
from pipeline.methods.noisy_mle import client
from pipeline.methods.noisy_mle.spec import spec_of
from pipeline.methods.noisy_mle.weighing import WeighedTask
from pipeline.privacy import sensitivity
from pipeline.privacy.channel import INTEGER_LIMIT, Channel
from pipeline.privacy.sensitivity import Bounds
from pipeline.records.encode import Arrays
from pipeline.release.budget import Budget
from pipeline.release.layout import Field, Layout
from pipeline.release.model import Model
from pipeline.release.query import Query
from pipeline.study.model import Study

#: Shares of the squared budget: score and curvature as split = 2 of the paper's reference has them
#: (docs/methods/noisy-mle.md), the sum of squares as little as it needs.
SPLIT = {"gradient": 0.76, "curvature": 0.19, "counts": 0.05}


@dataclass(frozen=True, slots=True)
class Channels:
    """The noised parts of one kind of release.

    gradient: Of the sum of slopes times rows.
    curvature, off_diagonal: Of the curvature's diagonal, and of its entries beside it.
    squares: Of the sum of squared slopes; None where the noise scale is known or one.
    """

    gradient: Channel
    curvature: Channel
    off_diagonal: Channel
    squares: Channel | None


class SiteTask(WeighedTask):
    """As `WeighedTask`: score and curvature of a window at the model."""

    @cached_property
    def release(self) -> str:
        """Which release it is, "score" or "sufficient": what "auto" comes to."""
        return chosen_release(self.study)

    @property
    def at_models(self) -> bool:
        """Whether releases are taken at models, and not always at 0."""
        return self.release == "score"

    def at_start(self, version: int) -> bool:
        """Whether sums at this model version are those at the public start."""
        return version == 0 or self.release == "sufficient"

    @property
    def most_in_flight(self) -> int:
        """As `Task.most_in_flight`: sums at 0 wait for no model."""
        return 0 if self.release == "sufficient" else super().most_in_flight

    @property
    def most_at_start(self) -> int:
        """As `Task.most_at_start`: sums at 0 wait where windows grow, which the first begins."""
        waits = self.release == "score" or self.growth.divisor
        return super().most_at_start if waits else 0

    @cached_property
    def bounds(self) -> Bounds:
        """As `Task.bounds`: a long row is weighed as a whole, intercept included.

        So its L1 norm may be that of a row of equal entries, which is beyond what holds where
        features alone are shrunk.
        """
        return Bounds(self.farthest, self.norm_bound)

    #: Whether it matters to the worker at which point a release was taken.
    moving = True

    @property
    def squares(self) -> int:
        """How many numbers beside score and curvature a release has: 1 or 0."""
        return int(self.loss.name == "linear" and self.study.estimator.noise_scale is None)

    @property
    def grows(self) -> bool:
        """As `Task.grows`."""
        return True

    def make_budget(self, level: str | None) -> Budget:
        """As `Task.make_budget`."""
        touched = self.size + self.size * (self.size + 1) // 2 + self.squares
        counted = "sums of squared slopes" if self.squares else ""
        return Budget(self.study, level, touched=touched, counted=counted)

    @cached_property
    def initial_channels(self) -> Channels:
        """Channels of releases at the public start, where slopes have a bound of their own."""
        return self._channels(self.loss.start_slope_bound)

    @cached_property
    def update_channels(self) -> Channels:
        """Channels of releases at any later model."""
        if self.at_start(1):
            return self.initial_channels
        return self._channels(self.loss.slope_bound)

    def channels(self, version: int) -> Channels:
        """Return the channels of a release at this model version."""
        return self.update_channels if version else self.initial_channels

    def _channels(self, slope: float) -> Channels:
        neighbours, order = self.study.privacy.neighbours, self.budget.mechanism.order
        if neighbours == "add-remove":
            raise PrivacyError(
                'privacy.neighbours: "add-remove" does not fit windows of a fixed number of '
                "slots; use zero-out or replace-one"
            )
        split = self.study.privacy.split
        shares = SPLIT if split is None else split.filled().shares
        counts = shares["counts"] if self.squares else 0.0
        whole = shares["gradient"] + shares["curvature"] + counts
        bounds, norm, size = self.bounds, self.norm_bound, self.size

        def part(distance: float, rounding: float, share: float) -> Channel:
            budget = self.budget
            return budget.mechanism.channel(distance, rounding, budget.per_record, share / whole)

        curved = part(
            sensitivity.of_outer_product(
                bounds, self.loss.curvature_bound, norm, size, neighbours, order
            ),
            sensitivity.rounding_of_matrix(size, order),
            shares["curvature"],
        )
        return Channels(
            gradient=part(
                sensitivity.of_record(bounds, slope, norm, size, neighbours, order),
                sensitivity.rounding_of_vector(size, order),
                shares["gradient"],
            ),
            curvature=curved,
            off_diagonal=curved.off_diagonal(),
            squares=part(
                sensitivity.of_squares(slope), sensitivity.rounding_of_vector(1, order), counts
            )
            if self.squares
            else None,
        )

    @cached_property
    def layout(self) -> Layout:
        """As `Task.layout`."""
        start, later = (self._fields(c) for c in (self.initial_channels, self.update_channels))
        return Layout.noised(self.size, start=start, later=later)

    def _fields(self, channels: Channels) -> list[Field]:
        parts = (
            ("gradient", self.size, channels.gradient),
            ("curvature", self.size * (self.size + 1) // 2, channels.curvature),
            ("squares", 1, channels.squares),
        )
        return [
            Field.of(name, length, channel, self.slots)
            for name, length, channel in parts
            if channel is not None
        ]

    def check_fit(self) -> None:
        """As `Task.check_fit`."""
        most = self.growth.largest
        fields = (*self.layout.start, *self.layout.later)
        larger = max(field.largest + field.per_slot * (most - self.slots) for field in fields)
        if larger >= INTEGER_LIMIT or most > client.MOST_RECORDS:
            raise PrivacyError(
                f"window.{'most' if self.growth.divisor else 'records'}: the sums of so many "
                "records are too large to be sent; use smaller windows"
            )

    def query(self, window: Arrays, model: Model) -> Query:
        """As `Task.query`."""
        return client.query(self, window, model)


def chosen_release(study: Study) -> str:
    """Return which release a study has.

    By default sums at 0 where they say all with no more noise than later ones: a linear model whose
    residuals may be as large as its responses gains nothing by models.
    """
    estimator, chosen = study.estimator, spec_of(study).release
    if chosen != "auto":
        return chosen
    low, high = study.data.response.ends
    bound = estimator.residual_bound
    whole = estimator.loss == "linear" and (bound is None or bound >= (high - low) / 2)
    return "sufficient" if whole else "score"
