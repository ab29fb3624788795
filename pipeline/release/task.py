"""What clients and workers of a study share: bounds, budget and queries."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property, lru_cache, reduce
from operator import add
from typing import Literal, Self

import numpy as np

from pipeline import losses
from pipeline.errors import PrivacyError
from pipeline.linalg import pack_upper
from pipeline.losses import Loss
from pipeline.privacy.events import Event
from pipeline.privacy.mechanism import INTEGER_LIMIT
from pipeline.privacy.sensitivity import Bounds, Neighbours, Order
from pipeline.records.blocks import finite, with_intercept
from pipeline.records.encoder import Arrays
from pipeline.release.budget import Budget
from pipeline.release.layout import Form, FormHeader, Layout
from pipeline.release.model import Model, start_model
from pipeline.release.policy import RELEASES, Growth, ReleasePolicy, Rhythm, WhenFull, growth_of
from pipeline.release.query import OpenQuery, Query
from pipeline.study.encoding import steps_of
from pipeline.study.model import Study
from pipeline.study.reference import typical_norm_bound
from pipeline.types import Integers, Matrix, Vector

#: Smallest norm that is divided by.
TINY = 1e-150


def clipped_to_norm(features: Matrix, bounds: RecordBounds) -> Matrix:
    """Shorten records to the public bound of their norm where the ranges allow longer ones.

    Shapes (n, p), encoded.
    """
    if bounds.norm_bound >= bounds.longest:
        return features
    # a hair below the bound, so that the rounding of the product cannot pass it
    room = np.sqrt(bounds.norm_bound**2 - 1.0) * (1.0 - 2.0**-40)
    # a record of zeros stays one, however little room there is
    norms = np.maximum(np.linalg.norm(features, axis=1), max(float(room), TINY))
    rows: Matrix = features * np.minimum(1.0, room / norms)[:, None]
    return rows


def inside(features: Matrix, bounds: RecordBounds) -> Matrix:
    """Cut encoded records to what ranges and levels allow; 0 where there is no number.

    The encoder gives no others: whatever comes here instead, the declared bounds hold.
    """
    low, high = bounds.ends
    # two looks are cheaper than to cut what the encoder has cut; no number fails the comparison
    if not (features.size and features.min() >= low.max() and features.max() <= high.min()):
        features = np.minimum(np.maximum(finite(features), low), high)
    for block in bounds.encoding.exclusive:
        # of such columns one record has at most one that is not zero
        part = features[:, block]
        if (np.count_nonzero(part, axis=1) > 1).any():
            largest = np.abs(part) == np.abs(part).max(axis=1, keepdims=True)
            first = np.cumsum(largest, axis=1) == 1
            features = features.copy()
            features[:, block] = np.where(largest & first, part, 0.0)
    return features


def weight_of(weights: tuple[float, float], responses: Vector) -> Vector | float:
    """Return the class weight of each record, or the one weight of all."""
    negative, positive = weights
    return positive if negative == positive else np.where(responses > 0, positive, negative)


class RecordBounds:
    """What is declared of encoded records (1, x), and of the responses beside them.

    encoding: The columns of the features.
    size: Number of coefficients d, the intercept included.
    slots: Record slots of one window.
    largest_weight: The most that a class may weigh; 1 without class weights.
    """

    def __init__(self, study: Study) -> None:
        self.study = study
        self.loss: Loss = losses.build(study.estimator.loss, _terms(study))
        self.encoding = study.encoding
        self.size = len(self.encoding.columns) + 1
        self.slots = study.window.records
        weights = study.estimator.class_weights
        self.largest_weight = weights.maximum if weights else 1.0

    @property
    def classes(self) -> bool:
        """Whether the response is one of two classes."""
        return self.loss.responses == "class"

    @cached_property
    def steps(self) -> tuple[str, ...]:
        """What a step of 1 is for each coefficient, in words; empty where the scaling says it."""
        return steps_of(self.encoding)

    @cached_property
    def response_scale(self) -> tuple[float, float]:
        """Centre and unit: a response is centre + unit times its encoded form."""
        return _response_scale(self.study)

    def in_units(self, coefficients: Vector) -> Vector:
        """Return coefficients, or ends of intervals, in the unit of the response, shape (d,)."""
        centre, unit = self.response_scale
        found: Vector = np.append(centre, np.zeros(self.size - 1)) + unit * coefficients
        return found

    @cached_property
    def first_model(self) -> Model:
        """The public point at which clients start."""
        return start_model(self.size, self.loss.start_intercept)

    @property
    def penalty(self) -> Vector:
        """Ridge penalty of each coefficient, shape (d,)."""
        return self.study.estimator.ridge * np.append(0.0, np.ones(self.size - 1))

    @property
    def ends(self) -> tuple[Vector, Vector]:
        """Lower and upper ends of the encoded columns, each of shape (p,)."""
        return self.encoding.ends

    @property
    def magnitudes(self) -> Vector:
        """Largest absolute value of each encoded column, shape (p,)."""
        return self.encoding.magnitudes

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
        """Largest norm of (1, features) that ranges and levels allow."""
        return math.sqrt(1.0 + float(np.sum(self.encoding.reach**2)))

    @cached_property
    def farthest(self) -> float:
        """Largest L1 norm of (1, features) that ranges and levels allow."""
        return 1.0 + float(np.sum(self.encoding.reach))

    @cached_property
    def norm_bound(self) -> float:
        """Public bound of the norm of (1, features)."""
        declared = self.study.estimator.norm_bound or self.longest
        if declared == "typical":
            declared = typical_norm_bound(self.encoding)
        return min(declared, self.longest)

    @cached_property
    def bounds(self) -> Bounds:
        """Public bounds of a record (1, features)."""
        # so many columns are not zero at once, at most: of a category one
        p = len(self.encoding.reach)
        within = 1.0 + math.sqrt(p) * math.sqrt(max(self.norm_bound**2 - 1.0, 0.0))
        return Bounds(min(self.farthest, within), self.norm_bound)


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
    #: No window may hold more records.
    most_records = INTEGER_LIMIT
    #: Whether records beyond the norm bound weigh less, as `record_weights` says, and are not cut.
    weighs = False

    @property
    def grows(self) -> bool:
        """Whether its windows can grow: as `Method.grows`."""
        return False

    @cached_property
    def growth(self) -> Growth:
        """How large its windows are."""
        return growth_of(self.study, grows=self.grows)

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
        largest, fields = self.growth.largest, (*self.layout.start, *self.layout.later)
        more = largest - self.slots
        if largest > self.most_records or any(
            field.largest + field.per_slot * more >= INTEGER_LIMIT for field in fields
        ):
            raise PrivacyError(
                f"window.{'most' if self.growth.divisor else 'records'}: the sums of so many "
                "records are too large to be sent; use smaller windows"
            )

    @property
    def neighbourhood(self) -> tuple[Neighbours, Order]:
        """How neighbours differ, and the order of the norm that the noise goes by.

        Raises PrivacyError of neighbours that fit no windows.
        """
        neighbours = self.study.privacy.neighbours
        if neighbours == "add-remove":
            raise PrivacyError(
                'privacy.neighbours: "add-remove" does not fit windows of a fixed number of '
                "slots; use zero-out or replace-one"
            )
        return neighbours, self.budget.mechanism.order

    def check_window(self, window: Arrays) -> None:
        """Refuse a window of more records than slots; PrivacyError."""
        if len(window.responses) > self.slots:
            raise PrivacyError(f"a window holds at most {self.slots} records (window.records)")

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

    def query_blocks(self, slots: Arrays, model: Model) -> Query:
        """Return the sums of several blocks of `slots` record slots, the last perhaps not full.

        slots: With those that are empty, one at least.
        """
        starts = range(0, self.slots * self.blocks_of(slots), self.slots)
        blocks = [slots.part(slice(at, at + self.slots)).sound for at in starts]
        return reduce(add, (self.query(block, model) for block in blocks))

    def blocks_of(self, slots: Arrays) -> int:
        """Return how many blocks of `slots` record slots some are, the last perhaps not full."""
        return max(1, -(-len(slots.responses) // self.slots))

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


def release_bytes(task: Task) -> int:
    """Return how many bytes each release of a study has."""
    return form_of(task).dtype.itemsize
