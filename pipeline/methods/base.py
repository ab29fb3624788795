"""What a method of estimation is to the rest: the seam between the log and the mathematics.

Everything around it (decoding, dead letters, duplicates, ages, partitions, storage) is the same for
all methods. A method says what its releases hold, how they fold into a state, and what the state
says. Of one that runs over a file `OfflineMethod` is all that `fit` and `backtest --beside` ask.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Generic, Literal, Protocol, TypeVar

from pipeline.estimators.estimate import Estimate
from pipeline.estimators.forgetting import State, Weighed
from pipeline.privacy.guarantee import Guarantee
from pipeline.records.encoder import Arrays
from pipeline.release.layout import Rows
from pipeline.release.model import Part
from pipeline.release.task import Task
from pipeline.study.model import Study
from pipeline.study.reference import Seen, narrowed
from pipeline.types import Matrix, Vector

S = TypeVar("S", bound=State)
T = TypeVar("T", bound=Task)


class Server(ABC, Generic[S]):
    """A method at the worker, for one study; pure.

    Folding a batch equals folding its releases one by one in the order of the log, bit for bit.
    Batches are rows of the study's form that `messages.release.Decoder` found sound: their numbers
    are within the bounds of the task's layout. `S` is its state.
    """

    #: Whether the order of releases shows in the state; else any order gives the same bits.
    ordered: bool = False
    #: Why a log must be folded from its beginning; empty where a part of it will do.
    from_start: ClassVar[str] = ""

    def slots(self, rows: Rows) -> int:
        """Return how many record slots some releases have: by default as they say."""
        return int(rows["records"].sum())

    @abstractmethod
    def empty(self) -> S:
        """Return the state before the first release."""

    @abstractmethod
    def read(self, fields: dict[str, bytes]) -> S:
        """Rebuild a state from all fields that its `encode` gave.

        Raises StateError if a field is missing, unknown or cannot be read.
        """

    @abstractmethod
    def fold(self, state: S, rows: Rows) -> None:
        """Add releases to a state, in the order of the log."""

    @abstractmethod
    def estimate(
        self, parts: Weighed[S], partitions: Sequence[int], *, missing: int = 0
    ) -> Estimate:
        """Return the estimate of some buckets with their weights, all partitions merged.

        partitions: The numbers of those that have begun, in the order in which they were merged.
        missing: Runs of releases that never came, or did not count, below numbers that did.
        """

    def next_point(self, parts: Weighed[S]) -> tuple[Vector, tuple[float, float]]:
        """Return where clients linearise next, shape (d,), and the weights of the classes.

        As the estimate of the same sums says; a method that has it cheaper overrides this.
        """
        estimate = self.estimate(parts, ())
        return estimate.expansion, estimate.weights

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


#: The largest epsilon that a study can have.
LARGEST_EPSILON = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """What a study file may say of a kind, as data.

    kind: What `estimator.kind` says.
    title: The method in the field's words.
    gives: What a study loses with another kind that finds more, in a few words.
    losses: What it can minimise.
    table: The table under [estimator] that has its own keys: "method", "path"; None: it has none.
    features: Whether records have features beside the response.
    penalised: Whether there is a ridge; where there is none, its default is 0.
    personal_levels: Whether single records can have budgets of their own (`privacy.personal`).
    server_keys: Keys that only the worker reads, with what they decide: a replay may change them.
    interval_key: The key that chooses among kinds of intervals; empty: there is one kind.
    template: What the file of a new study says in other tables than the common template, by the
        name of the table; `{clients}` stands for how many are expected.
    needs_noise: Why its studies have no stream without noise, and what to do instead; empty: they
        have one.
    no_reference_fit: Why a fit to all records at once is nothing that its estimates aim at; empty:
        it is.
    """

    kind: str
    title: str
    losses: tuple[str, ...]
    table: str | None = None
    features: bool = True
    penalised: bool = True
    personal_levels: bool = False
    server_keys: Mapping[str, str] = field(default_factory=dict)
    interval_key: str = ""
    gives: str = ""
    template: Mapping[str, str] = field(default_factory=dict)
    needs_noise: str = ""
    no_reference_fit: str = ""


@dataclass(frozen=True, slots=True)
class Exact:
    """An interval that knows all but the noise and the chance of its own records.

    With this noise none is shorter on average. All numbers are of the widest coefficient, for
    features as they are supposed to be.

    half: Half its length at the size that was asked for, in the unit in which estimates print it.
    wanted: Half the length at which it begins to say something, in that unit: half a logit, or half
        a standard deviation of the residuals.
    records: Record slots after which it is as short as that.
    ready: Record slots after which estimates are "ready" at the latest.
    """

    half: float
    wanted: float
    records: int
    ready: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What formulas say of a study at a number of records, from public numbers or a sample.

    latest: Record slots after which the ridge alone is enough for intervals of slopes; None: no
        number of them is. What has no ridge, the intercept, and slopes that go with it may need
        more.
    usual: The same for independent features that are as their ranges and typical values say; where
        `first` is known, from which on four of five such studies have them.
    first: After which half of such studies have had one at all; None where no formula knows it.
    whole, late: From which on every coefficient has one, and the names of those that come late.
    intercept: Record slots after which the intercept has an interval, too, for such features; None:
        it needs no more than slopes do, or no number of records is known to be enough.
    narrow: Where `latest` is None: record slots before which there are hardly any if features use a
        part of their ranges alone; None: no formula knows it.
    usual_half: Half the length of a slope's interval at the size that was asked for, for such
        features, in the unit in which estimates print it. None where no formula knows it.
    tenth: `first`, or `usual`, if numbers filled a tenth of their ranges; None: it is not known.
    seen: Whether it is of records that were seen, and not of what ranges and typical values say.
    why: What it hangs on, in words; empty if there is nothing to say.
    exact: Of a method whose noise is that of single records; None for others.
    classes: Record slots after which the noised counts of both classes stand out of their noise, if
        classes are as frequent as the study guesses; `latest`, `usual` and `intercept` are no less.
        None: nothing waits for that.
    kept: Share that the ridge leaves of a slope, for such features: the median over slopes, in [0,
        1]. None: there is no ridge, or no formula knows it.
    ridge, kept_by_ridge: Where there is none, the least ridge that alone is enough at the size that
        was asked for, and the share that it would leave of a slope.
    slope_error: Standard error of a slope from the noise alone, in the unit in which estimates
        print it.
    cloud: Variance of the linear predictor under the iterate's jitter, over its public scale: the
        largest slope for losses of numbers, 1 for classes. Formulas hold where it is small.
    relative_bias: Of logistic coefficients: by what share the jitter makes them too large.
    sooner: What makes intervals come sooner besides more records or a larger epsilon, in words.
    remedies: What brings coverage to its level where it is missed, in words; "" stands for more
        records.
    bias_remedies: The same where estimates miss the target; empty: as `remedies`.
    facts: What `study check` prints of the study besides what all methods have.
    warnings: What the operator should know before such a study runs, in words.
    """

    latest: int | None
    usual: int
    usual_half: float | None = None
    tenth: int | None = None
    seen: bool = False
    why: str = ""
    intercept: int | None = None
    exact: Exact | None = None
    classes: int | None = None
    narrow: int | None = None
    kept: float | None = None
    first: int | None = None
    whole: int | None = None
    late: tuple[str, ...] = ()
    ridge: float | None = None
    kept_by_ridge: float | None = None
    slope_error: float | None = None
    cloud: float | None = None
    relative_bias: float | None = None
    sooner: tuple[str, ...] = ()
    remedies: tuple[str, ...] = ("more records",)
    bias_remedies: tuple[str, ...] = ()
    facts: Mapping[str, object] = field(default_factory=dict)
    warnings: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Proposal:
    """What a method proposes for a study of a size.

    changes: Keys of the study file, as in "window.records", with their values.
    reasons: Why, by key.
    """

    changes: Mapping[str, Any] = field(default_factory=dict)
    reasons: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Timetable:
    """A table for people and programs: what a method plans, or plans beside each other.

    rows: All with the same keys.
    shown: Which of them people are shown.
    facts: What holds for all of them.
    notes: What the reader should know, in words.
    why: How the rows come about, in words, for who asks.
    """

    rows: Sequence[Mapping[str, Any]]
    shown: Sequence[str]
    facts: Mapping[str, Any]
    notes: Sequence[str] = ()
    why: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class ModelCard:
    """How records change, estimated under differential privacy.

    text: Lines of a study file.
    facts: Its numbers, for programs.
    notes: What the reader should know, in words.
    """

    text: str
    facts: Mapping[str, Any]
    notes: Sequence[str]


