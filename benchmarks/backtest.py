"""How fast a backtest is and how much memory it takes.

`python -m benchmarks.backtest [--records N]`: N and 3 N records (default a million) of ten features
with a class, from Parquet, through a study of epsilon 1 with windows of 250 and eight clients, on
one core. Each run is a process of its own, with and without the pooled fit and event time. Seconds
are those of the processor, so that a busy machine does not count; memory is the largest resident
set. Writes `benchmarks/results/backtest.json`.
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
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.backtest import backtest
from tests.builders import study_text

RESULTS = Path(__file__).parent / "results" / "backtest.json"
FEATURES, CLIENTS, PART = 10, 8, 100_000
CASES: dict[str, dict[str, Any]] = {
    "scores and pooled fit": {},
    "scores alone": {"pooled": False},
    "event time, delays and pooled fit": {
        "event_time": "t", "delay": "exponential:60s", "label_delay": "600s",
    },
}  # fmt: skip


def main() -> None:
    """Print the table and write it down; or be one of the runs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--out", type=Path, default=RESULTS, help="where the JSON goes")
    parser.add_argument("--run", nargs=3, metavar=("STUDY", "FILE", "CASE"))
    options = parser.parse_args()
    if options.run:
        print(json.dumps(one_run(*options.run)))
        return
    alone, rows = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}, []
    with tempfile.TemporaryDirectory() as folder:
        study = Path(folder) / "study.toml"
        study.write_text(study_text(
            p=FEATURES, loss="logistic", ridge=None, epsilon=1.0, delta=1e-6, records=250
        ))  # fmt: skip
        for count in (options.records, 3 * options.records):
            path = Path(folder) / f"{count}.parquet"
            write(path, count)
            for case in CASES if count == options.records else ["scores and pooled fit"]:
                command = ["-m", "benchmarks.backtest", "--run", str(study), str(path), case]
                ended = subprocess.run(
                    [sys.executable, *command], env=os.environ | alone, stdout=subprocess.PIPE,
                    check=True,
                )  # fmt: skip
                rows.append({"case": case, **json.loads(ended.stdout)})
                print(json.dumps(rows[-1]), flush=True)
    options.out.write_text(json.dumps({"features": FEATURES, "rows": rows}, indent=1) + "\n")


def one_run(study: str, path: str, case: str) -> dict[str, float]:
    """Run one backtest, and return the processor's seconds, and the largest memory so far."""
    began = time.process_time()
    records = backtest(study, path, client_column="who", **CASES[case]).records
    seconds = time.process_time() - began
    return {
        "records": records,
        "seconds": round(seconds, 2),
        "a_second": round(records / seconds),
        "peak_mib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
    }


def write(path: Path, count: int) -> None:
    """Write records whose class follows their features.

    Piece by piece: a process begins with the largest memory of the one that has started it.
    """
    rng, slopes, writer = np.random.default_rng(1), np.linspace(-1, 1, FEATURES), None
    for start in range(0, count, PART):
        places = np.arange(start, min(start + PART, count))
        features = rng.uniform(-1, 1, (len(places), FEATURES))
        chance = 1 / (1 + np.exp(-(0.3 + features @ slopes)))
        table = pa.table({
            **{f"x{i}": features[:, i] for i in range(FEATURES)},
            "y": (rng.random(len(places)) < chance).astype(int),
            "t": 1.6e9 + places,
            "who": [f"client-{k}" for k in (places % CLIENTS).tolist()],
        })  # fmt: skip
        writer = writer or pq.ParquetWriter(path, table.schema)
        writer.write_table(table)
    assert writer is not None
    writer.close()


if __name__ == "__main__":
    main()
