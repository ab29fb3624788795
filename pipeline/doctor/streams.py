"""One simulated stream: windows at the newest model, folded, and the last estimate.

Clients differ a little in how fast their records come, and the worker gives a model when one is
due. Where a method simulates streams by itself, every client releases one window in a round, all at
the same model, as in a live stream whose clients move at once.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass

import msgspec
import numpy as np

from pipeline.errors import ConfigError
from pipeline.estimators.estimate import Estimate
from pipeline.estimators.population import Population
from pipeline.methods import method_of, require_live, task_of
from pipeline.offline import OfflineRun
from pipeline.privacy.simulation import SeededStream
from pipeline.records.encode import Arrays
from pipeline.reducer.merging import estimate_of
from pipeline.release.task import Task
from pipeline.study.model import Study


@dataclass(frozen=True, slots=True)
class Size:
    """How large a stream is.

    records, clients: In all, both >= 1; records beyond the last full window are left out.
    """

    records: int
    clients: int

    def windows(self, task: Task) -> int:
        """Return how many windows they fill; ConfigError if they fill none."""
        count = self.records // task.slots
        if not count:
            raise ConfigError(
                f"--records: {self.records} do not fill one window; window.records is {task.slots}"
            )
        return count


def simulated(study: Study) -> Task:
    """Return the task of a study whose Gaussian noise is simulated, with the same deviations.

    ConfigError if its kind has no live stream, or aims at no fit of all records, it forgets by the
    clock, or has several paths.
    """
    require_live(study, "a simulated stream")
    if why := method_of(study).spec.no_reference_fit:
        raise ConfigError(
            f'estimator.kind: kind = "{study.estimator.kind}" cannot be simulated here, '
            f"because {why}, and a simulation draws each record once, so it knows no true "
            "values. Use `veilstream backtest` with your own records; `veilstream schedule` "
            "says which error is expected"
        )
    forgetting = study.estimator.forgetting
    if forgetting is not None and forgetting.of == "seconds":
        raise ConfigError(
            'estimator.forgetting: of = "seconds" needs the times of a log, and a simulation has '
            'none; ask with of = "records"'
        )
    if study.privacy.mechanism == "discrete-gaussian":
        privacy = msgspec.structs.replace(study.privacy, mechanism="insecure-simulation", seed=0)
        study = msgspec.structs.replace(study, privacy=privacy)
    task = task_of(study)
    if task.partition_strategy is not None:
        raise ConfigError(
            "stream.partitions: a simulation has one partition; set partitions = 1 and "
            'remove estimator.path.partitions in a copy of the study file. A "shared" '
            'path behaves as one path does. Of "pooled" paths each gets only its share '
            "of the records: give --records as many"
        )
    return task


def stream(population: Population, size: Size, seed: int, number: int) -> Estimate:
    """Return the last estimate of stream `number`; NumericError if no finite estimate exists."""
    releases = Releases(population, size.clients, seed, number)
    for _ in releases.models(size.records):
        pass
    return releases.estimate()


#: How far the pace of a client is from the mean, as a share, at most.
PACE = 0.3


class Releases:
    """Releases of clients that take turns as their windows are full.

    run: The study's state.
    """

    def __init__(self, population: Population, clients: int, seed: int, number: int) -> None:
        self._population, task = population, population.task
        self._rng, self._seed, self._number = np.random.default_rng([seed, number]), seed, number
        self.run = OfflineRun(task)
        self._names = list(task.clients[:clients])
        self._names = self._names or [f"c{i}" for i in range(clients)]
        paces = 1 + PACE * np.linspace(-1, 1, len(self._names) + 2)[1:-1]
        #: Share of all records that each client has.
        self._shares = paces / paces.sum()

    def models(self, records: int) -> Iterator[int]:
        """Release so many records of all clients; yield how many have come where a model is due.

        Those of open windows count, too. The model is made once the caller goes on.
        """
        task, run = self._population.task, self.run
        turns = [(0.0, client, 0) for client in range(len(self._names))]
        heapq.heapify(turns)
        while turns:
            at, client, size = heapq.heappop(turns)
            if at > records:
                return
            name = self._names[client]
            if size:
                self._release(name, size)
                if run.wait() is not None:
                    yield round(at)
                    run.move()
            size = run.room(name) or task.slots
            heapq.heappush(turns, (at + size / self._shares[client], client, size))

    def _release(self, name: str, size: int) -> None:
        run, noise = self.run, None
        if self._population.task.study.privacy.mechanism == "insecure-simulation":
            noise = SeededStream(self._seed, f"{self._number}/{name}", run.releases)
        rows = Arrays(*self._population.draw(self._rng, size))
        run.fold(name, run.release(name, rows, run.model, noise))

    def estimate(self) -> Estimate:
        """Return the estimate of the sums so far."""
        return estimate_of(self._population.task, self.run.partitions)
