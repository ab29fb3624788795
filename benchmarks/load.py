"""A load of real releases: one per message, d = 10, noised, as clients would send them.

Of kind "renewable", windows of 250 records in one release, or of kind "ldp-sgd", the gradients of
100 records side by side.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import aiokafka
import numpy as np

from infra.keyring import made_study
from infra.topics import ensure_topics
from pipeline.messages.admission import Admission, write_signed
from pipeline.messages.authentic import Authenticator
from pipeline.messages.release import seal
from pipeline.messages.topics import Topics
from pipeline.methods import task_of as make_task
from pipeline.privacy.randomness import SecureStream
from pipeline.records.encoder import Arrays
from pipeline.release.model import Model
from pipeline.release.privatise import Answer, privatise
from pipeline.release.task import Task
from pipeline.settings import Settings
from pipeline.study_file.load import parse_study
from pipeline.trust import Pair, Stamp

FEATURES = 9
CLIENTS = 50
KINDS = ("renewable", "ldp-sgd")
GRADIENTS = """
[study]
name = "{name}"
[data]
response = {{ name = "y", kind = "number", min = -10, max = 10 }}
[data.features]
{features}
[estimator]
kind = "ldp-sgd"
loss = "linear"
ridge = 0
residual_bound = 1.345
[privacy]
mechanism = "discrete-gaussian"
epsilon = 10.997
delta = 1e-6
neighbours = "replace-one"
[window]
records = 100
[stream]
partitions = {partitions}
"""
STUDY = """
[study]
name = "{name}"
[data]
response = {{ name = "y", positive = "1", negative = "0" }}
[data.features]
{features}
[estimator]
loss = "gdwd"
class_weights = {{ maximum = 8.0 }}
[privacy]
mechanism = "discrete-gaussian"
epsilon = 1.0
delta = 1e-6
[window]
records = 250
[stream]
partitions = {partitions}
"""
TRUST = """
[trust]
releases = "authenticated"
"""


def study_text(
    name: str, partitions: int = 1, kind: str = "renewable", *, trusted: bool = False
) -> str:
    """Return the study of the benchmarks, d = 10; trusted: whether releases have a MAC."""
    features = "\n".join(f"x{i} = {{ min = -1, max = 1 }}" for i in range(FEATURES))
    text = (GRADIENTS if kind == "ldp-sgd" else STUDY) + TRUST * trusted
    return text.format(name=name, features=features, partitions=partitions)


def task_of(
    name: str, partitions: int = 1, kind: str = "renewable", *, trusted: bool = False
) -> Task:
    """Return the task of that study."""
    return make_task(parse_study(study_text(name, partitions, kind, trusted=trusted)))


def summaries(
    task: Task, count: int = 200, ticketed: Callable[[Model], Model] = lambda model: model
) -> list[Answer]:
    """Return noised windows at various models; the payloads of a load are made of them."""
    rng = np.random.default_rng(20)
    stream = SecureStream()
    made = []
    for i in range(count):
        features = rng.uniform(-1, 1, (task.slots, FEATURES))
        responses = np.where(features[:, 0] + 0.5 * rng.normal(size=task.slots) > 0, 1.0, -1.0)
        lattice = rng.integers(-4096, 4096, task.size)
        model = ticketed(Model(33 + i % 24, lattice, (600, 4000)))
        made.append(privatise(task, task.query(Arrays(features, responses), model), stream))
    return made


async def fill(task: Task, settings: Settings, count: int) -> int:
    """Send `count` releases to the study's topic; return the size of one in bytes.

    In an authenticated study its clients are admitted first, and the study's key is made.
    """
    topics = Topics.of(task.study)
    ensure_topics(settings, topics.all())
    stamps: list[Stamp] = []
    words: list[bytes] = []
    if task.study.authenticated:
        study = made_study(settings, task.study.name).newest
        made = summaries(task, ticketed=Authenticator(task, [study]).ticketed)
        stamps, words = admitted(task.study.name, study)
    else:
        made = summaries(task)
    producer = aiokafka.AIOKafkaProducer(
        bootstrap_servers=settings.kafka, enable_idempotence=True, linger_ms=20,
        max_batch_size=512 * 1024, max_request_size=2**23,
    )  # fmt: skip
    await producer.start()
    payload = b""
    try:
        futures = [
            await producer.send(topics.releases.name, word, key=f"client-{i}".encode())
            for i, word in enumerate(words)
        ]
        for i in range(count):
            client = f"client-{i % CLIENTS}"
            payload = seal(
                task, made[i % len(made)], client=client, ledger="bench", seq=i // CLIENTS
            )
            if stamps:
                payload = stamps[i % CLIENTS](payload)
            futures.append(await producer.send(topics.releases.name, payload, key=client.encode()))
            if len(futures) >= 5000:
                await asyncio.gather(*futures)
                futures = []
        await asyncio.gather(*futures)
    finally:
        await producer.stop()
    return len(payload)


def admitted(name: str, study: Pair) -> tuple[list[Stamp], list[bytes]]:
    """Return the MACs of a study's clients, and their admissions."""
    stamps, words = list[Stamp](), list[bytes]()
    for i in range(CLIENTS):
        client, pair = f"client-{i}", Pair.drawn()
        stamps.append(Stamp(pair.mac_key(study.public, study=name, client=client, generation=1), 1))
        words.append(write_signed(Admission(name, client, 1, pair.public.hex()), study))
    return stamps, words
