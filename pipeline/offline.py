"""The whole pipeline in one process, without Kafka: windows, releases, fold, estimates.

It runs the same functions as clients and workers, in the order in which a live stream with no
delay would: every `publish.releases` releases a new model, which later windows linearise at.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from pipeline.errors import ConfigError
from pipeline.estimators.estimate import Estimate
from pipeline.local.encode import Row
from pipeline.local.model import Model, round_model
from pipeline.local.plan import Plan
from pipeline.messages.estimate import EstimateMessage
from pipeline.reducer import Partition, Reducer, combine, slots_seen
from pipeline.releasing import release_of


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

    Parameters
    ----------
    plan
        The study.

    Raises
    ------
    ConfigError
        If the study forgets by the time of the log: there is none here.
    """

    def __init__(self, plan: Plan) -> None:
        forgetting = plan.study.estimator.forgetting
        if forgetting is not None and forgetting.of == "seconds":
            raise ConfigError(
                'estimator.forgetting: of = "seconds" counts by the times that Kafka gives to '
                "releases, and there are none here; the operator must set "
                'of = "records", or run the study with `veilstream worker` and `produce`'
            )
        self._plan = plan
        self._reducer = Reducer(plan)
        self._sequences: dict[str, int] = {}
        self.partition = Partition.empty(plan)
        self.model: Model = plan.first_model
        self._since_model = 0

    def add(self, client: str, rows: Sequence[Row | None]) -> None:
        """Release and fold one window of one client; None stands for an empty slot."""
        seq = self._sequences.get(client, 0)
        self._sequences[client] = seq + 1
        payload = release_of(self._plan, rows, self.model, client=client, ledger="offline", seq=seq)
        record = OfflineRecord(self.partition.head.next_offset, client.encode(), payload)
        letters = self._reducer.fold(self.partition, [record])
        if letters:
            raise letters[0].fault
        self._since_model += 1
        if self._since_model >= self._plan.study.stream.publish.releases:
            estimate, _ = self.estimate(0.0)
            self.model = round_model(
                self.model.version + 1,
                estimate.expansion,
                estimate.weights,
                slots_seen([self.partition]),
            )
            self._since_model = 0

    def estimate(self, now: float) -> tuple[Estimate, EstimateMessage]:
        """Return the current estimate, and the message that a worker would publish.

        Raises
        ------
        NumericError
            If no finite estimate exists.
        """
        return combine(
            self._plan,
            {0: self.partition},
            topic=None,
            model_version=self.model.version or None,
            published_at=now,
        )


def run_windows(plan: Plan, windows: Iterable[tuple[str, Sequence[Row | None]]]) -> OfflineRun:
    """Run all windows, given as (client, rows), and return the run at its end."""
    run = OfflineRun(plan)
    for client, rows in windows:
        run.add(client, rows)
    return run


def cut(rows: Iterable[Row | None], slots: int) -> Iterator[list[Row | None]]:
    """Cut slots, None for an empty one, into windows; the last one may be short."""
    window: list[Row | None] = []
    for row in rows:
        window.append(row)
        if len(window) == slots:
            yield window
            window = []
    if window:
        yield window
