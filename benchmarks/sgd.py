"""Processor time of locally private gradient descent, beside River and scikit-learn.

`python -m benchmarks.sgd [--rounds R] [--profile]`. One thread, d = 10 coefficients, releases of
100 records, discrete Gaussian noise. All parts run in turn in every round, so that other load on
the machine meets all of them alike:

- "path": the worker's update from arrays, with the diagonal of random scaling and PPI-1's sums;
- "fold": the worker from payload bytes to its state, checks and duplicates included;
- "client": gradients, noise and payload of a window of encoded records;
- River's `LinearRegression.learn_one`, scikit-learn's `SGDRegressor.partial_fit` for every record
  and for every 100: one path of plain gradient descent, without noise, intervals or messages.

Prints records per second and writes `benchmarks/results/sgd.json`.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from river.linear_model import LinearRegression
from sklearn.linear_model import SGDRegressor
from threadpoolctl import threadpool_limits

from benchmarks.load import task_of
from pipeline.linalg import pack_upper
from pipeline.methods.ldp_sgd.client import GradientTask
from pipeline.methods.ldp_sgd.path import SgdPath
from pipeline.methods.ldp_sgd.step_rule import rule_of
from pipeline.records.encoder import Row
from pipeline.release.model import round_model
from pipeline.release.task import Task
from pipeline.stream.fold import Reducer
from pipeline.stream.partition import Partition
from pipeline.stream.release import release_of

RESULTS = Path(__file__).parent / "results"
SIZE, BLOCK = 10, 100
TARGETS = {"path": 5e6, "fold": 1e6, "client": 5e5}


@dataclass(frozen=True, slots=True)
class LogEntry:
    """A record of the log, as a consumer hands it over."""

    offset: int
    key: bytes
    value: bytes
    timestamp: int = 1000
    headers: tuple[tuple[str, bytes], ...] = ()


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--profile", action="store_true", help="cProfile of path, fold and client")
    options = parser.parse_args()
    # one thread, so that processor time is time
    threadpool_limits(1)
    task = task_of("bench-path", kind="ldp-sgd")
    assert isinstance(task, GradientTask)
    parts = parts_of(task)
    if options.profile:
        for name in TARGETS:
            print(name)
            cProfile.runctx("parts[name][1]()", {"parts": parts, "name": name}, {}, sort="tottime")
        return
    rates: dict[str, list[float]] = {name: [] for name in parts}
    for part in parts.values():
        part[1]()
    for _ in range(options.rounds):
        for name, (records, run) in parts.items():
            began = time.process_time()
            run()
            rates[name].append(records / (time.process_time() - began))
    report(rates, options.rounds)


def report(rates: dict[str, list[float]], rounds: int) -> None:
    """Print records per second, and write them down."""
    rows = {}
    for name, found in rates.items():
        target = TARGETS.get(name)
        row: dict[str, float | bool | None] = {
            "min": min(found), "median": statistics.median(found), "max": max(found),
            "over_river": statistics.median(
                a / b for a, b in zip(found, rates["river-record"], strict=True)
            ),
            "target": target,
            "met": None if target is None else statistics.median(found) >= target,
        }  # fmt: skip
        rows[name] = row
        wanted = "" if target is None else f"   target {target:,.0f}"
        print(
            f"{name:18s} {row['median']:12,.0f} records/s (min {row['min']:,.0f}, max "
            f"{row['max']:,.0f}), {row['over_river']:,.1f} times River{wanted}"
        )
    result = {"size": SIZE, "records_per_release": BLOCK, "rounds": rounds,
              "records_per_processor_second": rows}  # fmt: skip
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "sgd.json").write_text(json.dumps(result, indent=1) + "\n")


def parts_of(task: GradientTask) -> dict[str, tuple[int, Callable[[], object]]]:
    """Return what is timed, with the number of records that one call takes."""
    rng = np.random.default_rng(1)
    features = rng.uniform(-1, 1, (100 * BLOCK, SIZE - 1))
    responses = features.sum(axis=1) + rng.normal(size=len(features))
    dicts = [dict(enumerate(row.tolist())) for row in features[: 20 * BLOCK]]
    log = log_of(task, features, responses, releases=2000)
    return {
        "path": (2_000_000, path_part(task, rng, releases=20_000)),
        "fold": (len(log) * BLOCK, lambda: folded(task, log)),
        "client": (40_000, client_part(task, features, responses, releases=400)),
        "river-record": (len(dicts), lambda: by_river(dicts, responses)),
        "sklearn-record": (10 * BLOCK, lambda: by_sklearn(features[: 10 * BLOCK], responses, 1)),
        "sklearn-block": (len(features), lambda: by_sklearn(features, responses, BLOCK)),
    }


def path_part(task: GradientTask, rng: np.random.Generator, releases: int) -> Callable[[], object]:
    """Return the update of a path past its burn-in, 500 releases at a time."""
    path = SgdPath(rule_of(task))
    channels, scaling = task.channels, path.rule.scaling
    assert scaling is not None
    assert channels.curvature is not None
    gradients = rng.normal(0, channels.gradient.standard_deviation, (500, BLOCK, SIZE))
    points = rng.normal(0, 0.1, (500, SIZE))
    noise = rng.normal(0, channels.curvature.standard_deviation, (500, path.rule.extra))
    curvatures = BLOCK * pack_upper(scaling.reference) + noise
    path.fold(gradients, points, extra=curvatures)

    def run() -> None:
        mine = path.copy()
        for _ in range(releases // 500):
            mine.fold(gradients, points, extra=curvatures)
        if mine.diverged is not None:
            raise AssertionError("the path has diverged, and stands still")

    return run


def log_of(
    task: Task, features: np.ndarray, responses: np.ndarray, releases: int
) -> list[LogEntry]:
    """Return a log of one client, made at models near zero."""
    rng, windows = np.random.default_rng(2), windows_of(features, responses)
    log = []
    for i in range(releases):
        model = round_model(i, rng.normal(0, 0.1, SIZE), (1.0, 1.0), max(i - 1, 0) * BLOCK)
        payload = release_of(task, windows[i % len(windows)], model, client="a", ledger="l", seq=i)
        log.append(LogEntry(i, b"a", payload))
    return log


def folded(task: Task, log: list[LogEntry]) -> Partition:
    """Fold a log in batches of 500."""
    partition, reducer = Partition.empty(task), Reducer(task)
    for start in range(0, len(log), 500):
        if reducer.fold(partition, log[start : start + 500]):
            raise AssertionError("a release was set aside")
    return partition


def client_part(
    task: Task, features: np.ndarray, responses: np.ndarray, releases: int
) -> Callable[[], object]:
    """Return the making of payloads."""
    windows = windows_of(features, responses)
    model = round_model(7, np.full(SIZE, 0.1), (1.0, 1.0), 600)

    def run() -> None:
        for i in range(releases):
            rows = windows[i % len(windows)]
            release_of(task, rows, model, client="a", ledger="l", seq=i)

    return run


def windows_of(features: np.ndarray, responses: np.ndarray) -> list[list[Row]]:
    """Return encoded records, a window at a time."""
    return [
        [Row(features[i], float(responses[i]), 0) for i in range(start, start + BLOCK)]
        for start in range(0, len(features), BLOCK)
    ]


def by_river(dicts: list[dict[int, float]], responses: np.ndarray) -> None:
    """Learn one record after the other, as River does."""
    model = LinearRegression()
    for record, response in zip(dicts, responses, strict=False):
        model.learn_one(record, float(response))


def by_sklearn(features: np.ndarray, responses: np.ndarray, block: int) -> None:
    """Learn some records at a time, as scikit-learn does."""
    model = SGDRegressor(loss="huber", penalty=None)
    for start in range(0, len(features), block):
        model.partial_fit(features[start : start + block], responses[start : start + block])


if __name__ == "__main__":
    main()
