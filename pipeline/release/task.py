"""From a study to what clients and workers share: bounds, a budget, and the method's queries."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property, lru_cache
from typing import Literal, Self

import numpy as np

from pipeline.errors import PrivacyError
from pipeline.privacy.channel import INTEGER_LIMIT
from pipeline.privacy.events import Event
from pipeline.records.blocks import with_intercept
from pipeline.records.encode import Arrays
from pipeline.release.bounds import RecordBounds
from pipeline.release.budget import Budget
from pipeline.release.form import Form, FormHeader
from pipeline.release.layout import Layout
from pipeline.release.model import Model
from pipeline.release.query import OpenQuery, Query
from pipeline.release.rows import clipped_to_norm, weight_of
from pipeline.scheduling.policy import ReleasePolicy, WhenFull
from pipeline.scheduling.rhythm import RELEASES, Rhythm
from pipeline.study.growth import Growth, growth_of
from pipeline.study.model import Study
from pipeline.types import Matrix, Vector

#: Windows that a client releases at the public start, and at one model where each stands by itself.
MOST_AT_START = 4


class Task(RecordBounds, ABC):
    """Everything public that clients and workers of one study share; each method has its own.

    Client and worker build it from the same file; the revision in each release says that they did.

    revision: The study's, as the registry finds it; empty in a task that plans alone, and so has no
        releases.
    level: As `Budget` takes it.

    Raises PrivacyError if the budget cannot be kept with the bounds that the study declares;
    ConfigError if the study has no such level.
    """

    def __init__(self, study: Study, revision: str = "", level: str | None = None) -> None:
        super().__init__(study)
        self.revision = revision
        #: What its releases may cost a unit, and what they promise.
        self.budget = self.make_budget(level)
        if study.noised:
            self.check_fit()

    #: How the states of several partitions go together where they are not simply added up.
    partition_strategy: Literal["pooled", "shared"] | None = None
    #: Whether slots without a record enter a release as such, and not only its noise.
    keeps_slots = False
    #: Whether records beyond the norm bound weigh less, as `record_weights` says, and are not cut.
    weighs = False

    @property
    def grows(self) -> bool:
        """Whether its windows can grow: as `Method.grows`."""
        return False

    @cached_property
    def growth(self) -> Growth:
        """How large its windows are."""
        return growth_of(self.study.window, grows=self.grows)

    @property
    def remembers(self) -> bool:
        """Whether the noise of a release depends on those before it, behind the public start."""
        return False

    @abstractmethod
    def make_budget(self, level: str | None) -> Budget:
        """Return the budget of the releases, which depends on what a record touches in them."""

    def of_client(self, name: str) -> Self:
        """Return the task as one client has it, by its id; most studies treat all alike.

        Raises ConfigError if the study names its clients, and it is none of them.
        """
        del name
        return self

    def check_fit(self) -> None:
        """Refuse a study whose largest possible sums would not fit the lattice.

        By default those of `layout`, with windows as large as they can grow.

        Raises PrivacyError, naming the key that must change.
        """
        more = self.growth.largest - self.slots
        fields = (*self.layout.start, *self.layout.later)
        if any(field.largest + field.per_slot * more >= INTEGER_LIMIT for field in fields):
            raise PrivacyError(
                f"window.{'most' if self.growth.divisor else 'records'}: the sums of so many "
                "records are too large to be sent; use smaller windows"
            )

    @property
    def clients(self) -> Sequence[str]:
        """The ids of all clients where the study names them; none: any may release."""
        return ()

    @abstractmethod
    def query(self, window: Arrays, model: Model) -> Query:
        """Return the exact, bounded sums of one window with the noise that they need.

        window: At most `slots` records; with those of empty slots if `keeps_slots`.

        Raises PrivacyError if there are more records than slots.
        """

    def open_query(self, window: Arrays, model: Model) -> OpenQuery:
        """Return the sums of one window of a study without privacy.

        Raises PrivacyError if the method has no such studies, as by default.
        """
        raise PrivacyError("privacy.mechanism: this method needs noise")

    @property
    @abstractmethod
    def layout(self) -> Layout:
        """The numbers of every release: names, lengths, units and bounds."""

    @property
    def policy(self) -> ReleasePolicy:
        """When a client's windows leave."""
        return WhenFull(self.study.window.seconds, self.most_in_flight, self.most_at_start)

    @property
    def chained(self) -> bool:
        """Whether a release depends on those before it, by its size or by its noise."""
        return bool(self.growth.divisor) or self.remembers

    @property
    def most_in_flight(self) -> int:
        """How many windows of a client the newest model may lack; 0: any number."""
        most = self.study.stream.max_in_flight_windows
        return (2 if self.chained else MOST_AT_START) if most is None else most

    @property
    def most_at_start(self) -> int:
        """How many windows a client may release before the first model; 0: any number."""
        most = self.study.stream.max_in_flight_windows
        return MOST_AT_START if most is None else most

    @property
    def rhythm(self) -> Rhythm:
        """When the next model is due."""
        releases = self.study.stream.publish.releases
        if self.chained:
            releases = min(releases, RELEASES)
        return Rhythm(self.chained, releases, self.most_in_flight)

    def event(self, model: Model) -> Event:
        """Return what a release at this model costs a record; known before its noise is drawn."""
        del model
        return self.budget.event

    @property
    def counts_slots(self) -> bool:
        """Whether it matters how many record slots a release says that its model had seen."""
        forgetting = self.study.estimator.forgetting
        return forgetting is not None and forgetting.of == "records"

    @property
    def kept_norm(self) -> float:
        """Norm of (1, features) from which on a record is shortened, or weighs less."""
        return self.norm_bound

    def record_weights(self, design: Matrix) -> Vector | float:
        """Return the weight that each row (1, x) has because of its length, shape (n,)."""
        del design
        return 1.0

    def reference_rows(
        self, features: Matrix, responses: Vector, weights: tuple[float, float]
    ) -> tuple[Matrix, Vector]:
        """Return (1, x) and weights of records as the estimate sees them, (n, d) and (n,).

        weights: Of the negative and the positive class.
        """
        if self.weighs:
            design = with_intercept(features)
            return design, np.broadcast_to(self.record_weights(design), len(responses))
        design = with_intercept(clipped_to_norm(features, self))
        return design, np.broadcast_to(weight_of(weights, responses), len(responses))


@lru_cache(maxsize=64)
def form_of(task: Task, revision: str = "") -> Form:
    """Return the form of a study's releases; of the task's revision unless told another."""
    study = task.study
    header = FormHeader(
        study=study.name,
        revision=revision or task.revision,
        claim=task.budget.claim,
        partitions=study.stream.partitions,
        growth=task.growth,
        chained=task.chained,
        noised=study.noised,
    )
    return Form(task.layout, header)
