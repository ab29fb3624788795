"""The worker's fold beside other stream processors of Python, on one topic in one run.

`python -m benchmarks.peers [--releases N] [--rounds R] [--environment FOLDER]`. Real Kafka and
Redis, one partition, each contender in turn in every round. The peers are installed from the
package registry into a virtual environment of their own, which is kept in FOLDER. Our worker folds
releases of d = 10 and commits its state to Redis; the peers do less: Quix Streams nothing, or a
count for each key in its store, Bytewax a count for each key in memory, the two bare loops nothing.
Rates are by the clock, with the rate per second of the contender's processor time beside them.
Prints a table and writes `benchmarks/results/peers.json`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.fold import RESULTS, measured, topic, worker
from benchmarks.load import fill, task_of
from infra.local import LocalRuntime
from pipeline.settings import Settings

#: What is installed for the peers.
PEERS = ("quixstreams==3.28.1", "bytewax[kafka]==0.21.1")
LOOPS = Path(__file__).parent / "peer_loops"
#: Contender to what it does with a release.
WORK = {
    "veilstream worker": "checks, folds, commits to Redis",
    "bare aiokafka": "nothing",
    "bare kafka-python": "nothing",
    "Quix Streams": "nothing",
    "Quix Streams, stateful": "counts by key in its store",
    "Bytewax, stateful": "counts by key in memory",
}


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--releases", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3)
    kept = Path(tempfile.gettempdir()) / "veilstream-peers"
    parser.add_argument("--environment", type=Path, default=kept)
    options = parser.parse_args()
    python = environment(options.environment)
    with tempfile.TemporaryDirectory() as name, LocalRuntime(Path(name)) as addresses:
        settings = Settings(kafka=addresses.kafka, redis=addresses.redis, folder=name)
        asyncio.run(fill(task_of("bench"), settings, options.releases))
        rounds = [
            one_round(python, settings, Path(name), options.releases) for _ in range(options.rounds)
        ]
    report(rounds, options.releases)


def environment(folder: Path) -> Path:
    """Return the Python of the peers' environment, made first if it is not there."""
    python = folder / "bin" / "python"
    if not python.exists():
        uv = [str(Path(sys.executable).with_name("uv"))]
        subprocess.run([*uv, "venv", "--quiet", "--python", sys.executable, folder], check=True)
        install = [*uv, "pip", "install", "--quiet", "--python", python, *PEERS]
        subprocess.run(install, check=True)
    return python


def one_round(
    python: Path, settings: Settings, folder: Path, count: int
) -> dict[str, tuple[float, float]]:
    """Measure all contenders, in turn: records per second by the clock and by processor time."""
    env = {
        **os.environ,
        "BENCH_KAFKA": settings.kafka,
        "BENCH_COUNT": str(count),
        "BENCH_TOPIC": topic(),
        "BENCH_KIND": "renewable",
    }
    quix, wax = ([str(python), str(LOOPS / name)] for name in ("quix.py", "bytewax_count.py"))
    own = worker(settings, folder, "renewable", count)
    found = {
        "veilstream worker": (own["worker"], own["processor"]),
        "bare aiokafka": measured("benchmarks.bare_loop", env),
        "bare kafka-python": measured("benchmarks.bare_kafka_python", env),
        "Quix Streams": measured(quix, env),
        "Quix Streams, stateful": measured(quix, {**env, "BENCH_STATE": "1"}),
        "Bytewax, stateful": measured(wax, env),
    }
    print("  ".join(f"{name} {rate:,.0f}/s" for name, (rate, _) in found.items()), flush=True)
    return found


def report(rounds: list[dict[str, tuple[float, float]]], count: int) -> None:
    """Print medians and ratios to our worker, and write them down."""
    rows = {}
    print(
        f"\n{count} releases, d = 10, {len(rounds)} rounds: medians, and the worker's ratio to each"
    )
    print(f"  {'':24} {'per second':>10} {'per cpu s':>10} {'worker /':>9} {'by cpu':>7}  work")
    for name, work in WORK.items():
        found = {
            "work": work,
            "per_second": statistics.median(r[name][0] for r in rounds),
            "per_processor_second": statistics.median(r[name][1] for r in rounds),
            "worker_over_it": ratio(rounds, name, 0),
            "worker_over_it_by_processor": ratio(rounds, name, 1),
        }
        rows[name] = found
        print(
            f"  {name:24} {found['per_second']:10,.0f} {found['per_processor_second']:10,.0f} "
            f"{found['worker_over_it']:9.2f} {found['worker_over_it_by_processor']:7.2f}  {work}"
        )
    RESULTS.mkdir(exist_ok=True)
    result = {"releases": count, "rounds": len(rounds), "peers": list(PEERS), "contenders": rows}
    (RESULTS / "peers.json").write_text(json.dumps(result, indent=1) + "\n")


def ratio(rounds: list[dict[str, tuple[float, float]]], name: str, place: int) -> float:
    """Return the median over rounds of our worker's rate over another's."""
    return statistics.median(r["veilstream worker"][place] / r[name][place] for r in rounds)


if __name__ == "__main__":
    main()