class Report:
    """An estimate's `details` for people; this one has nothing to say."""

    def lines(self, study: Study, details: Mapping[str, Any]) -> Sequence[str]:
        """Return what a reader should see, in lines of words."""
        del study, details
        return ()

    def clients(self, details: Mapping[str, Any]) -> Mapping[str, Mapping[str, float]]:
        """Return what is said of single clients, by the digest of their id.

        Of each its `share` in [0, 1], its `distance` from the others, and `flag`: 1 if it is left
        out, else 0.
        """
        del details
        return {}


class Rounds(Protocol):
    """Of a method that plans who releases when: for `veilstream schedule`."""

    def timetable(self, task: Any, number: int) -> Timetable:
        """Return what each client releases in a round, from 0."""

    def model_card(
        self, task: Any, group: str, histories: Sequence[Vector], epsilon: float
    ) -> ModelCard:
        """Estimate, under privacy, how a group's records change.

        histories: Encoded responses of each client, NaN for an empty slot, each of shape (n,).
        epsilon: Of one record's whole history.

        Raises ConfigError, DataError or PrivacyError before anything is drawn.
        """


class Method(ABC, Generic[T]):
    """A way of estimating: what `estimator.kind` names, with tasks `T` of its own.

    report: What its estimates say besides coefficients.
    rounds: What it plans round by round; None: nothing.
    """

    spec: ClassVar[Spec]
    report: ClassVar[Report] = Report()
    rounds: ClassVar[Rounds | None] = None

    def resolve(self, study: Study, given: Container[str]) -> Study:
        """Refuse what the method does not allow, and fill in what follows from other keys.

        given: Keys of [estimator] that the study's file has.

        Raises ConfigError, naming the key, what is allowed and the way out.
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
        """Put into a study's meaning, of which the revision is a hash, what the method adds.

        Keys that change no release are taken out.
        """

    def intervals(self, study: Study) -> Sequence[str]:
        """Return the kinds of intervals that can be had side by side; none if there is one."""
        del study
        return ()

    @abstractmethod
    def task(self, study: Study, revision: str = "", level: str | None = None) -> T:
        """Return the public numbers of a study; for the others and errors see `Task`."""

    @abstractmethod
    def server(self, task: T) -> Server[Any]:
        """Return the worker's part."""

    @abstractmethod
    def plan(self, task: T, records: int, clients: int, seen: Seen | None = None) -> Plan:
        """Return what formulas say of a study at so many records of so many clients.

        clients: How many are expected, where a study names none.
        seen: Records like those that are expected; None: as ranges and typical values say.
        """

    def outlook(self, task: T, records: int, clients: int, seen: Seen | None = None) -> Plan:
        """Return the plan that every command prints; parameters as of `plan`."""
        found = self.plan(task, records, clients, seen)
        if seen is not None or not (task.study.noised and task.encoding.columns):
            return replace(found, seen=seen is not None)
        narrow = self.plan(task, records, clients, narrowed(task.study))
        first, less = (one.first or one.usual for one in (found, narrow))
        return replace(found, tenth=less if less > first else None)

    def propose(
        self, study: Study, records: int, clients: int, seen: Seen | None = None
    ) -> Proposal:
        """Return what a study of this size should set; parameters as of `plan`.

        Raises ConfigError, PrivacyError if the study itself cannot be.
        """
        del study, records, clients, seen
        return Proposal()


