"""Latency at a steady rate: from a site's publish to the committed fold, and to the estimate.

`python -m benchmarks.latency [--rate 10] [--seconds 20]`. 1,000 sites at p = 8 that have all sent
one release before the clock starts, then one at a time, and an estimate of all sites after each. A
real worker on a real Kafka and Redis; the sender keeps the rate open-loop, so a slow worker cannot
slow it down. Commit times are read from Redis, estimates from their topic; all clocks are this
machine's. Writes `benchmarks/results/latency_sites.json`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import threading
import time
from pathlib import Path

import aiokafka
import numpy as np
import redis

from benchmarks.fold import NAME, start_worker
from infra.local import LocalRuntime
from infra.topics import ensure_topics
from pipeline.messages.estimate import read_estimate
from pipeline.messages.release import seal
from pipeline.messages.topics import Topics
from pipeline.methods import task_of
from pipeline.privacy.randomness import SecureStream
from pipeline.records.encoder import Arrays
from pipeline.release.privatise import privatise
from pipeline.release.task import Task
from pipeline.settings import Settings
from pipeline.study_file.load import parse_study
from state import codec
from tests.sites import study_text

RESULTS = Path(__file__).parent / "results" / "latency_sites.json"
SITES, SIZE = 1000, 8
#: Of sums at 0: no site waits for a model, and all estimates have intervals.
STUDY = study_text(
    f'release = "sufficient", sites = {SITES}', name=NAME, p=SIZE, loss="linear", ridge=0.001,
    norm_bound="typical", epsilon=4.0, records=1000, releases=1,
).replace(
    "{ releases = 1 }", "{ releases = 1, seconds = 0.05, pause = 0.0 }\npartitions = 1"
)  # fmt: skip


def releases(task: Task, count: int) -> list[tuple[bytes, bytes]]:
    """Return keys and values of releases, of one site after the other."""
    rng, noise, made = np.random.default_rng(20), SecureStream(), []
    for _ in range(50):
        features = rng.uniform(-1, 1, (task.slots, SIZE))
        responses = np.clip(0.3 * features[:, 0] + 0.15 * rng.normal(size=task.slots), -1, 1)
        query = task.query(Arrays(features, responses), task.first_model)
        made.append(privatise(task, query, noise))
    found = []
    for number in range(count):
        client, answer = f"client-{number % SITES}", made[number % len(made)]
        payload = seal(task, answer, client=client, ledger="bench", seq=number // SITES)
        found.append((client.encode(), payload))
    return found


class CommitWatch(threading.Thread):
    """Notes when each watermark was first seen in Redis."""

    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        self._redis = redis.Redis.from_url(url)
        self.seen: list[tuple[float, int]] = []
        self.done = False

    def run(self) -> None:
        """Poll until told to stop; a poll takes about 0.1 ms."""
        key, last = codec.snapshot_key(NAME, 0), 0
        while not self.done:
            held = int(self._redis.hget(key, "next_offset") or 0)
            if held > last:
                self.seen.append((time.time(), held))
                last = held
            time.sleep(0.001)


async def send(
    settings: Settings, task: Task, rate: int, count: int, found: list[tuple[float, int]]
) -> np.ndarray:
    """Send at a steady rate; return the time at which each release was handed to Kafka.

    found: Estimates as they come: the clock starts when one stands for the first releases.
    """
    sent, topic = releases(task, SITES + count), Topics.of(task.study).releases.name
    times = np.empty(count)
    async with aiokafka.AIOKafkaProducer(
        bootstrap_servers=settings.kafka, enable_idempotence=True, linger_ms=1
    ) as producer:
        for key, payload in sent[:SITES]:
            await producer.send(topic, payload, key=key)
        await producer.flush()
        while not (found and found[-1][1] >= SITES):
            await asyncio.sleep(0.1)
        began = time.time()
        for i, (key, payload) in enumerate(sent[SITES:]):
            ahead = began + i / rate - time.time()
            if ahead > 0.001:
                await asyncio.sleep(ahead)
            times[i] = time.time()
            await producer.send(topic, payload, key=key)
        await producer.flush()
    return times


async def estimates(
    settings: Settings, task: Task, count: int, found: list[tuple[float, int]]
) -> None:
    """Note when each estimate came and how much of the log it stands for."""
    async with aiokafka.AIOKafkaConsumer(
        Topics.of(task.study).estimates.name, bootstrap_servers=settings.kafka,
        auto_offset_reset="earliest",
    ) as consumer:  # fmt: skip
        async for record in consumer:
            message = read_estimate(record.value)
            found.append((time.time(), message.watermark[0].next_offset))
            if message.watermark[0].next_offset >= count:
                return


def waits(sent: np.ndarray, seen: list[tuple[float, int]]) -> np.ndarray:
    """Return for each release how long it took until something that holds it was seen."""
    times, marks = map(np.array, zip(*seen, strict=True))
    first = np.searchsorted(marks, SITES + np.arange(1, len(sent) + 1))
    return np.asarray(times[np.minimum(first, len(times) - 1)] - sent)


async def measure(
    settings: Settings, task: Task, rate: int, seconds: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return both latencies of every release, in seconds."""
    count = int(rate * seconds)
    found: list[tuple[float, int]] = []
    watch = CommitWatch(settings.redis)
    watch.start()
    follower = asyncio.create_task(estimates(settings, task, SITES + count, found))
    sent = await send(settings, task, rate, count, found)
    await asyncio.wait_for(follower, timeout=60)
    watch.done = True
    return waits(sent, watch.seen), waits(sent, found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", type=int, default=10, help="releases a second")
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--out", type=Path, default=RESULTS, help="where the JSON goes")
    options = parser.parse_args()
    task, rate = task_of(parse_study(STUDY)), options.rate
    with tempfile.TemporaryDirectory() as name, LocalRuntime(Path(name)) as addresses:
        settings = Settings(kafka=addresses.kafka, redis=addresses.redis, folder=name)
        ensure_topics(settings, Topics.of(task.study).all())
        worker = start_worker(STUDY, settings)
        try:
            time.sleep(6)
            found = asyncio.run(measure(settings, task, rate, options.seconds))
        finally:
            worker.terminate()
            worker.wait()
    result: dict[str, object] = {"rate": rate, "releases": len(found[0])}
    print(f"{len(found[0])} releases at {rate} a second; milliseconds from publish to ...")
    print("                          p50     p90     p99     max")
    names = ("the committed fold", "the estimate's topic")
    for label, values in zip(names, found, strict=True):
        shown = [float(np.quantile(values, q)) * 1000 for q in (0.5, 0.9, 0.99, 1.0)]
        result[label] = shown
        print(f"  {label:20s} " + " ".join(f"{v:7.1f}" for v in shown))
    options.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
