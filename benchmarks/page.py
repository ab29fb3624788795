"""How soon a page shows an estimate: from its publication to the event in a reader.

`python -m benchmarks.page [--estimates 40] [--readers 4]`. Real Kafka, a real `veilstream page`,
and readers of its stream of events; estimates are written to their topic at uneven times, each when
all readers have the one before. What a browser draws comes after that. Prints a line of JSON, with
the share of a core that the page has used; ends with 1 if the slowest took more than 0.5 s.
"""

from __future__ import annotations

import argparse
import json
import queue
import random
import tempfile
import threading
import time
import urllib.request
from pathlib import Path

import msgspec
import numpy as np

from benchmarks.fold import processor
from infra.kafka import record_producer
from infra.local import LocalRuntime
from tests.cli.test_page_command import opened
from tests.page.shown import Stream
from tests.stage import Stage, study_text

MOST_SECONDS = 0.5


def main() -> int:
    """Publish estimates, and print how long they took."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--estimates", type=int, default=40)
    parser.add_argument("--readers", type=int, default=4)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, LocalRuntime(Path(name)) as at:
        text = study_text("shown", partitions=1)
        with Stage(Path(name), at.kafka, at.redis, text) as stage:
            found = shown(stage, chosen.estimates, chosen.readers)
    print(json.dumps(found))
    return int(not found["held"])


def shown(stage: Stage, count: int, readers: int) -> dict[str, object]:
    """Return what became of so many estimates before so many readers."""
    stage.ensure_topics()
    stream, chance = Stream(at=time.time()), random.Random(5)
    url, came = opened(stage), queue.Queue[tuple[str, float]]()
    for _ in range(readers):
        threading.Thread(target=_read, args=(f"{url}events", came), daemon=True).start()
    for _ in range(readers):
        assert came.get(timeout=30)[0] == "history"
    pid, waits = stage.processes["page"].pid, list[float]()
    producer = record_producer(stage.settings)
    used, began = processor(pid), time.monotonic()
    for _ in range(count):
        time.sleep(chance.uniform(0.3, 1.0))
        message = stream.next(seconds=max(0.0, time.time() - stream.at))
        sent = time.monotonic()
        producer.send(stage.topics.estimates.name, msgspec.json.encode(message)).get(timeout=30)
        waits += [came.get(timeout=30)[1] - sent for _ in range(readers)]
    producer.close()
    share = (processor(pid) - used) / (time.monotonic() - began)
    p50, most = (round(float(value), 3) for value in np.percentile(waits, [50, 100]))
    return {
        "estimates": count, "readers": readers, "p50_seconds": p50, "most_seconds": most,
        "share_of_a_core": round(share, 3), "held": most <= MOST_SECONDS,
    }  # fmt: skip


def _read(url: str, came: queue.Queue[tuple[str, float]]) -> None:
    with urllib.request.urlopen(url) as stream:  # noqa: S310
        for line in stream:
            kind = line.decode().strip().removeprefix("event: ")
            if kind in ("history", "estimate"):
                came.put((kind, time.monotonic()))


if __name__ == "__main__":
    raise SystemExit(main())
