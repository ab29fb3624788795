"""A live worker under a flood of bad payloads: its memory, and that every one is a dead letter.

`python -m benchmarks.flood [--payloads 200000] [--backlog]`. Real Kafka, real Redis, a real worker
of an authenticated study with one partition: after 2,000 good releases come payloads that were
changed, cut, made up, too long, or sent under other names, and now and then a good one again; with
`--backlog` all are there before the worker. Prints a line of JSON, with the worker's memory on the
way by the offset that it had reached; ends with 1 if one of them counted, a dead letter is missing,
or that memory passed 300 MiB.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import aiokafka

from agents.announcing import store_of
from benchmarks.fold import memory, processor
from benchmarks.load import CLIENTS, fill, study_text, task_of
from benchmarks.trust import mutated
from infra.local import LocalRuntime
from pipeline.messages.topics import Topics
from pipeline.settings import Settings
from state import RedisStore
from tests.stage import read_topic

GOOD, EVERY, MOST_MIB, TIMES = 2000, 500, 300.0, 20
NAME = "flood"
#: Key and value of a record.
Sent = tuple[bytes | None, bytes | None]


def main() -> int:
    """Run the flood."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--payloads", type=int, default=200_000)
    parser.add_argument("--backlog", action="store_true", help="they are there before the worker")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, LocalRuntime(Path(name)) as at:
        found = flood(
            Settings(kafka=at.kafka, redis=at.redis, folder=name), chosen.payloads, chosen.backlog
        )
    print(json.dumps(found))
    return int(not found["held"])


def flood(settings: Settings, count: int, backlog: bool) -> dict[str, object]:
    """Send the flood to a worker, and return what became of it."""
    task, folder = task_of(NAME, trusted=True), Path(settings.folder)
    asyncio.run(fill(task, settings, GOOD))
    topics, study = Topics.of(task.study), folder / f"{NAME}.toml"
    study.write_text(study_text(NAME, trusted=True))
    held = read_topic(settings.kafka, topics.releases.name)
    good = [(record.key, record.value) for record in held[CLIENTS:]]
    env = {
        **os.environ,
        "VEILSTREAM_KAFKA": settings.kafka,
        "VEILSTREAM_REDIS": settings.redis,
        "VEILSTREAM_FOLDER": settings.folder,
    }
    command = [sys.executable, "-m", "pipeline.cli.main", "worker", str(study), "--instance", "b"]
    sending = threading.Thread(
        target=lambda: asyncio.run(_send(settings, topics.releases.name, bad(good, count)))
    )
    if backlog:
        sending.start()
        sending.join()
    process, sizes = subprocess.Popen(command, env=env), list[tuple[int, float]]()
    store = store_of(task, settings)
    try:
        _wait(store, len(held), process, sizes)
        first = memory(process.pid)
        if not backlog:
            sending.start()
        _wait(store, len(held) + count, process, sizes)
        used = processor(process.pid)
    finally:
        process.terminate()
        process.wait()
    head = store.load(0).head
    letters = {
        dict(record.headers)["veil_dlq_offset"]
        for record in read_topic(settings.kafka, topics.dead_letters.name)
    }
    again = len(range(0, count, EVERY))
    most = max(size for _, size in sizes)
    exact = len(letters) == head.dead_letters == count - again and head.duplicates == again
    return {
        "payloads": count,
        "dead_letters": head.dead_letters,
        "accepted": head.folded - GOOD,
        "letters_exact": exact,
        "resident_mib": {"after_good": first, "most": most, "then": _series(sizes)},
        "processor_seconds": used,
        "held": exact and head.folded == GOOD and most < MOST_MIB,
    }


def bad(good: Sequence[Sent], count: int) -> Iterator[Sent]:
    """Return payloads that are none of the study's, and every so often one that has come before."""
    chance, payloads = random.Random(3), [payload for _, payload in good]
    for number in range(count):
        key, payload = chance.choice(good)
        kind = chance.randrange(20)
        if number % EVERY == 0:
            yield key, payload
        elif kind == 0:
            yield chance.choice([b"nobody", b"\xff", None]), payload
        elif kind == 1:
            yield key, chance.choice([None, b"", b"{}", chance.randbytes(chance.randrange(2000))])
        elif kind == 2 and number % 50 == 0:
            yield key, payload * 100
        else:
            changed = mutated(payload, chance, payloads)
            yield key, changed if changed != payload else changed[:-1]


async def _send(settings: Settings, topic: str, payloads: Iterable[Sent]) -> None:
    producer = aiokafka.AIOKafkaProducer(bootstrap_servers=settings.kafka, linger_ms=20)
    await producer.start()
    try:
        waiting = []
        for key, payload in payloads:
            waiting.append(await producer.send(topic, payload, key=key, partition=0))
            if len(waiting) == 2000:
                await asyncio.gather(*waiting)
                waiting = []
        await asyncio.gather(*waiting)
    finally:
        await producer.stop()


def _wait(
    store: RedisStore, end: int, worker: subprocess.Popen[bytes], sizes: list[tuple[int, float]]
) -> None:
    """Wait until a worker has come to an offset, and note its memory on the way."""
    while (reached := store.watermark(0)) < end:
        if worker.poll() is not None:
            raise RuntimeError(f"the worker ended with {worker.returncode}")
        sizes.append((reached, memory(worker.pid)))
        time.sleep(0.05)
    sizes.append((end, memory(worker.pid)))


def _series(sizes: list[tuple[int, float]]) -> dict[int, float]:
    """Return the worker's memory at about `TIMES` offsets, in MiB."""
    every = sizes[-1][0] / TIMES
    return {
        reached: round(size)
        for _, (reached, size) in {
            int(reached / every): (reached, size) for reached, size in sizes
        }.items()
    }


if __name__ == "__main__":
    sys.exit(main())
