"""What one estimate costs the worker that publishes, with many partitions and a million clients.

`python -m benchmarks.publish [--partitions N] [--clients N] [--rounds R]`. A real Redis holds the
states of all partitions; the worker owns partition 0. Three ways to one estimate:

- whole: every other partition is loaded with its clients
- moved: the sums of every other partition are read
- still: no other partition has moved since the last estimate

Each is read, merged, estimated and written. Prints median milliseconds of processor and wall time
and writes results/publish.json; the bytes of the three estimates must be the same.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec
import numpy as np

from benchmarks.load import study_text
from infra.local.processes import free_port
from infra.local.services import Redis
from pipeline.messages.estimate import write_estimate
from pipeline.messages.release import seal
from pipeline.methods import task_of
from pipeline.privacy.randomness import SecureStream
from pipeline.records.encoder import Arrays
from pipeline.release.model import Model
from pipeline.release.privatise import Answer, privatise
from pipeline.release.task import Task
from pipeline.settings import Settings
from pipeline.stream.fold import Reducer
from pipeline.stream.in_process import OfflineRecord
from pipeline.stream.merge import combine
from pipeline.stream.partition import Partition, Progress, Summed
from pipeline.study_file.load import parse_study
from state import Held, RedisStore
from state.connection import redis_client

RESULTS = Path(__file__).parent / "results" / "publish.json"
#: Milliseconds of processor time that an estimate may take the publishing worker.
TARGET = 50.0
#: Epochs of a state, one for each power of two among the versions of models.
EPOCHS = 16


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--partitions", type=int, default=64)
    parser.add_argument("--clients", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    task = task_of(parse_study(study_text("publish", partitions=options.partitions)))
    with tempfile.TemporaryDirectory() as name:
        service, port = Redis(Path(name)), free_port()
        with service.log.open("ab") as log:
            server = subprocess.Popen(service.command(port), stdout=log)
        try:
            while not service.answers(port):
                time.sleep(0.05)
            store = RedisStore(redis_client(Settings(redis=service.address(port))), task)
            found = measure(task, store, options.clients, options.rounds)
        finally:
            server.kill()
            server.wait()
    show(task, options.clients, found)


def measure(
    task: Task, store: RedisStore, clients: int, rounds: int
) -> dict[str, dict[str, float]]:
    """Store the states, and time each way."""
    every = range(task.study.stream.partitions)
    made = windows(task)
    for number in every:
        store.replace(number, stored(task, made, number, clients // len(every)))
    mine, others = store.load(0), [n for n in every if n]
    known: dict[int, Held] = store.summed(others, {})
    ways: dict[str, tuple[Callable[[], Mapping[int, Summed]], int]] = {
        "whole": (lambda: {n: store.load(n) for n in others}, 1),
        "moved": (lambda: states_of(store.summed(others, {})), rounds),
        "still": (lambda: states_of(store.summed(others, known)), rounds),
    }
    found, written = {}, set()
    for name, (read, times) in ways.items():
        seen = []
        for _ in range(times):
            begun, wall = time.process_time(), time.perf_counter()
            states = {0: mine, **read()}
            message = combine(task, states, topic="t", model_version=1, published_at=0.0)[1]
            written.add(write_estimate(message))
            seen.append((time.process_time() - begun, time.perf_counter() - wall))
        processor, wall = (1000 * statistics.median(part) for part in zip(*seen, strict=True))
        found[name] = {"processor_ms": processor, "wall_ms": wall}
    if len(written) > 1:
        raise SystemExit("the estimates differ")
    return found


def states_of(held: Mapping[int, Held]) -> dict[int, Summed]:
    """Return the states among what a store gave."""
    return {number: state for number, (_, state) in held.items()}


def stored(task: Task, made: list[Answer], number: int, clients: int) -> Partition:
    """Return a state of releases of all epochs, with as many clients."""
    first = f"client-{number}"
    log = [
        OfflineRecord(i, first.encode(), seal(task, sums, client=first, ledger="bench", seq=i))
        for i, sums in enumerate(made)
    ]
    state = Partition.empty(task)
    if Reducer(task).fold(state, log):
        raise SystemExit("a release was not folded")
    state.clients |= {
        f"{first}-{i}": Progress(f"{i:032x}", i % 99, gaps(i)) for i in range(1, clients)
    }
    progress = state.clients.values()
    state.head = msgspec.structs.replace(
        state.head,
        clients=len(state.clients),
        missing=sum(entry.missing for entry in progress),
        furthest=max(entry.highest for entry in progress),
    )
    return state


def windows(task: Task) -> list[Answer]:
    """Return a noised window of each epoch, of which there is one for each power of two."""
    rng, stream, made = np.random.default_rng(20), SecureStream(), []
    for epoch in range(EPOCHS):
        features = rng.uniform(-1, 1, (task.slots, task.size - 1))
        responses = np.where(features[:, 0] + 0.5 * rng.normal(size=task.slots) > 0, 1.0, -1.0)
        model = Model(2**epoch, rng.integers(-4096, 4096, task.size), (600, 4000))
        made.append(privatise(task, task.query(Arrays(features, responses), model), stream))
    return made


def gaps(i: int) -> list[tuple[int, int]]:
    """Return what is missing of a client: something, for one in a hundred."""
    return [] if i % 100 else [(0, 1)]


def show(task: Task, clients: int, found: dict[str, dict[str, float]]) -> None:
    """Print a table and write the results."""
    partitions, features = task.study.stream.partitions, task.size - 1
    print(f"{partitions} partitions, {clients:,} clients, {features} features")
    print(f"{'':8}{'processor':>12}{'wall':>12}   ms")
    for name, times in found.items():
        print(f"{name:8}{times['processor_ms']:12.1f}{times['wall_ms']:12.1f}")
    print(f"target: {TARGET:.0f} ms of processor time, where nothing but the sums is read")
    RESULTS.write_text(
        json.dumps(
            {"partitions": partitions, "clients": clients, "features": features, **found}, indent=1
        )
        + "\n"
    )


if __name__ == "__main__":
    main()
