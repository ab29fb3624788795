"""What a million records cost: bytes of the log, the client's and the worker's time, Redis.

`python -m benchmarks.million [--records N] [--rounds R]`. One client's stream in this process, by
the functions of client and worker: with windows that grow and noise that remembers, as by default,
and with windows of 250 records whose noise is independent, in turn, so that what else the machine
does falls on both. Prints both, per release and per million records, with the ratios of medians.
"""

from __future__ import annotations

import argparse
import statistics
import time
from dataclasses import dataclass, field

import numpy as np

from pipeline.methods import task_of
from pipeline.records.encoder import Arrays
from pipeline.release.model import Model, round_model
from pipeline.release.task import Task
from pipeline.stream.fold import Reducer
from pipeline.stream.in_process import OFFLINE, OfflineRecord
from pipeline.stream.partition import Partition
from pipeline.stream.release import Standing, Window, release_behind
from pipeline.study_file.load import parse_study

FEATURES = 6
STUDY = """
[study]
name = "million"
[data]
response = { name = "y", positive = "1", negative = "0" }
[data.features]
""" + "".join(f"x{i} = {{ min = -1, max = 1 }}\n" for i in range(FEATURES))
TABLES = """
[estimator]
loss = "logistic"
[privacy]
mechanism = "discrete-gaussian"
epsilon = 1.0
delta = 1e-6
"""
KINDS = {
    "grows and remembers": TABLES + "[window]\nrecords = 250\n",
    "fixed, independent": TABLES
    + "noise_memory = 0\nsplit = { gradient = 0.665, curvature = 0.285, counts = 0.05 }\n"
    + "[window]\nrecords = 250\ngrowth = 0\n",
}


@dataclass
class Cost:
    """Seconds of the processor, and bytes, of one stream."""

    releases: int = 0
    payload: int = 0
    log: int = 0
    stored: int = 0
    sums: float = 0.0
    noise: float = 0.0
    fold: float = 0.0
    payloads: list[bytes] = field(default_factory=list)


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    rng = np.random.default_rng(0)
    features = rng.uniform(-1, 1, (options.records, FEATURES))
    data = Arrays(
        features, np.where(features[:, 0] + rng.logistic(size=len(features)) > 0, 1.0, -1.0)
    )
    tasks = {name: task_of(parse_study(STUDY + text)) for name, text in KINDS.items()}
    found: dict[str, list[Cost]] = {name: [] for name in tasks}
    for _ in range(options.rounds):
        for name, task in tasks.items():
            found[name].append(cost_of(task, data))
    report(found, options.records)


def cost_of(task: Task, data: Arrays) -> Cost:
    """Release and fold all records, a model for every eight releases."""
    cost, standing, model, at = Cost(), Standing(), task.first_model, 0
    while at < len(data.responses):
        size = standing.room(task, model)
        block = Arrays(data.features[at : at + size], data.responses[at : at + size])
        began = time.process_time()
        sums = Window(task, lambda at=model: at)
        sums.take(block)
        query = sums.close()
        summed = time.process_time()
        payload, standing = release_behind(task, query, standing, client="c", ledger="l")
        cost.noise += time.process_time() - summed
        cost.sums += summed - began
        cost.payloads.append(payload)
        at += size
        if len(cost.payloads) % 8 == 0:
            model = moved(task, model, at)
    cost.releases = len(cost.payloads)
    cost.payload, cost.log = len(cost.payloads[0]), sum(map(len, cost.payloads))
    fold(task, cost)
    return cost


def moved(task: Task, model: Model, watermark: int) -> Model:
    """Return the next model, at a point that does not matter here."""
    point = np.full(task.size, 0.01 * (model.version + 1))
    return round_model(model.version + 1, point, (1.0, 1.0), watermark)


def fold(task: Task, cost: Cost) -> None:
    """Fold the log in batches of eight, as a worker that keeps up does."""
    state, reducer = Partition.empty(task), Reducer(task, trust=OFFLINE)
    log = [OfflineRecord(i, b"c", payload) for i, payload in enumerate(cost.payloads)]
    began = time.process_time()
    for start in range(0, len(log), 8):
        letters = reducer.fold(state, log[start : start + 8])
        assert not letters, letters[0].fault
        state.fields(everything=False)
        state.stored()
    cost.fold = time.process_time() - began
    cost.stored = sum(map(len, state.fields(everything=True).values()))


def report(found: dict[str, list[Cost]], records: int) -> None:
    """Print medians, and by how much the first kind differs from the second."""
    one, other = (
        {
            "releases": middle([c.releases for c in costs]),
            "bytes of a release": middle([c.payload for c in costs]),
            "bytes of the log": middle([c.log for c in costs]),
            "bytes in Redis": middle([c.stored for c in costs]),
            "us of a release's noise and bytes": 1e6
            * middle([c.noise / c.releases for c in costs]),
            "us of a release's fold": 1e6 * middle([c.fold / c.releases for c in costs]),
            "s of sums": middle([c.sums for c in costs]),
            "s of noise and bytes": middle([c.noise for c in costs]),
            "s of fold": middle([c.fold for c in costs]),
        }
        for costs in found.values()
    )
    print(f"{records:,} records".ljust(36), *(name.rjust(22) for name in found), "ratio".rjust(9))
    for name, value in one.items():
        print(f"{name:36} {value:22,.4g} {other[name]:22,.4g} {value / other[name]:9.3f}")


def middle(values: list[float] | list[int]) -> float:
    """Return the median."""
    return float(statistics.median(values))


if __name__ == "__main__":
    main()
