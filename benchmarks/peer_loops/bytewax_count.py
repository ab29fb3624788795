"""Bytewax over the benchmark's topic, counting the records of each key; run as `quix` is.

Prints records per second, by the clock and by its processor time.
"""

from __future__ import annotations

import os
import time
from typing import Any

import bytewax.operators as op  # type: ignore[import-not-found]
from bytewax.connectors.kafka import operators as kafka  # type: ignore[import-not-found]
from bytewax.dataflow import Dataflow  # type: ignore[import-not-found]
from bytewax.outputs import (  # type: ignore[import-not-found]
    DynamicSink,
    StatelessSinkPartition,
)
from bytewax.testing import run_main  # type: ignore[import-not-found]

END = int(os.environ["BENCH_COUNT"])


class Noting(StatelessSinkPartition):  # type: ignore[misc]
    """Counts what comes, and ends the process after the last record."""

    def __init__(self) -> None:
        self._seen, self._first = 0, 0
        self._began = self._used = 0.0

    def write_batch(self, items: list[Any]) -> None:
        """Count a batch; the first one only starts the clock."""
        self._seen += len(items)
        if not self._first:
            self._first = self._seen
            self._began, self._used = time.perf_counter(), time.process_time()
        if self._seen >= END:
            clock, used = time.perf_counter() - self._began, time.process_time() - self._used
            count = self._seen - self._first
            print(count / clock, count / used, flush=True)
            os._exit(0)


class Sink(DynamicSink):  # type: ignore[misc]
    """A sink that only counts."""

    def build(self, _step_id: str, _worker_index: int, _worker_count: int) -> Noting:
        """Return the one partition."""
        return Noting()


def counted(state: int | None, _: bytes) -> tuple[int, int]:
    """Count one record of a key."""
    count = (state or 0) + 1
    return count, count


def main() -> None:
    """Read the topic once."""
    flow = Dataflow("bench")
    came = kafka.input(
        "in", flow, brokers=[os.environ["BENCH_KAFKA"]], topics=[os.environ["BENCH_TOPIC"]],
        tail=False, batch_size=1000,
    )  # fmt: skip
    keyed = op.map("key", came.oks, lambda message: (message.key.decode(), message.value))
    op.output("out", op.stateful_map("count", keyed, counted), Sink())
    run_main(flow)


if __name__ == "__main__":
    main()
