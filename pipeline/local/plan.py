"""From a study to all public numbers that its releases need: bounds, lattices and noise."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cached_property
from typing import Literal

import numpy as np

from pipeline import losses
from pipeline.errors import ConfigError, PrivacyError
from pipeline.linalg import pack_upper
from pipeline.local.channels import Channels, of_single_records
from pipeline.local.model import Model, start_model
from pipeline.losses import Loss
from pipeline.privacy import sensitivity
from pipeline.privacy.accounting import Cost
from pipeline.privacy.channel import INTEGER_LIMIT, Channel
from pipeline.privacy.mechanisms import (
    GaussianMechanism,
    LaplaceMechanism,
    Mechanism,
    Simulation,
)
from pipeline.privacy.policy import NO_PRIVACY, Guarantee, guarantee_of, simulation_of
from pipeline.privacy.sensitivity import Bounds
from pipeline.study import Study, revision_of
from pipeline.types import Integers, Vector


class Plan:
    """Everything public that clients and workers of one study share.

    Client and worker build it from the same file; the revision in each release says that they did.

    Parameters
    ----------
    level
        Of a client with personal levels: the loosest one that its records may have. By default the
        loosest of all where a column says which, else the strictest.

    Raises
    ------
    PrivacyError
        If the budget cannot be kept with the bounds that the study declares.
    ConfigError
        If the study has no such level.
    """

    def __init__(self, study: Study, level: str | None = None) -> None:
        self.study = study
        #: Names of the personal levels, the strictest first; without them there is one, unnamed.
        self.levels = study.privacy.personal.names if study.privacy.personal else ("",)
        #: Place of the loosest level that records of this client may have.
        self.ceiling = self._ceiling(level)
        self.revision = revision_of(study)
        self.loss: Loss = losses.build(study.estimator.loss, _terms(study))
        #: Number of coefficients, the intercept included.
        self.size = len(study.data.features) + 1
        self.slots = study.window.records
        self.largest_weight = (
            study.estimator.class_weights.maximum if study.estimator.class_weights else 1.0
        )
        if study.noised:
            self._check_fit()

    @property
    def classes(self) -> bool:
        """Whether the response is one of two classes."""
        return self.loss.responses == "class"

    @property
    def groups(self) -> int:
        """How many gradients a release at the start holds: one for each class, else one."""
        return 2 if self.classes and not self.by_record else 1

    @cached_property
    def response_scale(self) -> tuple[float, float]:
        """Centre and unit: a response is centre + unit times its encoded form."""
        return _response_scale(self.study)

    @cached_property
    def first_model(self) -> Model:
        """The public point at which clients start."""
        return start_model(self.size, self.loss.start_intercept)

    @property
    def summed(self) -> int:
        """How many records one number of a gradient is a sum of, at most."""
        return 1 if self.by_record else self.slots

    @cached_property
    def radius(self) -> float:
        """Bound of the weighted norm of (1, features) in the gradient of a single record."""
        path = self.study.path
        given = None if path is None else path.radius
        return min(given or math.sqrt(max(2, self.size)), self.longest)

    @cached_property
    def largest_gradient(self) -> float:
        """Largest absolute entry of a single record's released gradient, noise included."""
        if not self.study.noised:
            return self.radius * self.loss.slope_bound
        # the worker does not know a slot's level: any of them may have made its noise
        parts = self.record_channels
        return max(part.largest(self.summed) for part in parts) * parts[0].unit

    @cached_property
    def by_record(self) -> bool:
        """Whether a release holds the gradients of single records, each noised by itself."""
        return self.study.path is not None

    @property
    def apart(self) -> bool:
        """Whether each record has noise of its own alone, so that a user's records compose."""
        return self.by_record and not self.beside

    @property
    def several(self) -> Literal["pooled", "shared"] | None:
        """How the paths of several partitions go together; None for one path, or for none."""
        return None if self.study.path is None else self.study.path.partitions

    @cached_property
    def beside(self) -> int:
        """How many numbers a release holds beside the gradients of its single records."""
        matrices = self.study.path.matrices if self.study.path else 0
        return matrices * (self.size * (self.size + 1) // 2)

    @cached_property
    def shares(self) -> dict[str, float]:
        """Shares of the budget of what a release of single records holds; they sum to one."""
        if self.study.path is None:
            return {}
        names, split = self.study.path.releases.split("+"), self.study.split
        if "products" in names:
            return dict.fromkeys(names, 1 / 3)
        parts = (split.gradient, split.curvature)[: len(names)]
        return {name: part / sum(parts) for name, part in zip(names, parts, strict=True)}

    @cached_property
    def parts(self) -> dict[str, float]:
        """What each of these costs one record, in the mechanism's own terms."""
        return {name: self.mechanism.part(self.budget, s) for name, s in self.shares.items()}

    @property
    def start_slope_bound(self) -> float:
        """Largest absolute slope at the public start, unweighted."""
        return self.loss.start_slope_bound

    def counted(self, version: int) -> int:
        """Return how many numbers a release holds beside gradient and curvature."""
        if self.by_record:
            return 0
        if self.classes:
            return 2
        return int(version > 0 and self.study.estimator.noise_scale is None)

    @property
    def counted_name(self) -> str:
        """What those numbers are, in words; empty where there are none."""
        if self.classes and not self.by_record:
            return "class counts"
        return "sums of squared slopes" if self.counted(1) else ""

    @cached_property
    def ends(self) -> tuple[Vector, Vector]:
        """Lower and upper ends of the encoded features, each of shape (p,)."""
        if self.study.data.scaling == "unit":
            return -np.ones(self.size - 1), np.ones(self.size - 1)
        features = self.study.data.features.values()
        return np.array([r.min for r in features]), np.array([r.max for r in features])

    @cached_property
    def magnitudes(self) -> Vector:
        """Largest absolute value of each encoded feature, shape (p,)."""
        low, high = self.ends
        return np.maximum(np.abs(low), np.abs(high))

    @cached_property
    def column_exponents(self) -> Integers:
        """Exponents of powers of two that bound the entries of (1, features), shape (d,)."""
        exponents: Integers = np.ceil(np.log2(np.append(1.0, self.magnitudes))).astype(np.int64)
        return exponents

    @cached_property
    def product_exponents(self) -> Integers:
        """Sums of two of `column_exponents`, packed as an upper triangle."""
        return pack_upper(np.add.outer(self.column_exponents, self.column_exponents))

    @cached_property
    def longest(self) -> float:
        """Largest norm of (1, features) that the ranges allow."""
        return math.sqrt(1.0 + float(np.sum(self.magnitudes**2)))

    @cached_property
    def norm_bound(self) -> float:
        """Public bound of the norm of (1, features)."""
        return min(self.study.estimator.norm_bound or self.longest, self.longest)

    @cached_property
    def bounds(self) -> Bounds:
        """Public bounds of a record (1, features)."""
        p = self.size - 1
        within = 1.0 + math.sqrt(p) * math.sqrt(max(self.norm_bound**2 - 1.0, 0.0))
        return Bounds(min(1.0 + float(np.sum(self.magnitudes)), within), self.norm_bound)

    @cached_property
    def mechanism(self) -> Mechanism:
        """What noises the releases of this study.

        Raises
        ------
        PrivacyError
            If the study has no noise.
        """
        return self._mechanism(self.study.privacy.epsilon)

    def _mechanism(self, epsilon: float | None) -> Mechanism:
        privacy = self.study.privacy
        if epsilon is None:
            raise PrivacyError("this study keeps no guarantee: it has no epsilon and no delta")
        if privacy.delta is None:
            return LaplaceMechanism(epsilon)
        gaussian = GaussianMechanism(epsilon, privacy.delta)
        return Simulation(gaussian) if privacy.mechanism == "insecure-simulation" else gaussian

    @cached_property
    def budget(self) -> float:
        """What one release may cost one record, in the mechanism's own terms: mu or epsilon.

        Of personal levels it is that of the loosest.
        """
        return self._budget(self.mechanism)

    def _budget(self, mechanism: Mechanism) -> float:
        # a user's records may be in as many releases as there are records
        records = self.study.privacy.records or 1
        if self.by_record:
            # noised apart, they compose: mu grows as the root (docs/privacy/composition.md)
            share = math.sqrt(records) if self.apart and mechanism.order == 2 else records
            return mechanism.budget((self.size + self.beside) * records) / share
        numbers = 2 * self.size + self.size * (self.size + 1) // 2 + 2
        return mechanism.budget(numbers * records) / records

    @property
    def empty_level(self) -> int:
        """Place of the level of a slot without a record.

        Where no column says which, all slots of a client have one level, so that noise does not
        show which are empty; else there is no record to ask, and the strictest is sure.
        """
        personal = self.study.privacy.personal
        return len(self.levels) - 1 if personal is not None and personal.column is None else 0

    @property
    def shows_absence(self) -> bool:
        """Whether the noise of a slot can show that no record is in it."""
        return self.empty_level < self.ceiling

    @property
    def epsilons(self) -> tuple[float | None, ...]:
        """Epsilon of each of `levels`."""
        personal = self.study.privacy.personal
        if personal is None:
            return (self.study.privacy.epsilon,)
        return tuple(personal.levels[name] for name in self.levels)

    @cached_property
    def cost(self) -> Cost:
        """What all releases of the study cost one record of this client, at most."""
        mechanism = self._mechanism(self.epsilons[self.ceiling])
        return replace(mechanism.cost(self._budget(mechanism)), apart=self.apart)

    @cached_property
    def largest_cost(self) -> Cost:
        """What they cost one record of any client, at most: `cost` where there are no levels."""
        return replace(self.mechanism.cost(self.budget), apart=self.apart)

    @cached_property
    def record_channels(self) -> tuple[Channel, ...]:
        """Channels of a record's gradient at each of `levels`, all on the loosest one's lattice."""
        loosest = self.start.gradient
        budgets = [self._budget(self._mechanism(epsilon)) for epsilon in self.epsilons[:-1]]
        return (*(loosest.stricter(self.budget / budget) for budget in budgets), loosest)

    @cached_property
    def record_noise(self) -> float:
        """Standard deviation of a record's noise; over equal shares of all levels."""
        squares = [part.standard_deviation**2 for part in self.record_channels]
        return math.sqrt(math.fsum(squares) / len(squares))

    @cached_property
    def start(self) -> Channels:
        """Channels of releases at model 0: one gradient for each group, unweighted, no curvature.

        Class weights are not known yet, and a record touches the sums of its own class alone, so
        the two gradients together have the sensitivity of one, at weight 1.
        """
        if self.by_record:
            return self._record_channels()
        split = self.study.split
        return self._channels(
            self.start_slope_bound, 0.0, split.gradient + split.curvature, 0.0, self.counted(0)
        )

    @cached_property
    def step(self) -> Channels:
        """Channels of releases at any later model: weighted gradient and curvature."""
        if self.by_record:
            return self.start
        split = self.study.split
        weight = self.largest_weight
        slope, bend = weight * self.loss.slope_bound, weight * self.loss.curvature_bound
        return self._channels(slope, bend, split.gradient, split.curvature, self.counted(1))

    def channels(self, version: int) -> Channels:
        """Return the channels of a release at this model version."""
        return self.start if version == 0 else self.step

    @cached_property
    def guarantee(self) -> Guarantee:
        """The statement that goes with every estimate."""
        privacy = self.study.privacy
        if privacy.epsilon is None:
            return NO_PRIVACY
        if not self.study.private:
            return simulation_of(epsilon=privacy.epsilon, delta=privacy.delta or 0.0)
        return guarantee_of(
            mechanism=privacy.mechanism,
            epsilon=privacy.epsilon,
            delta=privacy.delta or 0.0,
            mu=self.largest_cost.times(privacy.records or 1).mu,
            unit=privacy.unit,
            records=privacy.records,
            neighbours=privacy.neighbours,
            counted=self.counted_name,
            parts=self.parts,
            levels=privacy.personal.levels if privacy.personal else None,
        )

    @cached_property
    def claim(self) -> str:
        """The promise in short, which every release carries."""
        return self.guarantee.claim

    def _ceiling(self, level: str | None) -> int:
        personal = self.study.privacy.personal
        if level is None:
            return len(self.levels) - 1 if personal is None or personal.column else 0
        if personal is None or level not in personal.levels:
            raise ConfigError(
                f"--level: this study has no level {level!r}; privacy.personal.levels has "
                f"{', '.join(map(repr, self.levels)) if personal else 'none'}"
            )
        return self.levels.index(level)

    def _record_channels(self) -> Channels:
        neighbours = self.study.privacy.neighbours
        if neighbours == "add-remove":
            raise PrivacyError("add-remove does not fit windows of a fixed number of slots")
        return of_single_records(
            self.mechanism, self.loss, self.bounds, self.radius, self.size, neighbours,
            self.budget, self.shares,
        )  # fmt: skip

    def _channels(
        self, slope: float, bend: float, gradient: float, curvature: float, counted: int
    ) -> Channels:
        """Return channels for slopes and curvatures within bounds, by shares of the budget."""
        neighbours, order = self.study.privacy.neighbours, self.mechanism.order
        if neighbours == "add-remove":
            raise PrivacyError("add-remove does not fit windows of a fixed number of slots")
        counts = self.study.split.counts if counted else 0.0
        total = gradient + curvature + counts
        bounds = self.bounds

        def part(distance: float, rounding: float, share: float) -> Channel:
            return self.mechanism.channel(distance, rounding, self.budget, share / total)

        bent = None
        if curvature:
            bent = part(
                sensitivity.of_curvature(bounds, bend, neighbours, order),
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
            beside=bent and bent.off_diagonal(),
        )

    def _check_fit(self) -> None:
        """Refuse a study whose largest possible sums would not fit the lattice."""
        gradients = self.record_channels if self.by_record else (self.start.gradient,)
        parts = [(part, self.summed) for part in (*gradients, self.step.gradient)]
        for channels in (self.start, self.step):
            summed = (channels.curvature, channels.products, channels.counts)
            parts += [(part, self.slots) for part in summed if part is not None]
        if any(part.largest(records) >= INTEGER_LIMIT for part, records in parts):
            raise PrivacyError(
                "window.records: the sums of so many records do not fit the lattice; use smaller "
                "windows"
            )


def _terms(study: Study) -> losses.Terms:
    estimator = study.estimator
    unit, bound = _response_scale(study)[1], estimator.residual_bound
    return losses.Terms(
        q=estimator.q,
        smoothing=estimator.smoothing,
        noised=study.noised,
        residual_bound=None if bound is None else bound / unit,
        largest=study.data.response.ends[1],
        tau=0.5 if estimator.tau is None else estimator.tau,
    )


def _response_scale(study: Study) -> tuple[float, float]:
    if study.data.response.kind != "number":
        return 0.0, 1.0
    low, high = study.data.response.ends
    return low / 2 + high / 2, high / 2 - low / 2
