"""Whole streams for coverage: releases at the newest model, folded, and the last estimate."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from benchmarks.autoregressive import Autoregressive
from benchmarks.grouped import Grouped
from pipeline.estimators.estimate import Estimate
from pipeline.messages.release import seal
from pipeline.methods import task_of as make_task
from pipeline.methods.renewable.client import RenewableTask
from pipeline.privacy.randomness import SeededStream
from pipeline.records.encoder import Arrays
from pipeline.release.model import round_model, start_model
from pipeline.release.privatise import disclose, privatise
from pipeline.stream.fold import Reducer
from pipeline.stream.in_process import OfflineRecord
from pipeline.stream.merge import estimate_of, slots_seen
from pipeline.stream.partition import Partition
from pipeline.study_file.load import parse_study
from pipeline.types import Vector

STUDY = """
[study]
name = "coverage"
[data]
response = {{ name = "y", positive = "1", negative = "0" }}
{scaling}
[data.features]
{features}
[estimator]
loss = "gdwd"
q = {q}
ridge = {ridge}
{bound}
{forgetting}
[privacy]
{privacy}
[window]
records = {records}
"""
NOISED = 'mechanism = "insecure-simulation"\nepsilon = {epsilon}\ndelta = 1e-5\nseed = 1'
RIDGE = 0.01


@dataclass(frozen=True)
class Cell:
    """A design of streams: p features, n records of a window, epsilon None for no privacy.

    Windows come from ten clients unless said otherwise; `kind` is that of the features, "ar" for
    those of `autoregressive`: unscaled, their norm bounded. Releases fade by `half_life`, in
    rounds; from round `flip` on the classes are exchanged.
    """

    features: int
    records: int
    rounds: int
    epsilon: float | None
    q: float = 1.0
    clients: int = 10
    kind: str = "fine"
    half_life: int | None = None
    flip: int | None = None

    @property
    def label(self) -> str:
        """What stands in front of its row."""
        budget = "open" if self.epsilon is None else f"epsilon {self.epsilon:g}"
        return (
            f"p={self.features} q={self.q:g} n={self.records} rounds={self.rounds} "
            f"{budget} {self.kind}"
        )

    @property
    def population(self) -> Grouped | Autoregressive:
        """Where its records come from."""
        if self.kind == "ar":
            return Autoregressive(self.features)
        return Grouped((self.features + 1) // 2, self.features // 2, self.kind)


@lru_cache(maxsize=64)
def task_of(cell: Cell) -> RenewableTask:
    """Return the task of its study."""
    population, reach, scaling, bound = cell.population, 1, "", ""
    if isinstance(population, Autoregressive):
        # ranges that no record passes: the norm bound alone cuts
        reach, scaling = 8, 'scaling = "none"'
        bound = f"norm_bound = {population.norm_bound}"
    forgetting = ""
    if cell.half_life is not None:
        records = cell.half_life * cell.clients * cell.records
        forgetting = f'forgetting = {{ half_life = {records}, of = "records" }}'
    names = "\n".join(f"x{i} = {{ min = -{reach}, max = {reach} }}" for i in range(cell.features))
    private = 'mechanism = "none"'
    if cell.epsilon is not None:
        private = NOISED.format(epsilon=cell.epsilon)
    text = STUDY.format(
        features=names, scaling=scaling, q=cell.q, ridge=RIDGE, bound=bound,
        forgetting=forgetting, privacy=private, records=cell.records,
    )  # fmt: skip
    task = make_task(parse_study(text))
    assert isinstance(task, RenewableTask)
    return task


@lru_cache(maxsize=64)
def target_of(cell: Cell) -> Vector:
    """Return what its streams estimate."""
    return cell.population.target(task_of(cell).loss, RIDGE)


def one_stream(cell: Cell, seed: int) -> tuple[Partition, Estimate]:
    """Run a stream to its end."""
    *_, last = rounds_of(cell, seed)
    return last


def rounds_of(cell: Cell, seed: int) -> Iterator[tuple[Partition, Estimate]]:
    """Run a stream; each round every client releases one window at the newest model."""
    task, population = task_of(cell), cell.population
    rng = np.random.default_rng([7, seed])
    reducer, partition, model = Reducer(task), Partition.empty(task), start_model(task.size)
    for number in range(cell.rounds):
        log = []
        for c in range(cell.clients):
            client = f"c{c}"
            x, y = population.draw(rng, cell.records)
            if cell.flip is not None and number >= cell.flip:
                y = -y
            if cell.epsilon is not None:
                noise = SeededStream(seed, client, number)
                sums = privatise(task, task.query(Arrays(x, y), model), noise)
                payload = seal(task, sums, client=client, ledger="l", seq=number)
            else:
                opened = disclose(task, task.open_query(Arrays(x, y), model))
                payload = seal(task, opened, client=client, ledger="l", seq=number)
            log.append(OfflineRecord(number * cell.clients + c, client.encode(), payload))
        letters = reducer.fold(partition, log)
        if letters:
            raise letters[0].fault
        estimate = estimate_of(task, [partition])
        seen = slots_seen([partition])
        model = round_model(number + 1, estimate.coefficients, estimate.weights, seen)
        yield partition, estimate
