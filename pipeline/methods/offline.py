"""What a method offers that runs over a file: `fit` and `backtest --beside` ask for no more."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, Protocol, cast

from pipeline.errors import ConfigError
from pipeline.methods import OFFLINE, load
from pipeline.privacy.guarantee import Guarantee
from pipeline.records.encoder import Arrays
from pipeline.release.task import Task
from pipeline.study.model import Study
from pipeline.types import Matrix, Vector

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

    def guarantee(self, task: Task, clients: int | None = None) -> Guarantee:
        """Return what it keeps private; `clients` is None where nobody knows their number yet."""

    def fit(self, task: Task, clients: Clients) -> OfflineFit:
        """Run it over all records."""

    def path(self, task: Task, clients: Clients) -> Iterator[Vector]:
        """Yield the coefficients of an online method after each batch: window b of every client."""

    def beside(self, study: Study, seed: int) -> Study:
        """Return a study with this method for the same data and loss, unchecked: the usual keys."""


def offline_method(study: Study) -> OfflineMethod | None:
    """Return the method of a study that runs over a file alone; None of one that runs live."""
    kind = study.estimator.kind
    return cast("OfflineMethod", load(kind)) if kind in OFFLINE else None


def offline_methods(kinds: Iterable[str], option: str) -> list[OfflineMethod]:
    """Return methods by their kinds.

    Raises ConfigError if one is unknown, naming the option that it came with, and all that are
    known.
    """
    for kind in kinds:
        if kind not in OFFLINE:
            raise ConfigError(f"{option}: no method {kind!r}; allowed: {', '.join(OFFLINE)}")
    return [load(kind) for kind in kinds]


def guarantee_of(task: Task) -> Guarantee:
    """Return what a study keeps private, whatever its kind.

    Raises ConfigError, PrivacyError if the noise of its method cannot be scaled with these
    parameters.
    """
    method = offline_method(task.study)
    return task.budget.guarantee if method is None else method.guarantee(task)
