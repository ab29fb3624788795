"""Latency at a steady rate: from a client's publish to the committed fold, and to the estimate.

`python -m benchmarks.latency [--rate 1000] [--seconds 20]`. A real worker on a real Kafka and
Redis; the sender keeps the rate open-loop, so a slow worker cannot slow it down. Commit times are
read from Redis, estimates from their topic; all clocks are this machine's. Writes
`benchmarks/results/latency.json`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import aiokafka
import numpy as np
import redis

from benchmarks.load import CLIENTS, study_text, summaries, task_of
from infra.local import LocalRuntime
from infra.topics import ensure_topics
from pipeline.messages.estimate import read_estimate
from pipeline.messages.release import seal
from pipeline.messages.topics import Topics
from pipeline.settings import Settings
from state import keys

RESULTS = Path(__file__).parent / "results"
NAME = "latency"


class CommitWatch(threading.Thread):
    """Notes when each watermark was first seen in Redis."""

    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        self._redis = redis.Redis.from_url(url)
        self.seen: list[tuple[float, int]] = []
        self.done = False

    def run(self) -> None:
        """Poll until told to stop; a poll takes about 0.1 ms."""
        key, last = keys.snapshot(NAME, 0), 0
        while not self.done:
            held = int(self._redis.hget(key, "next_offset") or 0)
            if held > last:
                self.seen.append((time.time(), held))
                last = held
            time.sleep(0.001)


async def send(settings: Settings, rate: int, count: int) -> np.ndarray:
    """Send at a steady rate; return the time at which each release was handed to Kafka."""
    task = task_of(NAME)
    made = summaries(task, 50)
    payloads = [
        seal(task, made[i % 50], client=f"client-{i % CLIENTS}", ledger="bench", seq=i // CLIENTS)
        for i in range(count)
    ]
    producer = aiokafka.AIOKafkaProducer(
        bootstrap_servers=settings.kafka, enable_idempotence=True, linger_ms=1
    )
    await producer.start()
    times = np.empty(count)
    try:
        began = time.time()
        for i, payload in enumerate(payloads):
            ahead = began + i / rate - time.time()
            if ahead > 0.001:
                await asyncio.sleep(ahead)
            times[i] = time.time()
            key = f"client-{i % CLIENTS}".encode()
            await producer.send(Topics.of(task.study).releases.name, payload, key=key)
        await producer.flush()
    finally:
        await producer.stop()
    return times


async def estimates(settings: Settings, count: int, found: list[tuple[float, int]]) -> None:
    """Note when each estimate came and how much of the log it stands for."""
    consumer = aiokafka.AIOKafkaConsumer(
        Topics.of(task_of(NAME).study).estimates.name,
        bootstrap_servers=settings.kafka,
        auto_offset_reset="earliest",
    )
    await consumer.start()
    try:
        async for record in consumer:
            message = read_estimate(record.value)
            found.append((time.time(), message.watermark[0].next_offset))
            if message.watermark[0].next_offset >= count:
                return
    finally:
        await consumer.stop()


def waits(sent: np.ndarray, seen: list[tuple[float, int]]) -> np.ndarray:
    """Return for each release how long it took until something that holds it was seen."""
    marks = np.array([mark for _, mark in seen])
    times = np.array([at for at, _ in seen])
    first = np.searchsorted(marks, np.arange(1, len(sent) + 1))
    return times[np.minimum(first, len(times) - 1)] - sent


async def measure(settings: Settings, rate: int, seconds: float) -> tuple[np.ndarray, np.ndarray]:
    """Return both latencies of every release, in seconds."""
    count = int(rate * seconds)
    found: list[tuple[float, int]] = []
    watch = CommitWatch(settings.redis)
    watch.start()
    follower = asyncio.create_task(estimates(settings, count, found))
    sent = await send(settings, rate, count)
    await asyncio.wait_for(follower, timeout=60)
    watch.done = True
    return waits(sent, watch.seen), waits(sent, found)


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=20)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, LocalRuntime(Path(name)) as addresses:
        settings = Settings(kafka=addresses.kafka, redis=addresses.redis, folder=name)
        ensure_topics(settings, Topics.of(task_of(NAME).study).all())
        study = Path(name) / "latency.toml"
        study.write_text(study_text(NAME))
        env = {
            **os.environ,
            "VEILSTREAM_KAFKA": settings.kafka,
            "VEILSTREAM_REDIS": settings.redis,
            "VEILSTREAM_FOLDER": name,
        }
        command = [sys.executable, "-m", "pipeline.cli.main", "worker", str(study)]
        worker = subprocess.Popen(command, env=env)
        try:
            time.sleep(6)
            commit, estimate = asyncio.run(measure(settings, options.rate, options.seconds))
        finally:
            worker.terminate()
            worker.wait()
    result = {"rate": options.rate, "releases": len(commit)}
    print(f"{len(commit)} releases at {options.rate} a second; milliseconds from publish to ...")
    print("                          p50     p90     p99     max   target (p99)")
    for label, values, target in (
        ("the committed fold", commit, 100), ("the estimate's topic", estimate, 400),
    ):  # fmt: skip
        shown = [float(np.quantile(values, q)) * 1000 for q in (0.5, 0.9, 0.99, 1.0)]
        result[label] = shown
        print(f"  {label:20s} " + " ".join(f"{v:7.1f}" for v in shown) + f"   < {target}")
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "latency.json").write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
