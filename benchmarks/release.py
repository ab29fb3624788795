"""Rate of complete releases at a client: sums, noise, encoding, and the ledger's transaction.

`python -m benchmarks.release [--rounds R]`. One process, one core, group commit as clients do it,
a durable database on this machine's disk; no Kafka. Beside it: single commits, and how often the
disk can sync. Prints a table and writes `benchmarks/results/release.json`.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from pipeline.messages.envelope import BINARY, headers, rfc3339
from pipeline.messages.release import seal
from pipeline.methods import task_of as make_task
from pipeline.privacy.randomness import SecureStream
from pipeline.records.encoder import Row, stack
from pipeline.release.model import Model
from pipeline.release.privatise import privatise
from pipeline.release.task import Task, form_of
from pipeline.stream.release import release_of
from pipeline.study_file.load import parse_study
from producers.client import GROUP
from producers.store import ClientStore, Outgoing, Tally

RESULTS = Path(__file__).parent / "results"
RECORDS = 100
STUDY = """
[study]
name = "bench-{size}"
[data]
response = {{ name = "y", positive = "1", negative = "0" }}
[data.features]
{features}
[estimator]
loss = "gdwd"
class_weights = {{ maximum = 8.0 }}
[privacy]
mechanism = "{mechanism}"
epsilon = 1.0
{delta}
[window]
records = {records}
"""


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    cases = [
        measure(size, mechanism, group, options.rounds)
        for size, count in ((10, 2048), (100, 256))
        for mechanism in ("discrete-gaussian", "discrete-laplace")
        for group in (count, -count)
    ]
    results = {"records_per_window": RECORDS, "group": GROUP, "cases": cases, "disk": syncs()}
    (RESULTS / "release.json").write_text(json.dumps(results, indent=2) + "\n")
    print(f"the disk syncs {results['disk']['per_second']:,.0f} times a second")


def measure(size: int, mechanism: str, count: int, rounds: int) -> dict[str, object]:
    """Time complete releases; a negative count commits each of them alone."""
    group = GROUP if count > 0 else 1
    count = abs(count) if count > 0 else abs(count) // 8
    task = task_of(size, mechanism)
    windows, model = windows_of(task), model_of(task)
    rates = []
    for _ in range(rounds):
        with (
            tempfile.TemporaryDirectory(dir=Path.cwd()) as name,
            ClientStore(Path(name) / "client.db", "client") as store,
        ):
            store.open_stream(task, "bench")
            began = time.perf_counter()
            for first in range(0, count, group):
                commit(task, store, windows, model, range(first, first + group))
            rates.append(count / (time.perf_counter() - began))
    case: dict[str, object] = {
        "size": size, "mechanism": mechanism, "group": group,
        "releases_per_second": spread(rates),
    }  # fmt: skip
    if group > 1:
        case["microseconds"] = steps(task, windows, model)
    print(
        f"d {size:3d}  {mechanism:17s} group {group:2d}: median {statistics.median(rates):8,.0f} "
        f"releases/s (min {min(rates):,.0f}, max {max(rates):,.0f})  "
        + "  ".join(f"{k} {v:.0f} us" for k, v in case.get("microseconds", {}).items()),  # type: ignore[attr-defined]
        flush=True,
    )
    return case


def commit(
    task: Task, store: ClientStore, windows: list[list[Row]], model: Model, seqs: range
) -> None:
    """Make and store a group of releases as a client does."""
    made = []
    for seq in seqs:
        rows = windows[seq % len(windows)]
        payload = release_of(task, rows, model, client="client", ledger=store.ledger, seq=seq)
        made.append(Outgoing(seq, payload, marks(task, seq)))
    store.release(
        task, "bench", made, position=b"%d" % seqs.stop, tally=Tally(RECORDS * len(made), {}, 0),
        now=time.time(),
    )  # fmt: skip


def marks(task: Task, seq: int) -> list[tuple[str, bytes]]:
    """Return the headers of a release."""
    return headers(
        identity=f"client/{task.study.name}/{seq}", source="/veilstream/bench/client",
        kind="veilstream.release", schema=form_of(task).schema, content_type=BINARY,
        time=rfc3339(float(int(time.time()))),
    )  # fmt: skip


def steps(task: Task, windows: list[list[Row]], model: Model) -> dict[str, float]:
    """Return the time of each step of one release, in microseconds."""
    stream, rows = SecureStream(), windows[0]
    arrays = stack(rows, task.size - 1)
    query = task.query(arrays, model)
    noised = privatise(task, query, stream)
    return {
        "arrays": once(lambda: stack(rows, task.size - 1)),
        "sums": once(lambda: task.query(arrays, model)),
        "key": once(SecureStream),
        "noise": once(lambda: privatise(task, query, stream)),
        "encoding": once(
            lambda: (seal(task, noised, client="client", ledger="l", seq=1), marks(task, 1))
        ),
    }


def once(step: Callable[[], object], repeats: int = 200) -> float:
    """Return the median time of a step, in microseconds."""
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        step()
        times.append(time.perf_counter() - began)
    return 1e6 * statistics.median(times)


def task_of(size: int, mechanism: str) -> Task:
    """Return the task of a study with so many coefficients."""
    features = "\n".join(f"x{i} = {{ min = -1, max = 1 }}" for i in range(size - 1))
    delta = "delta = 1e-6" if mechanism == "discrete-gaussian" else ""
    text = STUDY.format(
        size=size, features=features, mechanism=mechanism, delta=delta, records=RECORDS
    )
    return make_task(parse_study(text))


def windows_of(task: Task) -> list[list[Row]]:
    """Return some windows of encoded records."""
    rng = np.random.default_rng(5)
    return [
        [
            Row(rng.uniform(-1, 1, task.size - 1), float(rng.choice([-1.0, 1.0])), 0)
            for _ in range(task.slots)
        ]
        for _ in range(8)
    ]


def model_of(task: Task) -> Model:
    """Return a model later than the start, so that a release holds a curvature."""
    return Model(7, np.random.default_rng(6).integers(-999, 999, task.size), (600, 4000))


def syncs(seconds: float = 2.0) -> dict[str, float]:
    """Return how often this disk makes 4 KiB durable in a second."""
    with tempfile.NamedTemporaryFile(dir=Path.cwd()) as file:
        done, began = 0, time.perf_counter()
        while time.perf_counter() - began < seconds:
            file.write(bytes(4096))
            file.flush()
            os.fsync(file.fileno())
            done += 1
        return {"per_second": done / (time.perf_counter() - began)}


def spread(values: list[float]) -> dict[str, float]:
    """Return minimum, median and maximum."""
    return {"min": min(values), "median": statistics.median(values), "max": max(values)}


if __name__ == "__main__":
    main()
