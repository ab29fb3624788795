"""How fast a backtest is and how much memory it takes, beside River on the same records.

`python -m benchmarks.backtest [--records N]`: N and 3 N records (default a million) of ten features
with a class, from Parquet, through a study of epsilon 1 with windows of 250 and eight clients, on
one core. Each run is a process of its own, with and without the pooled fit and event time. Seconds
are those of the processor, so that a busy machine does not count; memory is the largest resident
set. River's logistic regression behind its scaler predicts and learns records of the same file one
by one, as its own evaluation does. The grid is of 16 settings on the first tenth of the records,
timed by the clock with one process and with two, one after the other in turns: a ratio of 2 is all
that two cores can give.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

RESULTS = Path(__file__).parent / "results" / "backtest.json"
FEATURES, CLIENTS, PART = 10, 8, 100_000
#: Records that River gets: its rate does not depend on how many there are.
RIVER = 20_000
#: Times that the grid is run with one process and with two.
ROUNDS = 3
STUDY = """
[study]
name = "speed"
[data]
response = {{ name = "y", positive = "1", negative = "0" }}
[data.features]
{features}
[estimator]
loss = "logistic"
[privacy]
mechanism = "discrete-gaussian"
epsilon = 1
delta = 1e-6
[window]
records = 250
"""
CASES = {
    "scores and pooled fit": {"client_column": "who"},
    "scores alone": {"client_column": "who", "pooled": False},
    "event time, delays and pooled fit": {
        "client_column": "who", "event_time": "t", "delay": "exponential:60s",
        "label_delay": "600s",
    },
}  # fmt: skip


def main() -> None:
    """Print the table and write it down; or be one of the runs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--run", nargs=3, metavar=("STUDY", "FILE", "OPTIONS"))
    parser.add_argument("--river", metavar="FILE")
    options = parser.parse_args()
    if options.run:
        print(json.dumps(one_run(*options.run)))
        return
    if options.river:
        print(json.dumps(river(Path(options.river))))
        return
    with tempfile.TemporaryDirectory() as folder:
        rows = measure(Path(folder), options.records)
        grid = grid_ratio(Path(folder), options.records // 10)
    for row in rows:
        print(json.dumps(row))
    print(json.dumps(grid))
    found = {"features": FEATURES, "rows": rows, "grid": grid}
    RESULTS.write_text(json.dumps(found, indent=1) + "\n")


def measure(folder: Path, records: int) -> list[dict[str, object]]:
    """Return a row for each run, each in a process of its own."""
    study = folder / "study.toml"
    names = "\n".join(f"x{i} = {{ min = -1, max = 1 }}" for i in range(FEATURES))
    study.write_text(STUDY.format(features=names))
    rows: list[dict[str, object]] = []
    for count in (records, 3 * records):
        path = folder / f"{count}.parquet"
        write(path, count)
        for name, options in CASES.items():
            if count == records or name == "scores and pooled fit":
                found = child("--run", str(study), str(path), json.dumps(options))
                rows.append({"case": name, **found})
    beside = child("--river", str(folder / f"{records}.parquet"))
    rows.append({"case": "River, predict and learn one by one", **beside})
    for row in rows:
        row["times_river"] = round(float(row["a_second"]) / float(beside["a_second"]), 1)
    return rows


def grid_ratio(folder: Path, records: int) -> dict[str, object]:
    """Return the seconds of a grid of 16 settings with one process, with two, and their ratio."""
    # River must not pay for them
    from pipeline.backtest import Options  # noqa: PLC0415
    from pipeline.backtest.grid import Axis, run_grid  # noqa: PLC0415
    from pipeline.cli.pool import Pool  # noqa: PLC0415

    path = folder / "grid.parquet"
    write(path, records)
    axes = [
        Axis("privacy.epsilon", (0.5, 1.0, 2.0, 4.0)),
        Axis("window.records", (100, 150, 200, 250)),
    ]
    taken: dict[int, list[float]] = {1: [], 2: []}
    for _ in range(ROUNDS):
        for jobs, times in taken.items():
            began = time.perf_counter()
            run_grid(
                folder / "study.toml", str(path), axes,
                Options(client_column="who", pooled=False), runner=Pool(jobs),
            )  # fmt: skip
            times.append(time.perf_counter() - began)
    ratios = sorted(one / two for one, two in zip(taken[1], taken[2], strict=True))
    return {
        "case": "grid of 16 settings", "records": records, "one": taken[1], "two": taken[2],
        "ratio_min_median_max": [ratios[0], ratios[len(ratios) // 2], ratios[-1]],
    }  # fmt: skip


def child(*arguments: str) -> dict[str, float]:
    """Run a part of this module in a process of its own, on one core."""
    ended = subprocess.run(
        [sys.executable, "-m", "benchmarks.backtest", *arguments],
        env=os.environ | {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE, check=True,
    )  # fmt: skip
    found: dict[str, float] = json.loads(ended.stdout)
    return found


def one_run(study: str, path: str, options: str) -> dict[str, float]:
    """Run one backtest, and return what it took."""
    from pipeline.backtest import backtest  # noqa: PLC0415  River must not pay for it

    began = time.process_time()
    result = backtest(study, path, **json.loads(options))
    return row(result.records, time.process_time() - began)


def river(path: Path) -> dict[str, float]:
    """Predict and learn the first records of a file with River."""
    from river import compose, linear_model, metrics, preprocessing  # noqa: PLC0415

    batch = next(pq.ParquetFile(path).iter_batches(RIVER)).to_pylist()
    records = [({f"x{i}": r[f"x{i}"] for i in range(FEATURES)}, r["y"] == 1) for r in batch]
    model = compose.Pipeline(preprocessing.StandardScaler(), linear_model.LogisticRegression())
    metric = metrics.BalancedAccuracy()
    began = time.process_time()
    for features, response in records:
        metric.update(response, bool(model.predict_one(features)))
        model.learn_one(features, response)
    return row(len(records), time.process_time() - began)


def row(records: int, seconds: float) -> dict[str, float]:
    """Return one row: the seconds of the processor, and the largest memory so far."""
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {
        "records": records,
        "seconds": round(seconds, 2),
        "a_second": round(records / seconds),
        "peak_mib": round(memory),
    }


def write(path: Path, count: int) -> None:
    """Write records whose class follows their features."""
    rng, slopes = np.random.default_rng(1), np.linspace(-1, 1, FEATURES)
    writer = None
    for start in range(0, count, PART):
        size = min(PART, count - start)
        X = rng.uniform(-1, 1, (size, FEATURES))
        chance = 1 / (1 + np.exp(-(0.3 + X @ slopes)))
        places = np.arange(start, start + size)
        table = pa.table({
            **{f"x{i}": X[:, i] for i in range(FEATURES)},
            "y": (rng.random(size) < chance).astype(int),
            "t": 1.6e9 + places,
            "who": [f"client-{k}" for k in (places % CLIENTS).tolist()],
        })  # fmt: skip
        writer = writer or pq.ParquetWriter(path, table.schema)
        writer.write_table(table)
    if writer is not None:
        writer.close()


if __name__ == "__main__":
    main()
