"""Throughput of the worker's fold beside a bare aiokafka loop and Faust's per-event agent.

`python -m benchmarks.fold [--releases N] [--rounds R]`. Real Kafka, real Redis, one partition, one
core's worth of worker. All three read the same topic in the same run, in turn; only the ratios mean
anything on a shared machine. Prints a table and writes `benchmarks/results/fold.json`.
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
import time
from pathlib import Path

import redis

from benchmarks.load import fill, plan_of, study_text
from infra.local import LocalRuntime
from pipeline.messages.topics import Topics
from pipeline.settings import Settings
from state import keys

RESULTS = Path(__file__).parent / "results"


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--releases", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--profile", action="store_true", help="cProfile the worker's main thread")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, LocalRuntime(Path(name)) as addresses:
        settings = Settings(kafka=addresses.kafka, redis=addresses.redis, folder=name)
        size = asyncio.run(fill(plan_of("bench"), settings, options.releases))
        if options.profile:
            worker(settings, Path(name), options.releases, profile=True)
            return
        rounds = [one_round(settings, Path(name), options.releases) for _ in range(options.rounds)]
    report(rounds, options.releases, size)


def one_round(settings: Settings, folder: Path, count: int) -> dict[str, float]:
    """Measure all three, in turn."""
    env = {**os.environ, "BENCH_KAFKA": settings.kafka, "BENCH_COUNT": str(count)}
    bare = float(printed_by("benchmarks.bare_loop", env))
    rate, early, late = worker(settings, folder, count)
    per_event = float(printed_by("benchmarks.per_event_agent", env))
    print(
        f"bare {bare:,.0f}/s  worker {rate:,.0f}/s  Faust per event {per_event:,.0f}/s", flush=True
    )
    return {"bare": bare, "worker": rate, "per_event": per_event, "early": early, "late": late}


def worker(
    settings: Settings, folder: Path, count: int, *, profile: bool = False
) -> tuple[float, float, float]:
    """Run a real worker over the topic; return releases per second and its memory twice, in MiB."""
    connection = redis.Redis.from_url(settings.redis)
    connection.flushall()
    study = folder / "bench.toml"
    study.write_text(study_text("bench"))
    env = {
        **os.environ,
        "VEILSTREAM_KAFKA": settings.kafka,
        "VEILSTREAM_REDIS": settings.redis,
        "VEILSTREAM_FOLDER": str(folder),
    }
    command = [sys.executable, "-m", "pipeline.cli.main", "worker", str(study), "--instance", "b"]
    if profile:
        command[1:3] = ["-m", "cProfile", "-s", "tottime", "-m", "pipeline.cli.main"]
    process = subprocess.Popen(command, env=env)
    key = keys.snapshot("bench", 0)

    def watermark() -> int:
        return int(connection.hget(key, "next_offset") or 0)

    try:
        while (first := watermark()) == 0:
            time.sleep(0.001)
        began, early = time.perf_counter(), 0.0
        while (now := watermark()) < count:
            if not early and now > count // 5:
                early = _memory(process.pid)
            time.sleep(0.005)
        rate = (now - first) / (time.perf_counter() - began)
        return rate, early, _memory(process.pid)
    finally:
        process.terminate()
        process.wait()


def report(rounds: list[dict[str, float]], count: int, size: int) -> None:
    """Print medians and ratios, and write them down."""
    share = [r["worker"] / r["bare"] for r in rounds]
    times = [r["worker"] / r["per_event"] for r in rounds]
    result = {
        "releases": count,
        "bytes_per_release": size,
        "rounds": len(rounds),
        **{k: statistics.median(r[k] for r in rounds) for k in ("bare", "worker", "per_event")},
        "worker_over_bare": [min(share), statistics.median(share), max(share)],
        "worker_over_per_event": [min(times), statistics.median(times), max(times)],
        "worker_memory_mib_early_late": [rounds[-1]["early"], rounds[-1]["late"]],
    }
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "fold.json").write_text(json.dumps(result, indent=1) + "\n")
    print(f"\n{count} releases of {size} bytes, d = 10, {len(rounds)} rounds")
    print("  ratio (min, median, max)        reached              target")
    print(f"  worker / bare aiokafka loop     {three(share)}   >= 0.5")
    print(f"  worker / Faust per event        {three(times)}   >= 8")
    early, late = rounds[-1]["early"], rounds[-1]["late"]
    print(f"  worker memory, after a fifth and after all: {early:.0f} and {late:.0f} MiB")


def three(values: list[float]) -> str:
    """Return the smallest, the median and the largest of some numbers."""
    return f"{min(values):.2f} {statistics.median(values):.2f} {max(values):.2f}"


def _memory(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) / 1024
    return float("nan")


def printed_by(module: str, env: dict[str, str]) -> str:
    """Return the number that a module prints last."""
    done = subprocess.run(
        [sys.executable, "-m", module], env=env, capture_output=True, text=True, check=True
    )
    # Faust leaves the control codes of a spinner in front
    return re.findall(r"[0-9.]+", done.stdout)[-1]


def topic() -> str:
    """Return the topic that all three read."""
    return Topics.of(plan_of("bench").study).releases.name


if __name__ == "__main__":
    main()
