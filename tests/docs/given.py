"""What the blocks of a page find in their folder: `<!-- given: NAME ... -->`."""

from __future__ import annotations

import csv
import json
import random
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

from adbc_driver_postgresql.dbapi import connect
from kafka import KafkaAdminClient, KafkaProducer
from kafka.admin import NewTopic

from infra.local import LocalRuntime
from infra.local.processes import HOST
from tests.broker import PASSWORD, broker
from tests.docs.snippets import ROOT, snippets_of
from tests.postgres import postgres as running
from tests.secured import Authority

#: Makes files, or runs a server while the page is tried. It gets the page's folder, and the words
#: of the page's text that others take the place of.
Given = Callable[[Path, dict[str, str]], AbstractContextManager[object]]


def tutorial(folder: Path, words: dict[str, str]) -> AbstractContextManager[object]:
    """Give the files that the reader of the tutorial has saved, and the records that they make."""
    for block in snippets_of(ROOT / "docs" / "tutorial.md"):
        if block.file:
            (folder / block.file).write_text(block.text.replace("boilers", words["boilers"]))
    subprocess.run([sys.executable, "make_records.py"], cwd=folder, check=True)
    return nullcontext()


def german(folder: Path, _: dict[str, str]) -> AbstractContextManager[object]:
    """Give a file as a German spreadsheet writes it."""
    text = (folder / "plant-5.csv").read_text().replace(",", ";").replace(".", ",")
    (folder / "german.csv").write_text(text, "cp1252")
    return nullcontext()


def readings(folder: Path, _: dict[str, str]) -> AbstractContextManager[object]:
    """Give records that fit the study file of `veilstream study init`."""
    chance = random.Random(7)
    lines = (
        f"{chance.uniform(-40, 120):.2f},{chance.uniform(0, 10):.2f},{chance.randrange(2)}\n"
        for _ in range(1000)
    )
    (folder / "readings.csv").write_text("temperature,pressure,anomaly\n" + "".join(lines))
    return nullcontext()


def payments(folder: Path, words: dict[str, str]) -> AbstractContextManager[object]:
    """Give a topic of nested messages, on the Kafka that the folder's commands use."""
    kafka = LocalRuntime(folder / ".veilstream").addresses().kafka
    topic = words["payments"] = f"payments-{uuid.uuid4().hex[:8]}"
    with KafkaAdminClient(bootstrap_servers=kafka) as admin:
        admin.create_topics([NewTopic(topic, 3, 1)])
    chance, producer = random.Random(11), KafkaProducer(bootstrap_servers=kafka, linger_ms=20)
    for number in range(10_000):
        amount, hour = chance.uniform(0, 500), chance.randrange(24)
        fraud = chance.gauss(amount / 200, 1) > 2
        body = {"amount": {"value": round(amount, 2), "currency": "EUR"}, "hour": hour}
        producer.send(topic, json.dumps({"id": number, "body": body, "fraud": fraud}).encode())
    producer.close()
    return nullcontext()


@contextmanager
def mqtt(folder: Path, words: dict[str, str]) -> Iterator[None]:
    """Run an MQTT broker; its port takes the place of 1883."""
    with broker(folder) as port:
        words["1883"] = str(port)
        yield


@contextmanager
def mqtts(folder: Path, words: dict[str, str]) -> Iterator[None]:
    """Run one with TLS and users in the place of the broker of the page."""
    certificate(folder, words)
    (folder / "tls").mkdir()
    pem = folder / "server.pem"
    with broker(folder / "tls", users=True, certificate=pem) as port:
        words |= {"broker.example.org": f"{HOST}:{port}", "the-password": PASSWORD}
        yield


def certificate(folder: Path, words: dict[str, str]) -> AbstractContextManager[object]:
    """Give a server's certificate with its key, and the authority that made them."""
    authority = Authority("throwaway")
    authority.write(folder / "ca.pem")
    authority.issue(folder / "server.pem", HOST)
    (folder / "server.key").write_bytes((folder / "server.pem").read_bytes())
    words["plant-15.example.org"] = HOST
    return nullcontext()


@contextmanager
def postgres(folder: Path, words: dict[str, str]) -> Iterator[None]:
    """Run a PostgreSQL with the records of a plant; it has no TLS, and trusts all."""
    with running() as address, connect(address) as base, base.cursor() as cursor:
        cursor.execute(
            "CREATE TABLE public.shifts (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, "
            "temperature real, vibration real, region text, failed text)"
        )
        rows = csv.reader((folder / "plant-13.csv").read_text().splitlines()[1:])
        cursor.executemany(
            "INSERT INTO public.shifts (temperature, vibration, region, failed) "
            "VALUES ($1::text::real, $2::text::real, $3, $4)",
            list(rows),
        )
        base.commit()
        place = address.removeprefix("postgresql://")
        words["reader@db.example.org/works?sslmode=verify-full"] = place
        yield


GIVEN: dict[str, Given] = {
    "tutorial": tutorial,
    "german": german,
    "readings": readings,
    "payments": payments,
    "mqtt": mqtt,
    "mqtts": mqtts,
    "certificate": certificate,
    "postgres": postgres,
}
#: What has been done in a page's shell before its first block.
BEFORE = {
    "live": """\
veilstream worker study.toml 2> worker.log & echo $! > worker.pid
veilstream produce study.toml --client plant-1 --source plant-1.csv --quiet
veilstream watch study.toml --count 1 > watched.log
"""
}
