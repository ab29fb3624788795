"""Throughput of the worker's fold beside a bare aiokafka loop, and the load that both read.

`python -m benchmarks.fold [--kind ldp-sgd] [--releases N] [--rounds R]`. Real Kafka, real Redis,
one partition, one core's worth of worker. Releases are real: one per message, d = 10, noised, as
clients would send them; of kind "renewable" windows of 250 records, of kind "ldp-sgd" the gradients
of 100 records side by side. Worker and loop read the same topic in the same run, in turn, and rates
are by the processor time of each, from fetch to commit: on a shared machine the clock says little.
Prints a table and writes `benchmarks/results/fold.json`, or `fold_ldp_sgd.json`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import aiokafka
import numpy as np
import redis

from infra.local import LocalRuntime
from infra.topics import ensure_topics
from pipeline.messages.release import seal
from pipeline.messages.topics import Topics
from pipeline.methods import task_of
from pipeline.methods.ldp_sgd.state import SgdState
from pipeline.privacy.randomness import SecureStream
from pipeline.records.encoder import Arrays
from pipeline.release.model import Model
from pipeline.release.privatise import Answer, privatise
from pipeline.release.task import Task
from pipeline.settings import Settings
from pipeline.study_file.load import parse_study
from state import RedisStore, codec
from tests.sites import study_text

RESULTS = Path(__file__).parent / "results"
FEATURES, CLIENTS, NAME = 9, 50, "bench"
#: What studies of each kind have of their own, and how many releases are sent.
KINDS: dict[str, tuple[dict[str, Any], int]] = {
    "renewable": ({"maximum": 8.0, "ridge": None, "epsilon": 1.0, "records": 250}, 200_000),
    "ldp-sgd": ({
        "loss": "linear", "least": -10, "most": 10, "residual_bound": 1.345, "ridge": 0.0,
        "epsilon": 10.997, "neighbours": "replace-one", "records": 100,
    }, 40_000),
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kind", choices=KINDS, default="renewable")
    parser.add_argument("--releases", type=int, help="default: 200,000, or 40,000 of gradients")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, help="where the JSON goes")
    options = parser.parse_args()
    text, count = study_of(options.kind), options.releases or KINDS[options.kind][1]
    task = task_of(parse_study(text))
    with tempfile.TemporaryDirectory() as name, LocalRuntime(Path(name)) as addresses:
        settings = Settings(kafka=addresses.kafka, redis=addresses.redis, folder=name)
        size = asyncio.run(fill(task, settings, count))
        rounds = []
        for _ in range(options.rounds):
            bare = asyncio.run(loop(task, settings, count))
            rounds.append({"bare": bare, **worker(task, text, settings, count)})
            print(json.dumps(rounds[-1]), flush=True)
    result = {
        "releases": count, "bytes_per_release": size, "slots": task.slots, "rounds": len(rounds),
        "per_processor_second": {
            name: spread([one[name] for one in rounds]) for name in ("bare", "worker")
        },
        "worker_over_bare": spread([one["worker"] / one["bare"] for one in rounds]),
        "records_per_processor_second": spread([task.slots * one["worker"] for one in rounds]),
        "worker_memory_mib_early_late": [rounds[-1]["early"], rounds[-1]["late"]],
    }  # fmt: skip
    print(json.dumps(result, indent=1))
    path = RESULTS / ("fold_ldp_sgd.json" if options.kind == "ldp-sgd" else "fold.json")
    (options.out or path).write_text(json.dumps(result, indent=1) + "\n")


def study_of(kind: str) -> str:
    text = study_text(kind=kind, name=NAME, p=FEATURES, delta=1e-6, **KINDS[kind][0])
    return f"{text}partitions = 1\n"


def summaries(task: Task, count: int) -> list[Answer]:
    """Return noised windows at various models; the payloads of a load are made of them."""
    rng, stream, made = np.random.default_rng(20), SecureStream(), []
    for i in range(count):
        features = rng.uniform(-1, 1, (task.slots, FEATURES))
        responses = np.where(features[:, 0] + 0.5 * rng.normal(size=task.slots) > 0, 1.0, -1.0)
        model = Model(33 + i % 24, rng.integers(-4096, 4096, task.size), (600, 4000))
        made.append(privatise(task, task.query(Arrays(features, responses), model), stream))
    return made


async def fill(task: Task, settings: Settings, count: int) -> int:
    """Send `count` releases to the study's topic; return the size of one in bytes."""
    topics, made = Topics.of(task.study), summaries(task, min(count, 200))
    ensure_topics(settings, topics.all())
    producer = aiokafka.AIOKafkaProducer(
        bootstrap_servers=settings.kafka, enable_idempotence=True, linger_ms=20,
        max_batch_size=512 * 1024, max_request_size=2**23,
    )  # fmt: skip
    await producer.start()
    payload, futures = b"", []
    try:
        for i in range(count):
            client, answer = f"client-{i % CLIENTS}", made[i % len(made)]
            payload = seal(task, answer, client=client, ledger="bench", seq=i // CLIENTS)
            futures.append(await producer.send(topics.releases.name, payload, key=client.encode()))
            if len(futures) >= 5000:
                await asyncio.gather(*futures)
                futures = []
        await asyncio.gather(*futures)
    finally:
        await producer.stop()
    return len(payload)


async def loop(task: Task, settings: Settings, count: int) -> float:
    """Read the topic and do nothing; return releases per second of this process."""
    consumer = aiokafka.AIOKafkaConsumer(
        Topics.of(task.study).releases.name, bootstrap_servers=settings.kafka,
        auto_offset_reset="earliest", enable_auto_commit=False,
        max_partition_fetch_bytes=4 * 2**20, max_poll_records=1000,
    )  # fmt: skip
    await consumer.start()
    seen, used = 0, time.process_time()
    try:
        while seen < count:
            seen += sum(map(len, (await consumer.getmany(timeout_ms=500)).values()))
    finally:
        await consumer.stop()
    return seen / (time.process_time() - used)


def worker(task: Task, text: str, settings: Settings, count: int) -> dict[str, float]:
    """Run a real worker over the topic, of which `count` releases are to be folded.

    Returns releases per second of its processor time, and its memory early and late in MiB.
    """
    connection = redis.Redis.from_url(settings.redis)
    connection.flushall()
    key = codec.snapshot_key(NAME, 0)

    def watermark() -> int:
        return int(connection.hget(key, "next_offset") or 0)

    process = start_worker(text, settings)
    try:
        while (first := watermark()) == 0:
            time.sleep(0.001)
        used, early = processor(process.pid), 0.0
        while (now := watermark()) < count:
            if not early and now > count // 5:
                early = memory(process.pid)
            time.sleep(0.005)
        rate = (now - first) / max(processor(process.pid) - used, 0.01)
        # a path that has left its range does nothing from there
        for state in RedisStore(connection, task).load(0).sums.states.values():
            assert not (isinstance(state, SgdState) and state.path.diverged is not None)
        return {"worker": rate, "early": early, "late": memory(process.pid)}
    finally:
        process.terminate()
        process.wait()


def start_worker(text: str, settings: Settings) -> subprocess.Popen[bytes]:
    study = Path(settings.folder) / "study.toml"
    study.write_text(text)
    env = {
        **os.environ,
        "VEILSTREAM_KAFKA": settings.kafka,
        "VEILSTREAM_REDIS": settings.redis,
        "VEILSTREAM_FOLDER": str(settings.folder),
    }
    command = [sys.executable, "-m", "pipeline.cli.main", "worker", str(study), "--instance", "b"]
    return subprocess.Popen(command, env=env)


def spread(values: list[float]) -> list[float]:
    """Return the smallest, the median and the largest of some numbers."""
    return [round(of(values), 3) for of in (min, statistics.median, max)]


def memory(pid: int) -> float:
    """Return the memory that a process has, in MiB; 0 if it is gone."""
    try:
        said = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0.0
    return next((int(x.split()[1]) / 1024 for x in said.splitlines() if x.startswith("VmRSS")), 0.0)


def processor(pid: int) -> float:
    """Return the processor time that a process has used, in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    main()
