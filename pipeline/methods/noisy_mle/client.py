"""The keys of a study of noised sums, and a site's window: its public numbers, score and curvature.

A record (1, x) beyond the norm bound R weighs R^2 / |(1, x)|^2 in both sums. The weight depends on
x alone, so that it does not bias what the score is zero at (docs/methods/noisy-mle.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Literal

import numpy as np

from pipeline.errors import ConfigError
from pipeline.linalg import pack_upper
from pipeline.losses import Regression
from pipeline.methods.sites.client import SiteSpec, WeighedTask, check_sites
from pipeline.privacy import sensitivity
from pipeline.privacy.mechanism import Channel
from pipeline.privacy.sensitivity import Bounds
from pipeline.records.blocks import (
    CURVATURE_BITS,
    GRADIENT_BITS,
    MOST_RECORDS,
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
from pipeline.release.model import Model
from pipeline.release.query import Exact, MatrixPart, Part, Query, VectorPart
from pipeline.release.task import inside
from pipeline.study.data import key
from pipeline.study.model import Study
from pipeline.study.tables import strict
from pipeline.types import Vector


class Spec(SiteSpec, frozen=True, kw_only=True):
    """`[estimator.method]` of noised sums from many sites."""

    release: Annotated[
        Literal["auto", "score", "sufficient"],
        key(
            '"score" is taken at the newest model, "sufficient" (linear alone) at 0, '
            'so that no site waits for a model; "auto" chooses between them by public numbers',
            "score",
        ),
    ] = "auto"


def spec_of(study: Study) -> Spec:
    """Return the table of a study; ConfigError if it has a key or a value that is not allowed."""
    return strict(study.estimator.method or {}, Spec, at="estimator.method")


def check(study: Study) -> None:
    """Refuse what does not go with the method.

    Raises ConfigError, naming the key, what is allowed and the way out.
    """
    if (study.estimator.method or {}).get("release") == "copies":
        raise ConfigError(
            "estimator.method.release: noisy copies are a kind of their own; remove this key and "
            'set estimator.kind = "noisy-copies"'
        )
    spec = spec_of(study)
    check_sites(study)
    if study.privacy.split is not None and study.privacy.split.middle is not None:
        raise ConfigError(
            'privacy.split.middle: kind = "noisy-mle" releases no middle of the sandwich; remove it'
        )
    if spec.release == "sufficient" and study.estimator.loss != "linear":
        raise ConfigError(
            'estimator.method.release: "sufficient" is allowed only with loss = '
            '"linear", where X\'y and X\'X determine the fit; set release = "score"'
        )


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

    most_records = MOST_RECORDS

    @cached_property
    def spec(self) -> Spec:
        return spec_of(self.study)

    @cached_property
    def release(self) -> str:
        """Which release it is, "score" or "sufficient": what "auto" comes to."""
        return chosen_release(self.study)

    @property
    def at_models(self) -> bool:
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

    @property
    def squares(self) -> int:
        return int(self.loss.name == "linear" and self.study.estimator.noise_scale is None)

    @property
    def grows(self) -> bool:
        return True

    def make_budget(self, level: str | None) -> Budget:
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
        neighbours, order = self.neighbourhood
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

    def query(self, window: Arrays, model: Model) -> Query:
        self.check_window(window)
        return self.query_blocks(window, model)

    def query_blocks(self, slots: Arrays, model: Model) -> Query:
        """As `Task.query_blocks`: of all blocks at once, since whole numbers are added."""
        return query_of(self, slots.sound, model, self.blocks_of(slots))


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


def query_of(task: SiteTask, window: Arrays, model: Model, blocks: int) -> Query:
    """Return the sums of so many blocks: whatever model and records hold, the task's bounds hold.

    Units are the task's alone, so that the sums of blocks add up.
    """
    features, responses = inside(window.features, task), window.responses
    slots = task.slots * blocks
    weight = task.record_weights(with_intercept(features))
    columns = task.column_exponents
    scale = one_or_all(np.ldexp(1.0, GRADIENT_BITS[0] - columns))
    design = with_intercept(features, scale)
    slope, curvature, bound = _derivatives(
        task,
        predictors(design, model.coefficients / scale),
        responses,
        task.at_start(model.version),
    )
    slopes, slope_unit = whole_factors(weight * slope, bound, GRADIENT_BITS[1])
    curved, curved_unit = whole_factors(
        weight * curvature, task.loss.curvature_bound, CURVATURE_BITS[1]
    )
    gradient, products = exact_sums(design, slopes, curved)
    channels = task.channels(model.version)
    parts: dict[str, Part] = {
        "gradient": VectorPart(
            Exact(gradient, columns + (slope_unit - GRADIENT_BITS[0])),
            channels.gradient,
            slots,
        ),
        "curvature": MatrixPart(
            Exact(
                pack_upper(products),
                task.product_exponents + (curved_unit - 2 * CURVATURE_BITS[0]),
            ),
            channels.curvature,
            channels.off_diagonal,
            task.size,
            slots,
        ),
    }
    if channels.squares is not None:
        squares = _squares(np.sqrt(weight) * slope, bound)
        parts["squares"] = VectorPart(squares, channels.squares, slots)
    return Query(model, parts, blocks)


def _derivatives(
    task: SiteTask, predictor: Vector, responses: Vector, start: bool
) -> tuple[Vector, Vector, float]:
    """Return slopes and curvatures within their bounds, (n,), and the bound of the slopes."""
    loss = task.loss
    if start and isinstance(loss, Regression):
        # nothing is cut there, so that the curvature is the same for all records
        slope, curvature = loss.start_slope(responses), np.full(len(responses), 1.0)
    else:
        slope, curvature = loss.slope(predictor, responses), loss.curvature(predictor, responses)
    bound = loss.start_slope_bound if start else loss.slope_bound
    kept = np.clip(finite(slope), -bound, bound)
    return kept, np.clip(finite(curvature), 0.0, loss.curvature_bound), bound


def _squares(slope: Vector, bound: float) -> Exact:
    """Sum the squared slopes exactly."""
    exponent = exponent_of(bound) - GRADIENT_BITS[1]
    whole = np.trunc(np.ldexp(slope, -exponent)).astype(np.int64)
    total = np.array([np.sum(whole * whole)], dtype=np.int64)
    return Exact(total, np.array([2 * exponent], dtype=np.int64))
