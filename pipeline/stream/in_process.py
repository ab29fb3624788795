"""The whole pipeline in one process, without Kafka: windows, releases, fold, estimates.

It runs the same functions as clients and workers, in the order in which a live stream with no
delay would: a new model whenever one is due by `Task.rhythm`, which later windows linearise at. All
releases are in one partition, unless the order in several changes the estimate.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from pipeline.errors import ConfigError
from pipeline.estimators.estimate import Estimate
from pipeline.messages.estimate import EstimateMessage
from pipeline.messages.topics import partition_of
from pipeline.privacy.randomness import SecureStream
from pipeline.records.encoder import Row, Rows, stack
from pipeline.release.model import Model
from pipeline.release.task import Task
from pipeline.stream.fold import OFFLINE, Reducer
from pipeline.stream.merge import (
    combine,
    estimate_of,
    expansion_of,
    model_after,
    slots_seen,
    start_is_over,
)
from pipeline.stream.partition import Partition
from pipeline.stream.release import Standing, Window, release_behind, release_of
from pipeline.types import Vector

#: The ledger that releases of a process by itself name.
LEDGER = "offline"


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

    timed: Whether the caller gives `fold` the times of releases.

    model: The newest one.
    waiting: Releases folded since the last publication.

    Raises ConfigError if the study forgets by the time of the log, and there is none.
    """

    def __init__(self, task: Task, *, timed: bool = False) -> None:
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
        self._standings: dict[str, Standing] = {}
        self._open: dict[str, _Open] = {}
        count = task.study.stream.partitions if task.partition_strategy else 1
        self.partitions = [Partition.empty(task) for _ in range(count)]
        self.model: Model = task.first_model
        self.waiting, self._came = 0, Counter[str]()

    @property
    def partition(self) -> Partition:
        """The first partition, and the only one unless the study has several paths."""
        return self.partitions[0]

    def take(self, client: str, rows: Iterable[Row | None]) -> None:
        """Take the next slots of a client, None for an empty one, and release what they fill."""
        for row in rows:
            held = self._open.get(client)
            if held is None:
                size = self.room(client) if self._task.chained else 0
                held = self._open[client] = _Open(size or self._task.slots)
            held.rows.append(row)
            if len(held.rows) == self._task.slots:
                held.model = self.model
            if len(held.rows) == held.size:
                self._close(client)

    def close(self) -> None:
        """Release what waits in windows that are not full, in the order of their first slots."""
        for client in list(self._open):
            self._close(client)

    def _close(self, client: str) -> None:
        # taken out first: what a fault interrupts must not be released a second time
        held = self._open.pop(client)
        self.add(client, held.rows, held.model if self._task.chained else None)

    @property
    def releases(self) -> int:
        """How many releases have been folded."""
        return sum(partition.head.next_offset for partition in self.partitions)

    @property
    def waits(self) -> bool:
        """Whether there are slots that no release holds yet."""
        return bool(self._open)

    def room(self, client: str) -> int:
        """Return how many slots the client's next window has, as `Standing.room`."""
        return self._standing(client).room(self._task, self.model.at(self._number(client)))

    def _standing(self, client: str) -> Standing:
        return self._standings.get(client, Standing())

    def add(self, client: str, rows: Rows, model: Model | None = None) -> None:
        """Release and fold one window of one client, at the newest model unless told another."""
        self.fold(client, self.release(client, rows, model or self.model))
        if self.wait() is not None:
            self.move()

    def wait(self) -> float | None:
        """Return how long after the last model the next one is due, as `Rhythm.wait`."""
        if not (self.model.version or start_is_over(self._task, self.partitions)):
            return None
        # where each window stands by itself, none waits for a model here
        most = max(self._came.values(), default=0) if self._task.chained else 0
        return self._task.rhythm.wait(
            self.model.watermark, slots_seen(self.partitions), self.waiting, most
        )

    def release(
        self, client: str, rows: Rows, model: Model, noise: SecureStream | None = None
    ) -> bytes:
        """Return the next release of a client, at the model that it knows; `noise` as given."""
        standing, task = self._standing(client), self._task
        model = model.at(self._number(client))
        if task.chained:
            sums = Window(task, lambda: model)
            sums.take(stack(rows, task.size - 1))
            payload, self._standings[client] = release_behind(
                task, sums.close(), standing, noise, client=client, ledger=LEDGER
            )
            return payload
        self._standings[client] = Standing(standing.seq + 1, standing.held + task.slots)
        return release_of(task, rows, model, noise, client=client, ledger=LEDGER, seq=standing.seq)

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
        self._came.update(client for client, _ in arrivals)

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
        self._came.clear()

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


@dataclass(slots=True)
class _Open:
    """A window that fills, and the newest model as its first block did."""

    size: int
    rows: list[Row | None] = field(default_factory=list)
    model: Model | None = None
