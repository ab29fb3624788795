"""Client, fold and backtest of this tree beside those of another commit, by processor time.

`git worktree add ../before COMMIT && python -m benchmarks.paired ../before [--rounds R]`. Each tree
runs its own benchmarks on this installation, in turns, on the same work: releases of a client in
groups (`benchmarks.release`), a worker's rate from fetch to commit (`benchmarks.fold`, with a Kafka
and Redis of its own), and records of a backtest with its pooled fit (`benchmarks.backtest`). A
ratio is this tree's rate over the other's in the same round: smallest, median and largest are
printed as they come. About four minutes.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from benchmarks import backtest

HERE = Path(__file__).parents[1]
RECORDS, RELEASES = 200_000, 100_000
#: Prints the rate of complete releases; the benchmark's clock is the processor's.
CLIENT = """
import sys, time
time.perf_counter = time.process_time
from benchmarks import release
size, mechanism, count = sys.argv[1:]
found = release.measure(int(size), mechanism, int(count), 3)
print(found["releases_per_second"]["median"])
"""
#: Prints the rate of a worker per second of its processor time, the best of three.
FOLD = """
import asyncio, sys, tempfile
from pathlib import Path
from benchmarks import fold, load
from infra.local import LocalRuntime
from pipeline.settings import Settings
kind, count = sys.argv[1], int(sys.argv[2])
task_of = getattr(load, "task_of", None) or load.plan_of
with tempfile.TemporaryDirectory() as name, LocalRuntime(Path(name)) as at:
    settings = Settings(kafka=at.kafka, redis=at.redis, folder=name)
    asyncio.run(load.fill(task_of("bench", kind=kind), settings, count))
    rates = [fold.worker(settings, Path(name), kind, count)["processor"] for _ in range(3)]
print(max(rates))
"""


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("before", type=Path, help="a worktree of the other commit")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        for case, rate in cases(Path(name)).items():
            pairs = [(rate(HERE), rate(options.before)) for _ in range(options.rounds)]
            ratios = sorted(now / before for now, before in pairs)
            print(
                f"{case:38s} {statistics.median(now for now, _ in pairs):11,.0f} / s   ratio "
                f"{ratios[0]:.3f} {statistics.median(ratios):.3f} {ratios[-1]:.3f}",
                flush=True,
            )


def cases(folder: Path) -> dict[str, Callable[[Path], float]]:
    """Return what gives the rate of each case in a tree."""
    records, study = folder / "records.parquet", folder / "study.toml"
    backtest.write(records, RECORDS)
    names = "\n".join(f"x{i} = {{ min = -1, max = 1 }}" for i in range(backtest.FEATURES))
    study.write_text(backtest.STUDY.format(features=names))

    def client(size: int, mechanism: str, count: int) -> Callable[[Path], float]:
        return lambda tree: float(said(tree, "-c", CLIENT, size, mechanism, count))

    def fold(kind: str, count: int) -> Callable[[Path], float]:
        return lambda tree: float(said(tree, "-c", FOLD, kind, count))

    def backtested(tree: Path) -> float:
        run = ("-m", "benchmarks.backtest", "--run", study, records, '{"client_column": "who"}')
        return float(json.loads(said(tree, *run))["a_second"])

    return {
        "client, d = 10, discrete-gaussian": client(10, "discrete-gaussian", 1024),
        "client, d = 10, discrete-laplace": client(10, "discrete-laplace", 1024),
        "client, d = 100, discrete-gaussian": client(100, "discrete-gaussian", 128),
        "client, d = 100, discrete-laplace": client(100, "discrete-laplace", 128),
        "worker, renewable": fold("renewable", RELEASES),
        "worker, ldp-sgd": fold("ldp-sgd", RELEASES // 5),
        "backtest with its pooled fit": backtested,
    }


def said(tree: Path, *words: object) -> str:
    """Return the last line that Python prints in a tree, whose own packages come first."""
    done = subprocess.run(
        [sys.executable, *map(str, words)], cwd=tree.resolve(), stdout=subprocess.PIPE, text=True,
        env=os.environ | {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}, check=True,
    )  # fmt: skip
    return done.stdout.strip().splitlines()[-1]


if __name__ == "__main__":
    main()
