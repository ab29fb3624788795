"""From a study to what clients and workers share: budgets, the guarantee, and the method's part."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from typing import Literal

import numpy as np

from pipeline.errors import ConfigError, PrivacyError
from pipeline.privacy.accounting import Cost
from pipeline.privacy.mechanisms import (
    GaussianMechanism,
    LaplaceMechanism,
    Mechanism,
    Simulation,
)
from pipeline.privacy.policy import NO_PRIVACY, Guarantee, guarantee_of, simulation_of
from pipeline.records.blocks import with_intercept
from pipeline.records.encode import Arrays
from pipeline.release.bounds import RecordBounds
from pipeline.release.layout import Layout
from pipeline.release.model import Model
from pipeline.release.query import OpenQuery, Query
from pipeline.release.rows import clipped_to_norm, weight_of
from pipeline.study import Study, revision_of
from pipeline.study.release_tables import Split
from pipeline.types import Matrix, Vector


class Task(RecordBounds, ABC):
    """Everything public that clients and workers of one study share; each method has its own.

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
        super().__init__(study)
        #: Names of the personal levels, the strictest first; without them there is one, unnamed.
        self.levels = study.privacy.personal.names if study.privacy.personal else ("",)
        #: Place of the loosest level that records of this client may have.
        self.ceiling = self._ceiling(level)
        self.revision = revision_of(study)
        if study.noised:
            self.check_fit()

    #: Whether each record has noise of its own alone, so that a user's records compose.
    noise_per_record = False
    #: How the states of several partitions go together where they are not simply added up.
    partition_strategy: Literal["pooled", "shared"] | None = None
    #: Whether slots without a record enter a release as such, and not only its noise.
    keeps_slots = False

    @abstractmethod
    def check_fit(self) -> None:
        """Refuse a study whose largest possible sums would not fit the lattice.

        Raises
        ------
        PrivacyError
            Naming the key that must change.
        """

    @property
    @abstractmethod
    def touched(self) -> int:
        """Most noised numbers that one record can touch."""

    @abstractmethod
    def query(self, window: Arrays, model: Model) -> Query:
        """Return the exact, bounded sums of one window with the noise that they need.

        Parameters
        ----------
        window
            At most `slots` records; with those of empty slots if `keeps_slots`.

        Raises
        ------
        PrivacyError
            If there are more records than slots.
        """

    @abstractmethod
    def open_query(self, window: Arrays, model: Model) -> OpenQuery:
        """Return the sums of one window of a study without privacy."""

    @property
    @abstractmethod
    def layout(self) -> Layout:
        """The numbers of every release: names, lengths, units and bounds."""

    @property
    def split(self) -> Split:
        """Shares of the budget that go to gradient, curvature and counts."""
        return self.study.privacy.split or Split()

    @property
    def counts_slots(self) -> bool:
        """Whether it matters how many record slots a release says that its model had seen."""
        forgetting = self.study.estimator.forgetting
        return forgetting is not None and forgetting.of == "records"

    @property
    def counted_name(self) -> str:
        """What leaves with noise beside sums of gradients, in words; empty where there is none."""
        return ""

    @property
    def kept_norm(self) -> float:
        """Norm of (1, features) from which on a record is shortened, or weighs less."""
        return self.norm_bound

    @property
    def budget_allocation(self) -> Mapping[str, float]:
        """What each part of a release costs one record, where single records release several."""
        return {}

    def record_weights(self, design: Matrix) -> Vector | float:
        """Return the weight that each row (1, x) has because of its length, shape (n,)."""
        del design
        return 1.0

    def reference_rows(
        self, features: Matrix, responses: Vector, weights: tuple[float, float]
    ) -> tuple[Matrix, Vector]:
        """Return (1, x) and weights of records as the estimate sees them, (n, d) and (n,).

        Parameters
        ----------
        weights
            Of the negative and the positive class.
        """
        design = with_intercept(clipped_to_norm(features, self))
        return design, np.broadcast_to(weight_of(weights, responses), len(responses))

    @cached_property
    def mechanism(self) -> Mechanism:
        """What noises the releases of this study.

        Raises
        ------
        PrivacyError
            If the study has no noise.
        """
        return self.mechanism_of(self.study.privacy.epsilon)

    def mechanism_of(self, epsilon: float | None) -> Mechanism:
        """Return what noises a record whose budget is `epsilon`."""
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
        return self.budget_of(self.mechanism)

    def budget_of(self, mechanism: Mechanism) -> float:
        """Return what one release may cost one record, in a mechanism's own terms."""
        # a user's records may be in as many releases as there are records
        records = self.study.privacy.records or 1
        # noised apart, they compose: mu grows as the root (docs/privacy/composition.md)
        share = math.sqrt(records) if self.noise_per_record and mechanism.order == 2 else records
        return mechanism.budget(self.touched * records) / share

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
        mechanism = self.mechanism_of(self.epsilons[self.ceiling])
        return replace(mechanism.cost(self.budget_of(mechanism)), apart=self.noise_per_record)

    @cached_property
    def largest_cost(self) -> Cost:
        """What they cost one record of any client, at most: `cost` where there are no levels."""
        return replace(self.mechanism.cost(self.budget), apart=self.noise_per_record)

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
            parts=self.budget_allocation,
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
