"""Latency at a steady rate: from a client's publish to the committed fold, and to the estimate.

`python -m benchmarks.latency [--kind renewable] [--rate 1000] [--seconds 20]`. A real worker on a
real Kafka and Redis; the sender keeps the rate open-loop, so a slow worker cannot slow it down.
Commit times are read from Redis, estimates from their topic; all clocks are this machine's. Writes
`benchmarks/results/latency.json`.

`python -m benchmarks.latency --kind noisy-mle`: 1,000 sites at p = 8 that have all sent one release
before the clock starts, then one at a time, by default 10 a second, and an estimate of all sites
after each. Writes `benchmarks/results/latency_sites.json`.

`python -m benchmarks.latency --kind claims [--rate 50] [--seconds 4] [--rounds 7]`: what it costs a
client to claim each release on the ledger topic before it leaves. Pairs of runs by turns, with
claims and as if there were none: from stored to the log, at a steady rate; a whole start that finds
nothing new; and the bytes of both topics. Writes `benchmarks/results/latency_claims.json`.
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
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import aiokafka
import numpy as np
import redis
from kafka import TopicPartition

from benchmarks.load import CLIENTS, study_text, summaries, task_of
from infra.kafka import log_reader, read_all
from infra.local import LocalRuntime
from infra.topics import ensure_topics
from pipeline.messages.estimate import read_estimate
from pipeline.messages.release import header_of, seal
from pipeline.messages.spend import is_claim, ledger_topic
from pipeline.messages.topics import Topics
from pipeline.methods import task_of as make_task
from pipeline.privacy.randomness import SecureStream
from pipeline.records.encoder import Arrays
from pipeline.release.privatise import Answer, privatise
from pipeline.release.task import Task
from pipeline.settings import Settings
from pipeline.study_file.load import parse_study
from producers import start
from producers.rollback import Claims, Send
from producers.store import ClientStore, Outgoing
from state import codec

RESULTS = Path(__file__).parent / "results"
NAME = "latency"
SITES, SIZE = 1000, 8
FEATURES = "\n".join(f"x{i} = {{ min = -1, max = 1 }}" for i in range(SIZE))
#: Of sums at 0: no site waits for a model, and all estimates have intervals.
STUDY = f"""
[study]
name = "{NAME}"
[data]
response = {{ name = "y", kind = "number", min = -1, max = 1 }}
[data.features]
{FEATURES}
[estimator]
kind = "noisy-mle"
loss = "linear"
ridge = 0.001
norm_bound = "typical"
method = {{ release = "sufficient", sites = {SITES} }}
[privacy]
mechanism = "discrete-gaussian"
epsilon = 4.0
delta = 1e-5
[window]
records = 1000
[stream]
partitions = 1
publish = {{ releases = 1, seconds = 0.05, pause = 0.0 }}
"""
#: Windows of which no client waits for a model: no worker runs.
CLAIMS = """
[study]
name = "{name}"
[data]
response = {{ name = "y", positive = "1", negative = "0" }}
[data.features]
x0 = {{ min = -1, max = 1 }}
x1 = {{ min = -1, max = 1 }}
[estimator]
loss = "logistic"
[privacy]
mechanism = "discrete-gaussian"
epsilon = 2.0
delta = 1e-5
[window]
records = 20
growth = 0
[stream]
partitions = 1
max_in_flight_windows = 0
"""


@dataclass(frozen=True)
class Load:
    """What is sent.

    made: Windows, of which payloads are made. first: Releases that are there before the clock
    starts. targets: Milliseconds at the 99 % point, to the fold and to the estimate.
    """

    text: str
    task: Task
    made: list[Answer]
    clients: int
    first: int
    rate: int
    targets: tuple[int, int]
    result: str

    def payload(self, number: int) -> tuple[bytes, bytes]:
        """Return the key and the value of a release."""
        client, seq = f"client-{number % self.clients}", number // self.clients
        answer = self.made[number % len(self.made)]
        return client.encode(), seal(self.task, answer, client=client, ledger="bench", seq=seq)


def load_of(kind: str) -> Load:
    """Return the load of a kind of estimator."""
    if kind == "renewable":
        task = task_of(NAME)
        made = summaries(task, 50)
        return Load(study_text(NAME), task, made, CLIENTS, 0, 1000, (100, 400), "latency.json")
    task, rng, noise = make_task(parse_study(STUDY)), np.random.default_rng(20), SecureStream()
    made = []
    for _ in range(50):
        features = rng.uniform(-1, 1, (task.slots, SIZE))
        responses = np.clip(0.3 * features[:, 0] + 0.15 * rng.normal(size=task.slots), -1, 1)
        made.append(
            privatise(task, task.query(Arrays(features, responses), task.first_model), noise)
        )
    return Load(STUDY, task, made, SITES, SITES, 10, (50, 50), "latency_sites.json")


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
    settings: Settings, load: Load, rate: int, count: int, found: list[tuple[float, int]]
) -> np.ndarray:
    """Send at a steady rate; return the time at which each release was handed to Kafka.

    found: Estimates as they come: the clock starts when one stands for the first releases.
    """
    releases = [load.payload(number) for number in range(load.first + count)]
    topic = Topics.of(load.task.study).releases.name
    producer = aiokafka.AIOKafkaProducer(
        bootstrap_servers=settings.kafka, enable_idempotence=True, linger_ms=1
    )
    await producer.start()
    times = np.empty(count)
    try:
        for key, payload in releases[: load.first]:
            await producer.send(topic, payload, key=key)
        await producer.flush()
        while load.first and not (found and found[-1][1] >= load.first):
            await asyncio.sleep(0.1)
        began = time.time()
        for i, (key, payload) in enumerate(releases[load.first :]):
            ahead = began + i / rate - time.time()
            if ahead > 0.001:
                await asyncio.sleep(ahead)
            times[i] = time.time()
            await producer.send(topic, payload, key=key)
        await producer.flush()
    finally:
        await producer.stop()
    return times


async def estimates(
    settings: Settings, load: Load, count: int, found: list[tuple[float, int]]
) -> None:
    """Note when each estimate came and how much of the log it stands for."""
    consumer = aiokafka.AIOKafkaConsumer(
        Topics.of(load.task.study).estimates.name,
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


def waits(sent: np.ndarray, seen: list[tuple[float, int]], before: int) -> np.ndarray:
    """Return for each release how long it took until something that holds it was seen.

    before: Releases that were sent before them.
    """
    marks = np.array([mark for _, mark in seen])
    times = np.array([at for at, _ in seen])
    first = np.searchsorted(marks, before + np.arange(1, len(sent) + 1))
    return times[np.minimum(first, len(times) - 1)] - sent


async def measure(
    settings: Settings, load: Load, rate: int, seconds: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return both latencies of every release, in seconds."""
    count = int(rate * seconds)
    found: list[tuple[float, int]] = []
    watch = CommitWatch(settings.redis)
    watch.start()
    follower = asyncio.create_task(estimates(settings, load, load.first + count, found))
    sent = await send(settings, load, rate, count, found)
    await asyncio.wait_for(follower, timeout=60)
    watch.done = True
    return waits(sent, watch.seen, load.first), waits(sent, found, load.first)


