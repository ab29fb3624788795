"""Time of a window's sums beside the bare matrix products, and of a fold with its estimate.

`python -m benchmarks.summary [--rounds R]`. One thread, and its processor time: on a shared machine
the clock on the wall counts what others do. No input or output. In each round every case runs
right after what it is compared with; a ratio is one of two neighbours in time. "products" are X'r
and X'diag(w)X by numpy, for records that are arrays already and with slopes and curvatures that
cost nothing; "and scores" is a third one, X'diag(s^2)X, which a window without privacy sends as
well. The targets of windows are for p = 50 and n = 1000, those of rates for p = 10. Prints a table
and writes `benchmarks/results/summary.json`.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from benchmarks.release import model_of
from pipeline.messages.release import seal
from pipeline.methods import task_of as make_task
from pipeline.methods.renewable.client import (
    RenewableTask,
    open_query_of,
    summarise,
    summarise_bounded,
)
from pipeline.privacy.randomness import SecureStream
from pipeline.records.blocks import blocks, predictors, with_intercept
from pipeline.records.encoder import Arrays
from pipeline.release.model import round_model
from pipeline.release.privatise import Answer, OpenAnswer, disclose, privatise
from pipeline.stream.fold import Reducer
from pipeline.stream.in_process import OfflineRecord
from pipeline.stream.merge import estimate_of
from pipeline.stream.partition import Partition
from pipeline.study_file.load import parse_study
from pipeline.types import Matrix, Vector

RESULTS = Path(__file__).parent / "results"
THREADS = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
STUDY = """
[study]
name = "bench"
[data]
response = {{ name = "y", positive = "1", negative = "0" }}
[data.features]
{features}
[estimator]
loss = "{loss}"
[privacy]
{privacy}
[window]
records = {records}
"""
NOISED = 'mechanism = "discrete-gaussian"\nepsilon = {epsilon}\ndelta = 1e-6'
AT_MOST_PRODUCTS, AT_MOST_ESTIMATE_MS, AT_LEAST_RECORDS = 2.0, 2.0, 2e6
#: Loss, features, records of a window.
WINDOWS = (("gdwd", 50, 1000), ("logistic", 50, 1000), ("gdwd", 10, 1000), ("gdwd", 10, 10_000))
#: Features, epsilon (None for no privacy) and releases before: at epsilon 8 most eigenvalues of the
#: curvature are below its noise and get repaired, at 20 few.
ESTIMATES = ((100, 8.0, 1100), (100, 20.0, 4400), (100, None, 1100))
RECORDS = 1000
#: Models of the releases.
VERSIONS = range(1, 32)
Action = Callable[[], object]


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=200)
    options = parser.parse_args()
    if any(os.environ.get(name) != value for name, value in THREADS.items()):
        # the BLAS reads it when it is loaded
        os.execve(  # noqa: S606
            sys.executable,
            [sys.executable, "-m", "benchmarks.summary", *sys.argv[1:]],
            {**os.environ, **THREADS},
        )
    windows = [window(*case, options.rounds) for case in WINDOWS]
    estimates = [fold_and_estimate(*case, options.rounds) for case in ESTIMATES]
    result = {
        "rounds": options.rounds,
        "machine": {"cores": os.cpu_count(), "architecture": platform.machine()},
        "versions": {"python": platform.python_version(), "numpy": np.__version__},
        "windows": windows,
        "estimates": estimates,
        "targets": {
            "summary_over_products": AT_MOST_PRODUCTS,
            "fold_and_estimate_ms": AT_MOST_ESTIMATE_MS,
            "records_per_second": AT_LEAST_RECORDS,
        },
    }
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "summary.json").write_text(json.dumps(result, indent=1) + "\n")


def window(loss: str, features: int, records: int, rounds: int) -> dict[str, object]:
    """Time the sums of one window in both forms beside the bare products."""
    private, plain = task_of(loss, features, records, 1.0), task_of(loss, features, records, None)
    rng = np.random.default_rng(3)
    x, y = rng.uniform(-1, 1, (records, features)), rng.choice([-1.0, 1.0], records)
    design = np.column_stack([np.ones(records), x])
    slope, curvature_weight = rng.normal(size=records), rng.uniform(size=records)
    model = model_of(private)

    def products() -> object:
        return design.T @ slope, (design * curvature_weight[:, None]).T @ design

    def with_scores() -> object:
        scores = design * slope[:, None]
        return products(), scores.T @ scores

    def bare() -> object:
        return summarise(plain, x, y, model.coefficients, (1.0, 1.0))

    def bounded() -> object:
        return summarise_bounded(private, x, y, model)

    pairs = {
        "private / products": (bounded, products),
        "open / products": (bare, products),
        "open / products and scores": (bare, with_scores),
    }
    found = {name: paired(*pair, rounds) for name, pair in pairs.items()}
    rates = {
        name: records / 1e-6 / found[f"{name} / products"]["microseconds"][1]
        for name in ("private", "open")
    }
    steps = parts(private, x, y)
    print(f"{loss}, p = {features}, n = {records}: min, median and max of {rounds} rounds")
    for name, times in found.items():
        print(
            f"  {name:28} {three(times['microseconds'])} us   ratio {three(times['ratio'])}  "
            f"{met(times['ratio'][1] <= AT_MOST_PRODUCTS) if features == 50 else ''}"
        )
    for name, rate in rates.items():
        print(
            f"  {name:28} {rate / 1e6:9.2f} M records/s  "
            f"{met(rate >= AT_LEAST_RECORDS) if features == 10 else ''}"
        )
    print("  of private:", ", ".join(f"{name} {t:.0f} us" for name, t in steps.items()), flush=True)
    return {
        "loss": loss, "features": features, "records": records,
        "pairs": found, "records_per_second": rates, "private_parts_us": steps,
    }  # fmt: skip


def parts(task: RenewableTask, x: Matrix, y: Vector) -> dict[str, float]:
    """Return the median time of each step of a private window, in microseconds."""
    coefficients = model_of(task).coefficients
    design = with_intercept(x)
    predictor = predictors(design, coefficients)
    factors = np.trunc(2.0**14 * np.abs(task.loss.slope(predictor, y)))
    whole = np.trunc(design * 2.0**12)

    def cuts() -> None:
        for part, work in blocks(design):
            for _ in range(2):
                np.multiply(design[part], 1.0, out=work)
                np.trunc(work, out=work)

    def scaled() -> None:
        for part, work in blocks(whole):
            np.multiply(whole[part], factors[part, None], out=work)

    steps: dict[str, Action] = {
        "look at the ranges and copy": lambda: (x.min(), x.max(), with_intercept(x, 2.0)),
        "predictors row by row": lambda: predictors(design, coefficients),
        "slopes and curvatures": lambda: (
            task.loss.slope(predictor, y), task.loss.curvature(predictor, y)
        ),
        "two cuts to whole numbers": cuts,
        "rows times curvatures": scaled,
        "two products": lambda: [
            (factors[part] @ whole[part], work.T @ whole[part]) for part, work in blocks(whole)
        ],
    }  # fmt: skip
    return {
        name: 1e6 * statistics.median(seconds(step) for _ in range(100))
        for name, step in steps.items()
    }


def fold_and_estimate(
    features: int, epsilon: float | None, folded: int, rounds: int
) -> dict[str, object]:
    """Time the fold of one release and the estimate after it, when `folded` releases are there."""
    task = task_of("gdwd", features, RECORDS, epsilon)
    log = releases(task, folded + rounds)
    reducer, partition = Reducer(task), Partition.empty(task)
    reducer.fold(partition, log[:folded])
    folds, solves = [], []
    for record in log[folded:]:
        began = time.thread_time()
        letters = reducer.fold(partition, [record])
        between = time.thread_time()
        estimate = estimate_of(task, [partition])
        solves.append(1e3 * (time.thread_time() - between))
        folds.append(1e3 * (between - began))
        if letters:
            raise letters[0].fault
    both = spread([a + b for a, b in zip(folds, solves, strict=True)])
    kind = "open" if epsilon is None else f"private, epsilon {epsilon:g}"
    print(
        f"{kind}, p = {features}: {estimate.status}, {estimate.floored} floored\n"
        f"  fold {statistics.median(folds):.2f} ms, estimate {statistics.median(solves):.2f} ms, "
        f"both{three(both)} ms  {met(both[1] <= AT_MOST_ESTIMATE_MS)}",
        flush=True,
    )
    return {
        "features": features, "epsilon": epsilon, "releases": folded, "status": estimate.status,
        "floored": estimate.floored, "fold_ms": spread(folds), "estimate_ms": spread(solves),
        "both_ms": both,
    }  # fmt: skip


def releases(task: RenewableTask, count: int) -> list[OfflineRecord]:
    """Return a log made of a few windows, each sealed again and again under the next number."""
    rng, stream = np.random.default_rng(4), SecureStream()
    sums: list[Answer | OpenAnswer] = []
    for version in VERSIONS:
        x, y = rng.uniform(-1, 1, (task.slots, task.size - 1)), rng.choice([-1.0, 1.0], task.slots)
        model = round_model(version, rng.normal(0, 0.1, task.size), (1.0, 1.0))
        if task.study.noised:
            sums.append(privatise(task, task.query(Arrays(x, y), model), stream))
        else:
            weights = model.class_weights
            found = summarise(task, x, y, model.coefficients, weights)
            sums.append(disclose(task, open_query_of(found, model)))
    return [
        OfflineRecord(i, b"a", seal(task, sums[i % len(sums)], client="a", ledger="l", seq=i))
        for i in range(count)
    ]


def paired(ours: Action, theirs: Action, rounds: int) -> dict[str, list[float]]:
    """Return the times of ours in microseconds, and ratios to theirs right before."""
    times, ratios = [], []
    for number in range(-3, rounds):
        theirs_s, ours_s = seconds(theirs), seconds(ours)
        if number >= 0:  # the first rounds warm up
            times.append(1e6 * ours_s)
            ratios.append(ours_s / theirs_s)
    return {"microseconds": spread(times), "ratio": spread(ratios)}


def seconds(action: Action) -> float:
    """Return the time of an action."""
    began = time.thread_time()
    action()
    return time.thread_time() - began


def task_of(loss: str, features: int, records: int, epsilon: float | None) -> RenewableTask:
    """Return the task of a study; without epsilon it has no privacy."""
    names = "\n".join(f"x{i} = {{ min = -1, max = 1 }}" for i in range(features))
    privacy = 'mechanism = "none"' if epsilon is None else NOISED.format(epsilon=epsilon)
    text = STUDY.format(loss=loss, features=names, privacy=privacy, records=records)
    task = make_task(parse_study(text))
    assert isinstance(task, RenewableTask)
    return task


def spread(values: list[float]) -> list[float]:
    """Return the least, the median and the largest value."""
    return [min(values), statistics.median(values), max(values)]


def three(values: list[float]) -> str:
    """Return three numbers in columns."""
    return "".join(f"{value:9.2f}" for value in values)


def met(reached: bool) -> str:
    """Say whether the median reaches a target."""
    return "reached" if reached else "MISSED"


if __name__ == "__main__":
    main()