#: "converged": the stopping rule was met; "unconverged": it was not, or there is no minimiser;
#: "one-pass": an online method, which has no stopping rule.
FitStatus = Literal["converged", "unconverged", "one-pass"]
#: Encoded record slots of each client in the order of its source.
Clients = Mapping[str, Arrays]


@dataclass(frozen=True, slots=True)
class OfflineFit:
    """What a method gives over records that are all at hand.

    coefficients: Shape (d,), the intercept first, on encoded features.
    status, reason: How far to trust the coefficients, and why there are no intervals.
    rounds: Steps over all records, or batches of an online method.
    score: Largest entry of the mean penalised gradient over all records, each in units of its
        column's root mean square; None where the method is noised, as noise does not cover it.
    weights: Class weights in the end: negative, positive.
    covariance: Shape (d, d), or None where the method has no valid intervals.
    """

    coefficients: Vector
    status: FitStatus
    reason: str
    rounds: int
    score: float | None = None
    weights: tuple[float, float] = (1.0, 1.0)
    covariance: Matrix | None = None


class OfflineMethod(Protocol):
    """A method of a room; its own keys are the table [estimator.method]."""

    @property
    def label(self) -> str:
        """Its name in its paper; empty if it has none."""

    @property
    def meaning(self) -> str:
        """The method in the field's words."""

    @property
    def needs(self) -> str:
        """Why it cannot run on a live stream of releases."""

    @property
    def online(self) -> bool:
        """Whether it sees each record once, in batches."""

    def check(self, study: Study) -> None:
        """Raise ConfigError where the study says what the method does not allow."""

    def task(self, study: Study, revision: str = "", level: str | None = None) -> Task:
        """Return the public numbers of a study."""

    def guarantee(self, task: Task, clients: int | None = None) -> Guarantee:
        """Return what it keeps private; `clients` is None where nobody knows their number yet."""

    def fit(self, task: Task, clients: Clients) -> OfflineFit:
        """Run it over all records."""

    def path(self, task: Task, clients: Clients) -> Iterator[Vector]:
        """Yield the coefficients of an online method after each batch: window b of every client."""

    def beside(self, study: Study, seed: int) -> Study:
        """Return a study with this method for the same data and loss, unchecked: the usual keys."""