class Timed(ClientStore):
    """A database that notes when each release was stored."""

    stored: ClassVar[dict[int, float]] = {}

    def release(self, task: Task, source: str, group: Sequence[Outgoing], **options: Any) -> None:
        """Store a group, and note when."""
        super().release(task, source, group, **options)
        self.stored.update(dict.fromkeys((one.seq for one in group), time.perf_counter()))


class Arrivals(threading.Thread):
    """Notes when each release of a client is on the log."""

    def __init__(self, settings: Settings, task: Task) -> None:
        super().__init__(daemon=True)
        place = TopicPartition(Topics.of(task.study).releases.name, 0)
        self._reader = log_reader(settings, wait_ms=100)
        self._reader.assign([place])
        self._reader.seek(place, self._reader.end_offsets([place])[place])
        self.seen: dict[int, float] = {}
        self.done = False

    def run(self) -> None:
        """Read until told to stop."""
        while not self.done:
            for records in self._reader.poll(timeout_ms=50).values():
                for record in records:
                    self.seen[header_of(record.value).seq] = time.perf_counter()
        self._reader.close()


class Unclaimed(Claims):
    """Compares at the start as all do, and claims nothing."""

    def may_leave(self, _send: Send, _study: str, last: int) -> int:
        """Let everything leave."""
        return last + 1


