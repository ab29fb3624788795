"""What authentication costs a worker: the same releases with a MAC and a ticket, and without.

`python -m benchmarks.authenticated [--releases N] [--rounds R]`. Real Kafka, real Redis, real
workers, one partition, in turn: a worker of an open study and one of an authenticated study fold
the same windows of the same clients, from fetch to commit. Only the ratios mean anything on a
shared machine. Beside them stands what the MACs alone take, which no worker can do without. Prints
a summary and writes `benchmarks/results/authenticated.json`.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import statistics
import tempfile
import time
import timeit
from pathlib import Path

from benchmarks.fold import RESULTS, worker
from benchmarks.load import CLIENTS, fill, task_of
from infra.local import LocalRuntime
from pipeline.settings import Settings
from pipeline.trust import MAC_SIZE

#: Fold with authentication over fold without.
TARGET = 0.85
OPEN, TRUSTED = "bench", "bench-trusted"


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--releases", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    count = options.releases
    with tempfile.TemporaryDirectory() as name, LocalRuntime(Path(name)) as at:
        settings = Settings(kafka=at.kafka, redis=at.redis, folder=name)
        size = asyncio.run(fill(task_of(OPEN), settings, count))
        asyncio.run(fill(task_of(TRUSTED, trusted=True), settings, count))
        rounds = []
        for _ in range(options.rounds):
            plain = worker(settings, Path(name), "renewable", count, name=OPEN)
            marked = worker(
                settings, Path(name), "renewable", count + CLIENTS, name=TRUSTED, trusted=True
            )
            rounds.append((plain, marked))
            print(
                f"open {plain['worker']:,.0f}/s  authenticated {marked['worker']:,.0f}/s  per "
                f"processor second: {plain['processor']:,.0f} and {marked['processor']:,.0f}",
                flush=True,
            )
    alone = mac_alone(size)
    unmarked = 1e6 / statistics.median(plain["processor"] for plain, _ in rounds)
    found = {
        "releases": count,
        "payload_bytes": size,
        "mac_us": round(alone, 2),
        "ratio_if_authentication_were_the_macs_alone": round(unmarked / (unmarked + alone), 3),
        **{
            f"{side}_us_{by}": round(1e6 / statistics.median(r[at][by] for r in rounds), 2)
            for at, side in enumerate(("open", "authenticated"))
            for by in ("worker", "processor")
        },
        **{
            f"ratio_{by}": spread([marked[by] / plain[by] for plain, marked in rounds])
            for by in ("worker", "processor")
        },
        "target": TARGET,
    }
    (RESULTS / "authenticated.json").write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found, indent=1))


def mac_alone(size: int) -> float:
    """Return what one MAC takes, in microseconds: the least of several runs."""
    payload, key = bytes(size), hashlib.blake2b(key=bytes(32), digest_size=MAC_SIZE)

    def once() -> None:
        hashed = key.copy()
        hashed.update(payload[:-MAC_SIZE])
        hashed.digest()

    return 1e6 * min(timeit.repeat(once, timer=time.process_time, number=10_000, repeat=5)) / 10_000


def spread(values: list[float]) -> list[float]:
    """Return the least, the median and the largest."""
    return [round(n, 3) for n in (min(values), statistics.median(values), max(values))]


if __name__ == "__main__":
    main()
