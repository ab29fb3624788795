"""What `worker --verify` costs the worker, and the process beside it.

`python -m benchmarks.verify [--releases N] [--rounds R]`. Real Kafka and Redis. Releases per second
of the worker's own processor time with a verification at every second beside it and without, in
turn; then processor seconds of the first comparison, and of one that has nothing new to fold.
Prints the median ratio and writes results/verify.json.
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

from benchmarks.fold import RESULTS, processor, worker
from benchmarks.load import fill, task_of
from infra.local import LocalRuntime
from pipeline.settings import Settings

KIND = "renewable"
#: Comparisons with nothing new that are timed together.
IDLE = 5


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--releases", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    count = options.releases
    with tempfile.TemporaryDirectory() as name, LocalRuntime(Path(name)) as addresses:
        settings = Settings(kafka=addresses.kafka, redis=addresses.redis, folder=name)
        asyncio.run(fill(task_of("bench", kind=KIND), settings, count))
        pairs = []
        for _ in range(options.rounds):
            alone = worker(settings, Path(name), KIND, count)["processor"]
            beside = worker(settings, Path(name), KIND, count, "--verify", "every=1s")["processor"]
            pairs.append((alone, beside))
            print(f"alone {alone:,.0f}  with a verification {beside:,.0f} per processor second")
        first, idle = comparisons(settings, Path(name) / "bench.toml")
    found = {
        "releases": count,
        "rounds": len(pairs),
        "worker_alone_per_processor_second": statistics.median(pair[0] for pair in pairs),
        "worker_verified_per_processor_second": statistics.median(pair[1] for pair in pairs),
        "ratio": statistics.median(beside / alone for alone, beside in pairs),
        "first_comparison_processor_seconds": first,
        "idle_comparison_processor_seconds": idle,
    }
    print(json.dumps(found, indent=1))
    (RESULTS / "verify.json").write_text(json.dumps(found, indent=1) + "\n", encoding="ascii")


def comparisons(settings: Settings, study: Path) -> tuple[float, float]:
    """Return processor seconds of a first comparison, imports and all, and of later ones each."""
    env = {
        **os.environ,
        "VEILSTREAM_KAFKA": settings.kafka,
        "VEILSTREAM_REDIS": settings.redis,
        "VEILSTREAM_FOLDER": settings.folder,
    }
    command = ["-m", "pipeline.cli.main", "state", "verify", str(study), "--every", "1s", "--json"]
    with subprocess.Popen([sys.executable, *command], env=env, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        first = processor(process.pid)
        for _ in range(IDLE):
            process.stdout.readline()
        idle = (processor(process.pid) - first) / IDLE
        process.terminate()
    return first, idle


if __name__ == "__main__":
    main()