def claims(settings: Settings, rate: int, seconds: float, rounds: int) -> dict[str, Any]:
    """Run pairs of clients, with claims and without, and return what each took and wrote."""
    text = CLAIMS.format(name="claims")
    task = make_task(parse_study(text))
    ensure_topics(settings, [*Topics.of(task.study).all(), ledger_topic(task.study, settings)])
    rng, count = np.random.default_rng(21), int(rate * seconds)
    values, marks = rng.uniform(-1, 1, (count * task.slots, 2)), rng.random(count * task.slots)
    source = Path(settings.folder) / "claims.csv"
    source.write_text(
        "x0,x1,y\n"
        + "".join(f"{a},{b},{int(m < 0.5)}\n" for (a, b), m in zip(values, marks, strict=True))
    )
    vars(start)["ClientStore"] = Timed
    found: dict[str, dict[str, list[float]]] = {}
    for turn in range(2 * rounds):
        # each pair begins with the other one
        name = ("with claims", "without")[(turn + turn // 2) % 2]
        vars(start)["Claims"] = Unclaimed if name == "without" else Claims
        own = found.setdefault(name, {"waits": [], "starts": []})
        place = replace(settings, folder=f"{settings.folder}/{turn}")
        Timed.stored.clear()
        arrivals = Arrivals(settings, task)
        arrivals.start()
        before = sizes(settings, task)
        job = start.Job(f"client-{turn}", str(source), rate=float(rate * task.slots))
        start.run_client(task, place, job, report=lambda _: None)
        while len(arrivals.seen) < count:
            time.sleep(0.05)
        arrivals.done = True
        arrivals.join()
        waits = [arrivals.seen[seq] - at for seq, at in Timed.stored.items()]
        # those that wait for the first claim's connection say nothing of the others
        own["waits"].append(float(np.median(waits[count // 2 :])))
        for key, held in sizes(settings, task).items():
            own.setdefault(key, []).append(held - before[key])
        began = time.perf_counter()
        start.run_client(task, place, job, report=lambda _: None)
        own["starts"].append(time.perf_counter() - began)
    for what, unit in (("waits", "a release, from stored to the log"), ("starts", "a start")):
        pairs = np.array(found["with claims"][what]) / np.array(found["without"][what])
        shown = " beside ".join(f"{np.median(one[what]) * 1e3:.1f} ms" for one in found.values())
        print(f"{unit}: {shown} ({', '.join(found)}), ratio {np.median(pairs):.2f}, paired")
    size, claimed, number = (
        float(np.sum(found["with claims"][key])) for key in ("releases", "claims", "number")
    )
    print(
        f"a release of {task.size} coefficients has {size / count / rounds:.0f} bytes, key and "
        f"value; a claim {claimed / number:.0f}, one for {count * rounds / number:.1f} releases"
    )
    return {"rate": rate, "releases": count, **found}


def sizes(settings: Settings, task: Task) -> dict[str, int]:
    """Return the bytes of keys and values of releases and of claims, and how many claims."""

    def lengths(topic: str, wanted: Callable[[bytes], bool]) -> list[int]:
        records = read_all(settings, topic)
        return [len(k or b"") + len(v or b"") for k, v in records if wanted(k or b"")]

    claimed = lengths(settings.ledger_topic, is_claim)
    releases = lengths(Topics.of(task.study).releases.name, lambda _: True)
    return {"releases": sum(releases), "claims": sum(claimed), "number": len(claimed)}


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    kinds = ["renewable", "noisy-mle", "claims"]
    parser.add_argument("--kind", choices=kinds, default="renewable")
    parser.add_argument("--rate", type=int, help="releases a second")
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--rounds", type=int, default=7, help="pairs of clients, for claims")
    options = parser.parse_args()
    if options.kind == "claims":
        with tempfile.TemporaryDirectory() as name, LocalRuntime(Path(name)) as addresses:
            settings = Settings(kafka=addresses.kafka, redis=addresses.redis, folder=name)
            result = claims(settings, options.rate or 50, options.seconds, options.rounds)
        (RESULTS / "latency_claims.json").write_text(json.dumps(result, indent=1) + "\n")
        return
    load = load_of(options.kind)
    rate = options.rate or load.rate
    with tempfile.TemporaryDirectory() as name, LocalRuntime(Path(name)) as addresses:
        settings = Settings(kafka=addresses.kafka, redis=addresses.redis, folder=name)
        ensure_topics(settings, Topics.of(load.task.study).all())
        study = Path(name) / "latency.toml"
        study.write_text(load.text)
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
            commit, estimate = asyncio.run(measure(settings, load, rate, options.seconds))
        finally:
            worker.terminate()
            worker.wait()
    result = {"rate": rate, "releases": len(commit)}
    print(f"{len(commit)} releases at {rate} a second; milliseconds from publish to ...")
    print("                          p50     p90     p99     max   target (p99)")
    for label, values, target in (
        ("the committed fold", commit, load.targets[0]),
        ("the estimate's topic", estimate, load.targets[1]),
    ):  # fmt: skip
        shown = [float(np.quantile(values, q)) * 1000 for q in (0.5, 0.9, 0.99, 1.0)]
        result[label] = shown
        print(f"  {label:20s} " + " ".join(f"{v:7.1f}" for v in shown) + f"   < {target}")
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / load.result).write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
