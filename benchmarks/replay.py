"""Throughput of `veilstream replay` beside the live worker and two bare consumers.

`python -m benchmarks.replay [--releases N] [--rounds R]`. Real Kafka, real Redis, one partition.
All four read the same topic in the same run, in turn; only the ratios mean anything on a shared
machine. Prints a table and writes `benchmarks/results/replay.json`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.fold import RESULTS, measured, three, worker
from benchmarks.load import fill, study_text, task_of
from infra.local import LocalRuntime
from pipeline.settings import Settings

NAMES = ("replay", "worker", "bare_kafka_python", "bare_aiokafka")


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--releases", type=int, default=60_000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, LocalRuntime(Path(name)) as addresses:
        settings = Settings(kafka=addresses.kafka, redis=addresses.redis, folder=name)
        (Path(name) / "bench.toml").write_text(study_text("bench"))
        asyncio.run(fill(task_of("bench"), settings, options.releases))
        memory = [replayed(settings, Path(name), to)[1] for to in (options.releases // 5, None)]
        rounds = [one_round(settings, Path(name), options.releases) for _ in range(options.rounds)]
    report(rounds, options.releases, memory)


def one_round(settings: Settings, folder: Path, count: int) -> dict[str, float]:
    """Measure all four, in turn."""
    env = {**os.environ, "BENCH_KAFKA": settings.kafka, "BENCH_COUNT": str(count)}
    found = {
        "bare_kafka_python": measured("benchmarks.bare_kafka_python", env)[0],
        "bare_aiokafka": measured("benchmarks.bare_loop", env)[0],
        "worker": worker(settings, folder, "renewable", count)["worker"],
        "replay": replayed(settings, folder)[0],
    }
    print("  ".join(f"{name} {found[name]:,.0f}/s" for name in NAMES), flush=True)
    return found


def replayed(settings: Settings, folder: Path, to: int | None = None) -> tuple[float, float]:
    """Replay the topic; return releases per second by its own clock, and its memory in MiB."""
    env = {
        **os.environ,
        "VEILSTREAM_KAFKA": settings.kafka,
        "VEILSTREAM_REDIS": settings.redis,
        "VEILSTREAM_FOLDER": str(folder),
    }
    # in a process between: the largest memory of its children is that of this replay alone
    command = [sys.executable, "-m", "benchmarks.replay_once", str(folder / "bench.toml"), str(to)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    rate, memory = re.findall(r"[0-9.]+", done.stdout)
    return float(rate), float(memory)


def report(rounds: list[dict[str, float]], count: int, memory: list[float]) -> None:
    """Print medians and ratios, and write them down."""
    ratios = {
        other: [r["replay"] / r[other] for r in rounds] for other in NAMES if other != "replay"
    }
    result = {
        "releases": count,
        "rounds": len(rounds),
        **{name: statistics.median(r[name] for r in rounds) for name in NAMES},
        **{
            f"replay_over_{other}": [min(v), statistics.median(v), max(v)]
            for other, v in ratios.items()
        },
        "memory_mib_fifth_whole": memory,
    }
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "replay.json").write_text(json.dumps(result, indent=1) + "\n")
    print(f"\n{count} releases, d = 10, {len(rounds)} rounds")
    print("  ratio (min, median, max)            reached")
    for other, values in ratios.items():
        print(f"  replay / {other:<26} {three(values)}")
    print(f"  memory, after a fifth and after all: {memory[0]:.0f} and {memory[1]:.0f} MiB")


if __name__ == "__main__":
    main()
