"""What a method of estimation is to the rest: the seam between the log and the mathematics.

Everything around it (decoding, dead letters, duplicates, ages, partitions, storage) is the same for
all methods. A method says what its releases hold, how they fold into a state, and what the state
says.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Container, Mapping, Sequence
from typing import Any, ClassVar, Generic, Protocol, TypeVar, runtime_checkable

import numpy as np

from pipeline.estimators.buckets import State
from pipeline.estimators.estimate import Estimate
from pipeline.messages.form import Rows
from pipeline.methods.facts import Design, Missed, ModelCard, Outlook, Sizes, Timetable
from pipeline.release.model import Part
from pipeline.release.task import Task
from pipeline.study import Study
from pipeline.types import Matrix, Vector

S = TypeVar("S", bound=State)
T = TypeVar("T", bound=Task)


class Server(Protocol[S]):
    """A method at the worker, for one study; pure.

    Folding a batch equals folding its releases one by one in the order of the log, bit for bit.
    Batches are rows of the study's form that `incoming` found sound: their numbers are within the
    bounds of the task's layout. `S` is its state.
    """

    @property
    def ordered(self) -> bool:
        """Whether the order of releases shows in the state; else any order gives the same bits."""

    @property
    def interval(self) -> str:
        """By what method the intervals of the study are made."""

    def slots(self, rows: Rows) -> int:
        """Return how many record slots some releases have."""

    def empty(self) -> S:
        """Return the state before the first release."""

    def read(self, fields: dict[str, bytes]) -> S:
        """Rebuild a state from all fields that its `encode` gave.

        Raises StateError if a field is missing, unknown or cannot be read.
        """

    def fold(self, state: S, rows: Rows) -> None:
        """Add releases to a state, in the order of the log."""

    def estimate(
        self, parts: Sequence[tuple[float, S]], partitions: Sequence[int], *, missing: int = 0
    ) -> Estimate:
        """Return the estimate of some buckets with their weights, all partitions merged.

        partitions: The numbers of those that have begun, in the order in which they were merged.
        missing: Releases that never came, or did not count, below numbers that did.
        """

    def start_is_over(self, states: Sequence[S], furthest: int) -> bool:
        """Whether the first model may go out; by default at once.

        states: All buckets of all partitions.
        furthest: Most releases that one client has sent.
        """
        del states, furthest
        return True

    def part(self, slots: int, state: S | None) -> Part | None:
        """Return what the next model says to the clients of one partition.

        slots: Record slots of the partition that have been folded.
        state: Its sums; None for an empty partition.

        Returns: None, the default, where all partitions share the model.
        """
        del slots, state
        return None


@runtime_checkable
class Pointing(Protocol):
    """What a server offers besides, if the next model needs far less than an estimate."""

    def point(self, parts: Sequence[tuple[float, Any]]) -> Vector:
        """Return `Estimate.expansion` of the same sums; its weights are (1, 1)."""


class Simulation(Protocol):
    """A stream in one process that skips the log, for many of them in a row."""

    def fold(self, features: Matrix, responses: Vector, clients: int) -> None:
        """Take one full window of each client: encoded, shapes (n, p) and (n,)."""

    def publish(self) -> None:
        """Let clients take the newest model."""

    def estimate(self) -> Estimate:
        """Return the estimate so far."""


class Method(ABC, Generic[T]):
    """A way of estimating: what `estimator.kind` names, with tasks `T` of its own.

    title: The method in the field's words.
    losses: What it can minimise.
    tables: Tables under [estimator] that it reads: "method", or one of its own.
    features: Whether records have features beside the response.
    penalised: Whether there is a ridge; where there is none, its default is 0.
    levels: Whether single records can have budgets of their own (`privacy.personal`).
    server_side: Keys that only the worker reads, with what they decide: a replay may change them.
    client_side: Why a replay may not change other keys of its tables, by the beginning of the key.
    no_pooled: Why a fit to all records at once is nothing that its estimates aim at; empty: it is.
    no_open: Why its studies have no stream without noise, and what to do instead; empty: they have.
    """

    title: ClassVar[str]
    losses: ClassVar[tuple[str, ...]]
    tables: ClassVar[tuple[str, ...]] = ()
    features: ClassVar[bool] = True
    penalised: ClassVar[bool] = True
    levels: ClassVar[bool] = False
    server_side: ClassVar[Mapping[str, str]] = {}
    client_side: ClassVar[Mapping[str, str]] = {}
    no_pooled: ClassVar[str] = ""
    no_open: ClassVar[str] = ""

    def beginning(self, clients: int) -> Mapping[str, str]:
        """Return what the file of a new study says in other tables than the template does.

        clients: How many are expected.

        Returns: Lines by the name of their table; none for a table that it has not. None of all
        where the template is a study of this kind.
        """
        del clients
        return {}

    def check(self, study: Study) -> None:
        """Refuse what a study says and the method does not allow.

        Raises ConfigError, naming the key, what is allowed and the way out.
        """

    def complete(self, study: Study, given: Container[str]) -> Study:
        """Return a checked study with what follows from its other keys where it says nothing.

        given: Keys of [estimator] that its file has.
        """
        del given
        return study

    def grows(self, study: Study) -> bool:
        """Whether windows can grow: their sums have one noise, however many records they hold."""
        del study
        return False

    def remembers(self, study: Study) -> bool:
        """Whether the noise of a release can depend on those before it."""
        del study
        return False

    def enter(self, meaning: dict[str, Any], study: Study) -> None:
        """Put into a study's meaning, of which the revision is a hash, what the method adds."""

    def clients(self, study: Study) -> Sequence[str]:
        """Return the ids of all clients where a study names them; none: any may release."""
        del study
        return ()

    def intervals(self, study: Study) -> Sequence[str]:
        """Return the kinds of intervals that can be had side by side; none if there is one."""
        del study
        return ()

    @abstractmethod
    def task(self, study: Study, level: str | None = None) -> T:
        """Return the public numbers of a study; for `level` and errors see `Task`."""

    @abstractmethod
    def server(self, task: T) -> Server[Any]:
        """Return the worker's part."""

    @abstractmethod
    def facts(self, task: T, clients: int) -> Mapping[str, object]:
        """Return what `study check` prints of a study besides what all methods have.

        clients: How many are expected, where a study names none.
        """

    def warnings(self, task: T) -> Sequence[str]:
        """Return what the operator should know before such a study runs, in words."""
        del task
        return ()

    def told(self, study: Study, details: Mapping[str, Any]) -> Sequence[str]:
        """Return what a reader should see of an estimate's `details`, in lines of words."""
        del study, details
        return ()

    def of_clients(self, details: Mapping[str, Any]) -> Mapping[str, Mapping[str, float]]:
        """Return what an estimate's `details` say of single clients, by the digest of their id.

        Of each its `share` in [0, 1], its `distance` from the others, and `flag`: 1 if it is left
        out, else 0.
        """
        del details
        return {}

    @abstractmethod
    def sizes(self, task: T, records: int, clients: int) -> Sizes:
        """Return what formulas say of a study at so many records of so many clients."""

    @abstractmethod
    def outlook(self, task: T, records: int, clients: int) -> Outlook:
        """Return when intervals come, and how long they are at so many records of all clients."""

    @abstractmethod
    def design(self, study: Study, records: int, clients: int) -> Design:
        """Return what a study of this size should set, from public numbers alone.

        Raises ConfigError, PrivacyError if the study itself cannot be.
        """

    @abstractmethod
    def better(self, task: T, missed: Missed) -> Sequence[str]:
        """Return what would bring coverage to its level, in words; "" stands for more records."""

    def timetable(self, task: T, number: int) -> Timetable | None:
        """Return what each client releases in a round, from 0; None where nothing is planned."""
        del task, number
        return None

    def model_card(
        self, task: T, group: str, histories: Sequence[Vector], epsilon: float
    ) -> ModelCard | None:
        """Estimate, under privacy, how a group's records change; None where nothing asks for it.

        histories: Encoded responses of each client, NaN for an empty slot, each of shape (n,).
        epsilon: Of one record's whole history.

        Raises ConfigError, DataError or PrivacyError before anything is drawn.
        """
        del task, group, histories, epsilon
        return None

    def whole_log(self, task: T) -> str:
        """Return why a log must be folded from its beginning; empty where a part of it will do."""
        del task
        return ""

    def simulation(self, task: T, rng: np.random.Generator) -> Simulation | None:
        """Return a short cut from rows to estimates with noise of the same law, if there is one."""
        del task, rng
        return None
