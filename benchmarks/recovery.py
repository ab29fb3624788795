"""Where the time goes from the start of a killed worker to its first commit.

`python -m benchmarks.recovery [--rounds 5]`. A worker folds a log on a Kafka and Redis of its own
and is killed with SIGKILL; more releases come, and it starts again under its name. Each line is a
step of that start: seconds of the clock from the end of the step before, and of the worker's
processor, medians over the rounds. Where both agree the step computes; else it waits. A machine
that is busy with something else stretches the clock alone.
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
import time
from pathlib import Path

import redis

from benchmarks.load import fill, study_text, task_of
from infra.local import LocalRuntime
from pipeline.settings import Settings
from state import keys

NAME, BATCH = "recovery", 200
#: Runs `veilstream worker`, and writes a line whenever a step of its start is done.
WORKER = """
import functools, json, sys, time
marks, *words = sys.argv[1:]
file = open(marks, "w", buffering=1)
def mark(step):
    print(json.dumps([step, time.monotonic(), time.process_time()]), file=file)
def marked(owner, name, before=None, behind=None):
    call = getattr(owner, name)
    @functools.wraps(call)
    def done(*args, **more):
        if before:
            mark(before)
        found = call(*args, **more)
        if behind:
            mark(behind)
        return found
    setattr(owner, name, done)
mark("Python")
from pipeline.cli import main, worker
mark("command line imported")
marked(worker, "live_task_of", behind="Faust imported, study read")
import state.redis_store
import agents.worker, agents.folding
marked(agents.worker, "create_app", "state loaded, Kafka looked at", "application made")
marked(agents.folding.Folding, "assign", "group joined", "positions taken")
marked(state.redis_store.RedisStore, "commit", behind="first commit")
sys.argv = ["veilstream", *words]
main.main()
"""


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, LocalRuntime(Path(name)) as at:
        settings = Settings(kafka=at.kafka, redis=at.redis, folder=name)
        rounds = measure(settings, Path(name), options.rounds)
    print(f"{'seconds of clock':>18} {'processor':>10}")
    for step in rounds[0]:
        clock, processor = (statistics.median(r[step][i] for r in rounds) for i in (0, 1))
        print(f"{clock:18.3f} {processor:10.3f}  {step}")
    whole = [[sum(pair[i] for pair in r.values()) for i in (0, 1)] for r in rounds]
    clock, processor = (statistics.median(one[i] for one in whole) for i in (0, 1))
    print(f"{clock:18.3f} {processor:10.3f}  in all, least {min(one[0] for one in whole):.3f}")


def measure(settings: Settings, folder: Path, rounds: int) -> list[dict[str, tuple[float, float]]]:
    """Return the steps of each start behind a kill, with seconds of clock and processor."""
    study, found = folder / "study.toml", []
    study.write_text(study_text(NAME))
    for number in range(rounds + 1):
        asyncio.run(fill(task_of(NAME), settings, BATCH))
        steps = start(settings, folder, study, BATCH * (number + 1))
        # nobody was killed before the first one
        found += [steps] if number else []
    return found


def start(
    settings: Settings, folder: Path, study: Path, until: int
) -> dict[str, tuple[float, float]]:
    """Start a worker, kill it when it has folded so much, and return the steps of its start."""
    marks, store = folder / "marks", redis.Redis.from_url(settings.redis)
    began = time.monotonic()
    worker = subprocess.Popen(
        [sys.executable, "-c", WORKER, str(marks), "worker", str(study), "--instance", "w0"],
        env=os.environ | {
            "VEILSTREAM_KAFKA": settings.kafka, "VEILSTREAM_REDIS": settings.redis,
            "VEILSTREAM_FOLDER": settings.folder,
        },
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    while int(store.hget(keys.snapshot(NAME, 0), "next_offset") or 0) < until:
        if worker.poll() is not None:
            sys.exit(f"the worker ended with {worker.returncode}")
        time.sleep(0.002)
    worker.kill()
    worker.wait()
    steps: dict[str, tuple[float, float]] = {}
    processor = 0.0
    for line in marks.read_text().splitlines():
        step, clock, used = json.loads(line)
        if step not in steps and "first commit" not in steps:
            steps[step] = clock - began, used - processor
            began, processor = clock, used
    return steps


if __name__ == "__main__":
    main()
