"""Throughput of the worker's fold beside a bare aiokafka loop and Faust's per-event agent.

`python -m benchmarks.fold [--kind ldp-sgd] [--releases N] [--rounds R]`. Real Kafka, real Redis,
one partition, one core's worth of worker. All three read the same topic in the same run, in turn;
only the ratios mean anything on a shared machine, and the worker's rate by its own processor time,
from fetch to commit. Prints a table and writes `benchmarks/results/fold.json`, or
`fold_ldp_sgd.json` for noised gradients, of which a release holds 100.
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

from benchmarks.load import KINDS, fill, study_text, task_of
from infra.local import LocalRuntime
from pipeline.messages.topics import Topics
from pipeline.methods.ldp_sgd.state import SgdState
from pipeline.release.task import Task
from pipeline.settings import Settings
from state import RedisStore, codec

RESULTS = Path(__file__).parent / "results"
#: Records per second of the worker's processor time that gradients are to reach.
TARGET = 1e6


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kind", choices=KINDS, default=KINDS[0])
    parser.add_argument("--releases", type=int, help="default: 200,000, or 40,000 of gradients")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--profile", action="store_true", help="cProfile the worker's main thread")
    options = parser.parse_args()
    kind, count = options.kind, options.releases
    count = count or (40_000 if kind == "ldp-sgd" else 200_000)
    with tempfile.TemporaryDirectory() as name, LocalRuntime(Path(name)) as addresses:
        settings = Settings(kafka=addresses.kafka, redis=addresses.redis, folder=name)
        size = asyncio.run(fill(task_of("bench", kind=kind), settings, count))
        if options.profile:
            worker(settings, Path(name), kind, count, profile=True)
            return
        rounds = [one_round(settings, Path(name), kind, count) for _ in range(options.rounds)]
    report(rounds, kind, count, size)


def one_round(settings: Settings, folder: Path, kind: str, count: int) -> dict[str, float]:
    """Measure all three, in turn."""
    env = {
        **os.environ,
        "BENCH_KAFKA": settings.kafka,
        "BENCH_COUNT": str(count),
        "BENCH_KIND": kind,
    }
    bare, by_processor = measured("benchmarks.bare_loop", env)
    found = worker(settings, folder, kind, count)
    per_event, _ = measured("benchmarks.per_event_agent", env)
    print(
        f"bare {bare:,.0f}/s  worker {found['worker']:,.0f}/s  Faust per event {per_event:,.0f}/s  "
        f"per processor second: bare {by_processor:,.0f}  worker {found['processor']:,.0f}",
        flush=True,
    )
    return {"bare": bare, "bare_processor": by_processor, "per_event": per_event, **found}


def worker(
    settings: Settings,
    folder: Path,
    kind: str,
    count: int,
    *options: str,
    profile: bool = False,
    name: str = "bench",
    trusted: bool = False,
) -> dict[str, float]:
    """Run a real worker over the topic of a study, of which `count` records are to be folded.

    Returns releases per second, by the clock and by its processor time, and its memory early and
    late in MiB.
    """
    connection = redis.Redis.from_url(settings.redis)
    connection.flushall()
    study = folder / f"{name}.toml"
    study.write_text(study_text(name, kind=kind, trusted=trusted))
    env = {
        **os.environ,
        "VEILSTREAM_KAFKA": settings.kafka,
        "VEILSTREAM_REDIS": settings.redis,
        "VEILSTREAM_FOLDER": str(folder),
    }
    command = [sys.executable, "-m", "pipeline.cli.main", "worker", str(study), "--instance", "b"]
    command += options
    if profile:
        command[1:3] = ["-m", "cProfile", "-s", "tottime", "-m", "pipeline.cli.main"]
    process = subprocess.Popen(command, env=env)
    key = codec.snapshot_key(name, 0)

    def watermark() -> int:
        return int(connection.hget(key, "next_offset") or 0)

    try:
        while (first := watermark()) == 0:
            time.sleep(0.001)
        began, used, early = time.perf_counter(), processor(process.pid), 0.0
        while (now := watermark()) < count:
            if not early and now > count // 5:
                early = memory(process.pid)
            time.sleep(0.005)
        rate = (now - first) / (time.perf_counter() - began)
        by_processor = (now - first) / (processor(process.pid) - used)
        late = memory(process.pid)
        _check(task_of(name, kind=kind, trusted=trusted), connection)
        return {"worker": rate, "processor": by_processor, "early": early, "late": late}
    finally:
        process.terminate()
        process.wait()


def _check(task: Task, connection: redis.Redis) -> None:
    """Refuse the measurement of a path that has left its range: it does nothing from there."""
    for state in RedisStore(connection, task).load(0).sums.states.values():
        if isinstance(state, SgdState) and state.path.diverged is not None:
            raise AssertionError("the path has diverged, and stands still")


def report(rounds: list[dict[str, float]], kind: str, count: int, size: int) -> None:
    """Print medians and ratios, and write them down."""
    slots, gradients = task_of("bench", kind=kind).slots, kind == "ldp-sgd"
    records = [slots * r["processor"] for r in rounds]
    share = [r["worker"] / r["bare"] for r in rounds]
    used = [r["processor"] / r["bare_processor"] for r in rounds]
    times = [r["worker"] / r["per_event"] for r in rounds]
    result = {
        "releases": count,
        "bytes_per_release": size,
        "rounds": len(rounds),
        **{k: statistics.median(r[k] for r in rounds) for k in ("bare", "worker", "per_event")},
        "worker_over_bare": [min(share), statistics.median(share), max(share)],
        "worker_over_bare_by_processor": [min(used), statistics.median(used), max(used)],
        "worker_over_per_event": [min(times), statistics.median(times), max(times)],
        "records_per_processor_second": [min(records), statistics.median(records), max(records)],
        "worker_memory_mib_early_late": [rounds[-1]["early"], rounds[-1]["late"]],
    }
    RESULTS.mkdir(exist_ok=True)
    name = "fold_ldp_sgd.json" if gradients else "fold.json"
    (RESULTS / name).write_text(json.dumps(result, indent=1) + "\n")
    print(f"\n{count} releases of {size} bytes, d = 10, {len(rounds)} rounds")
    print("  ratio (min, median, max)        reached              target")
    print(f"  worker / bare aiokafka loop     {three(share)}" + ("" if gradients else "   >= 0.7"))
    print(f"  the same by processor time      {three(used)}")
    print(f"  worker / Faust per event        {three(times)}" + ("" if gradients else "   >= 8"))
    print("  records per second of the worker's processor time, in millions:")
    target = f"   >= {TARGET / 1e6:.1f}" if gradients else ""
    print(f"  from fetch to commit            {three([r / 1e6 for r in records])}{target}")
    early, late = rounds[-1]["early"], rounds[-1]["late"]
    print(f"  worker memory, after a fifth and after all: {early:.0f} and {late:.0f} MiB")


def three(values: list[float]) -> str:
    """Return the smallest, the median and the largest of some numbers."""
    return f"{min(values):.2f} {statistics.median(values):.2f} {max(values):.2f}"


def memory(pid: int) -> float:
    """Return the memory that a process has, in MiB."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) / 1024
    return float("nan")


def measured(command: str | list[str], env: dict[str, str]) -> tuple[float, float]:
    """Return the two rates that a module, or a command, prints: by the clock and processor."""
    words = [sys.executable, "-m", command] if isinstance(command, str) else command
    done = subprocess.run(words, env=env, capture_output=True, text=True, check=True)
    # Faust leaves the control codes of a spinner in front
    rate, by_processor = re.findall(r"[0-9.]+", done.stdout)[-2:]
    return float(rate), float(by_processor)


def processor(pid: int) -> float:
    """Return the processor time that a process has used, in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def topic() -> str:
    """Return the topic that all three read."""
    return Topics.of(task_of("bench").study).releases.name


if __name__ == "__main__":
    main()
