"""From a study to all public numbers that its releases need: bounds, lattices and noise."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from pipeline import losses
from pipeline.errors import PrivacyError
from pipeline.losses import Loss
from pipeline.privacy import channel, gdp, sensitivity
from pipeline.privacy.channel import INTEGER_LIMIT, Channel
from pipeline.privacy.policy import NO_PRIVACY, Guarantee, guarantee_of
from pipeline.study import Study, revision_of
from pipeline.types import Vector


@dataclass(frozen=True, slots=True)
class Channels:
    """The noised parts of one kind of release; at the start without curvature."""

    gradient: Channel
    counts: Channel
    curvature: Channel | None

    @property
    def exponents(self) -> tuple[int, ...]:
        """Exponents of the lattice units, in the order in which a release holds the parts."""
        parts = (self.gradient, self.curvature, self.counts)
        return tuple(part.exponent for part in parts if part is not None)

    @property
    def mu(self) -> float:
        """The mu of the whole release."""
        parts = [self.gradient.mu, self.counts.mu]
        return gdp.compose(parts + ([self.curvature.mu] if self.curvature else []))


class Plan:
    """Everything public that clients and workers of one study share.

    Client and worker build it from the same file; the revision in each release says that they did.

    Raises
    ------
    PrivacyError
        If the budget cannot be kept with the bounds that the study declares.
    """

    def __init__(self, study: Study) -> None:
        self.study = study
        self.revision = revision_of(study)
        self.loss: Loss = losses.build(
            study.estimator.loss,
            q=study.estimator.q,
            smoothing=study.estimator.smoothing,
            noised=study.private,
        )
        #: Number of coefficients, the intercept included.
        self.size = len(study.data.features) + 1
        self.slots = study.window.records
        self.largest_weight = (
            study.estimator.class_weights.maximum if study.estimator.class_weights else 1.0
        )
        if study.private:
            self._check_fit()

    @cached_property
    def magnitudes(self) -> Vector:
        """Largest absolute value of each encoded feature, shape (p,)."""
        if self.study.data.scaling == "unit":
            return np.ones(self.size - 1)
        return np.array([max(abs(r.min), abs(r.max)) for r in self.study.data.features.values()])

    @cached_property
    def longest(self) -> float:
        """Largest norm of (1, features) that the ranges allow."""
        return math.sqrt(1.0 + float(np.sum(self.magnitudes**2)))

    @cached_property
    def norm_bound(self) -> float:
        """Public bound of the norm of (1, features)."""
        return min(self.study.estimator.norm_bound or self.longest, self.longest)

    @cached_property
    def mu(self) -> float:
        """The mu of one release for one record."""
        privacy = self.study.privacy
        if privacy.epsilon is None or privacy.delta is None:
            raise PrivacyError("this study keeps no guarantee: it has no epsilon and no delta")
        # a user's records may be in as many releases as there are records
        samples = (2 * self.size + self.size * (self.size + 1) // 2 + 2) * (privacy.records or 1)
        epsilon, delta = channel.slack(samples, privacy.epsilon)
        if delta >= privacy.delta / 2:
            raise PrivacyError(
                f"privacy.delta: {privacy.delta:g} is below what the sampler can promise for "
                f"{samples} numbers at epsilon {privacy.epsilon:g}; use "
                + (f"at least {2.1 * delta:.2g}, or " if delta < 0.2 else "")
                + "a smaller epsilon"
            )
        whole = gdp.mu_of(privacy.epsilon - epsilon, privacy.delta - delta)
        return whole / (privacy.records or 1)

    @cached_property
    def start(self) -> Channels:
        """Channels of releases at model 0: one gradient for each class, unweighted, no curvature.

        Class weights are not known yet, and a record touches the sums of its own class alone, so
        the two gradients together have the sensitivity of one, at weight 1.
        """
        split = self.study.privacy.split
        return self._channels(1.0, split.gradient + split.curvature, 0.0)

    @cached_property
    def step(self) -> Channels:
        """Channels of releases at any later model: weighted gradient and curvature."""
        split = self.study.privacy.split
        return self._channels(self.largest_weight, split.gradient, split.curvature)

    def channels(self, version: int) -> Channels:
        """Return the channels of a release at this model version."""
        return self.start if version == 0 else self.step

    @cached_property
    def guarantee(self) -> Guarantee:
        """The statement that goes with every estimate."""
        privacy = self.study.privacy
        if privacy.epsilon is None or privacy.delta is None:
            return NO_PRIVACY
        return guarantee_of(
            epsilon=privacy.epsilon,
            delta=privacy.delta,
            mu=self.mu * (privacy.records or 1),
            unit=privacy.unit,
            records=privacy.records,
            neighbours=privacy.neighbours,
        )

    def _channels(self, weight: float, gradient: float, curvature: float) -> Channels:
        neighbours, counts = self.study.privacy.neighbours, self.study.privacy.split.counts
        if neighbours == "add-remove":
            raise PrivacyError("add-remove does not fit windows of a fixed number of slots")
        total = gradient + curvature + counts
        slope, bend = weight * self.loss.slope_bound, weight * self.loss.curvature_bound
        # sensitivity, what rounding adds to it in lattice units, and mu of each part; counts are
        # whole numbers, but with a tiny budget the lattice is coarser than that
        parts = [
            (
                sensitivity.of_gradient(self.norm_bound, slope, neighbours),
                math.sqrt(self.size if curvature else 2 * self.size),
                self.mu * math.sqrt(gradient / total),
            ),
            (
                sensitivity.of_class_counts(neighbours),
                math.sqrt(2),
                self.mu * math.sqrt(counts / total),
            ),
        ]
        if curvature:
            parts.append(
                (
                    sensitivity.of_curvature(self.norm_bound, bend, neighbours),
                    float(self.size),
                    self.mu * math.sqrt(curvature / total),
                )
            )
        made = [channel.calibrate(*part) for part in parts]
        return Channels(made[0], made[1], made[2] if curvature else None)

    def _check_fit(self) -> None:
        """Refuse a study whose largest possible sums would not fit the lattice."""
        for channels in (self.start, self.step):
            for part in (channels.gradient, channels.curvature, channels.counts):
                if part is not None and integer_bound(part, self.slots) >= INTEGER_LIMIT:
                    raise PrivacyError(
                        "window.records: the sums of so many records do not fit the lattice; "
                        "use smaller windows"
                    )


def integer_bound(part: Channel, slots: int) -> float:
    """Return an upper bound of every integer that a release of `slots` records can hold."""
    return slots * part.sensitivity / part.unit + 1 + 16 * part.sigma
