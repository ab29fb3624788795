"""The whole pipeline in one process, without Kafka: windows, releases, fold, estimates.

It runs the same functions as clients and workers, in the order in which a live stream with no
delay would: every `publish.releases` releases a new model, which later windows linearise at. All
releases are in one partition, unless the order in several changes the estimate.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from pipeline.errors import ConfigError
from pipeline.estimators.estimate import Estimate
from pipeline.messages.estimate import EstimateMessage
from pipeline.messages.topics import partition_of
from pipeline.privacy.randomness import SecureStream
from pipeline.records.encode import Row, Rows
from pipeline.reducer import (
    OFFLINE,
    Partition,
    Reducer,
    combine,
    estimate_of,
    expansion_of,
    model_after,
    slots_seen,
)
from pipeline.release.model import Model
from pipeline.release.task import Task
from pipeline.releasing import release_of
from pipeline.types import Vector


@dataclass(frozen=True, slots=True)
class OfflineRecord:
    """A record of a log that exists in memory only."""

    offset: int
    key: bytes
    value: bytes
    timestamp: int = 0
    headers: tuple[tuple[str, bytes | None], ...] = ()


class OfflineRun:
    """One study from windows to estimates.

    `add` does a window from end to end. Whoever puts time between the steps calls them one by one:
    `release` at the client, `fold` and `publish` at the worker.

    trace: As `Server.empty` has it: of gradient descent all iterates, 8 d bytes for each record,
        for the interval that needs them.
    timed: Whether the caller gives `fold` the times of releases.

    model: The newest one.
    waiting: Releases folded since the last publication.

    Raises ConfigError if the study forgets by the time of the log, and there is none.
    """

    def __init__(self, task: Task, *, trace: bool = False, timed: bool = False) -> None:
        forgetting = task.study.estimator.forgetting
        if forgetting is not None and forgetting.of == "seconds" and not timed:
            raise ConfigError(
                'estimator.forgetting: of = "seconds" counts by the times that Kafka gives to '
                "releases, and there are none here; the operator must set "
                'of = "records", run the study with `veilstream worker` and `produce`, or give '
                "`veilstream backtest` an --event-time"
            )
        self._task = task
        self._reducer = Reducer(task, trust=OFFLINE)
        self._sequences: dict[str, int] = {}
        count = task.study.stream.partitions if task.partition_strategy else 1
        self.partitions = [Partition.empty(task, trace=trace) for _ in range(count)]
        self.model: Model = task.first_model
        self.waiting = 0

    @property
    def partition(self) -> Partition:
        """The first partition, and the only one unless the study has several paths."""
        return self.partitions[0]

    def add(self, client: str, rows: Rows) -> None:
        """Release and fold one window of one client."""
        self.fold(client, self.release(client, rows, self.model))
        if self.waiting >= self._task.study.stream.publish.releases:
            self.move()

    def release(
        self, client: str, rows: Rows, model: Model, noise: SecureStream | None = None
    ) -> bytes:
        """Return the next release of a client, at the model that it knows; `noise` as given."""
        seq = self._sequences.get(client, 0)
        self._sequences[client] = seq + 1
        model = model.at(self._number(client))
        return release_of(self._task, rows, model, noise, client=client, ledger="offline", seq=seq)

    def fold(self, client: str, payload: bytes, milliseconds: int = 0) -> None:
        """Fold a release that comes at this time, in milliseconds since 1970.

        PayloadError if it is none of this study.
        """
        self.fold_all([(client, payload)], milliseconds)

    def fold_all(self, arrivals: Sequence[tuple[str, bytes]], milliseconds: int = 0) -> None:
        """Fold releases, each with its client, that come together; PayloadError as `fold`."""
        for number, partition in enumerate(self.partitions):
            here = (one for one in arrivals if self._number(one[0]) == number)
            log = [
                OfflineRecord(offset, client.encode(), payload, milliseconds)
                for offset, (client, payload) in enumerate(here, partition.head.next_offset)
            ]
            if log and (letters := self._reducer.fold(partition, log)):
                raise letters[0].fault
        self.waiting += len(arrivals)

    def publish(self) -> Estimate:
        """Make the current estimate the newest model, and return it.

        NumericError if no finite estimate exists; then the model stays.
        """
        estimate = estimate_of(self._task, self.partitions)
        self._lead((estimate.expansion, estimate.weights))
        return estimate

    def move(self) -> None:
        """Make the newest model, without an estimate of intervals; NumericError as `publish`."""
        self._lead(expansion_of(self._task, self.partitions))

    def _lead(self, expansion: tuple[Vector, tuple[float, float]]) -> None:
        self.model = model_after(
            self._task,
            dict(enumerate(self.partitions)),
            expansion,
            self.model.version + 1,
            slots_seen(self.partitions),
        )
        self.waiting = 0

    def _number(self, client: str) -> int:
        return partition_of(client.encode(), len(self.partitions))

    def estimate(self, now: float) -> tuple[Estimate, EstimateMessage]:
        """Return the current estimate, and the message that a worker would publish.

        NumericError if no finite estimate exists.
        """
        return combine(
            self._task,
            dict(enumerate(self.partitions)),
            topic=None,
            model_version=self.model.version or None,
            published_at=now,
        )


def run_windows(task: Task, windows: Iterable[tuple[str, Rows]]) -> OfflineRun:
    """Run all windows, given as (client, rows), and return the run at its end."""
    run = OfflineRun(task)
    for client, rows in windows:
        run.add(client, rows)
    return run


def by_client(
    rows: Iterable[tuple[str, Row | None]], slots: int
) -> Iterator[tuple[str, list[Row | None]]]:
    """Cut the slots of several clients, None for an empty one, into windows of each client.

    A window comes when it is full, those that stay open come at the end.
    """
    windows: dict[str, list[Row | None]] = {}
    for client, row in rows:
        window = windows.setdefault(client, [])
        window.append(row)
        if len(window) == slots:
            yield client, windows.pop(client)
    yield from windows.items()
