"""What a client takes for a million records, beside what a user would write by hand.

`python -m benchmarks.client [--records N] [--slopes K ...] [--rounds R] [KIND ...]`. Processor time
of the client's own loop over a source of each kind, with encoder, sums, noise, ledger and outbox,
without starting up and without Kafka; beside it, in turns on one core, a script of numpy that
reads the same file and takes the same three sums of windows of 2,500 records. For JSON lines the
script is a loop that only decodes them with msgspec; for a topic of them, one that fetches them by
the same library and decodes them, from a Kafka that is started; for a database, its own fetch as
Arrow. Prints medians and their ratio.

`--claims [--rate N]`: of a Parquet file to a real Kafka, with claims, without, and the ratio, at
full speed or so many first windows a second: of a release milliseconds of clock and processor, from
transaction to acknowledgement, bytes of claims; of a start seconds until something may leave.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import duckdb
import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import KafkaAdminClient, NewTopic

from benchmarks.timing import SETTINGS
from infra.kafka import read_partition
from infra.local import LocalRuntime
from infra.topics import ensure_topics
from pipeline.messages.spend import ledger_topic, prefix
from pipeline.messages.topics import Topics
from pipeline.methods import task_of
from pipeline.records.encoder import Encoder
from pipeline.release.model import Model, round_model
from pipeline.release.task import Task
from pipeline.settings import Settings
from pipeline.study_file.load import parse_study
from producers.budget import Limit
from producers.client import Client
from producers.prior_spend import LedgerTopic
from producers.rollback import Claims
from producers.sender import Sender
from producers.sources import open_source
from producers.sources.base import Source
from producers.store import ClientStore
from tests.builders import UNCLAIMED, study_text

#: Records of a window of the script, and of a batch that it reads at a time.
WINDOW, AT_A_TIME = 2500, 50_000
#: The name of the study in `SETTINGS`.
STUDY = "timing"


@dataclass
class Ends:
    """Both ends of a client at Kafka: a model that has seen all, and a broker that takes all."""

    store: ClientStore
    newest: Model
    claiming: bool = False
    read_to: int = 0

    def pump(self) -> None:
        numbers = [item.seq for item in self.store.unsent(STUDY, -1, 1000)]
        if numbers:
            self.store.sent(STUDY, numbers, (0, numbers[-1]))
            self.read_to = numbers[-1] + 1

    def unseen(self, _offset: int) -> tuple[int, int]:
        return 0, 0

    def wait(self, seconds: float) -> bool:
        time.sleep(seconds)
        return False

    def drain(self) -> None:
        self.pump()

    def poll(self, _seconds: float = 0.0) -> Model:
        return self.newest


@dataclass
class Case:
    """Files of the same records, one for each kind of source."""

    folder: Path
    slopes: int
    records: int
    kafka: str = ""
    task: Task = field(init=False)

    def __post_init__(self) -> None:
        names = [f"x{i}" for i in range(self.slopes)]
        self.task = task_of(parse_study(study_text(p=self.slopes, **SETTINGS)))
        rng = np.random.default_rng(7)
        columns = {name: rng.uniform(-1, 1, self.records).round(6) for name in names}
        positive = columns["x0"] + rng.logistic(size=self.records) > 0
        table = pa.table({"id": np.arange(self.records), **columns, "y": positive.astype(int)})
        pyarrow.parquet.write_table(table, self.path("parquet"))
        with pa.ipc.new_file(self.path("arrow"), table.schema) as file:
            file.write_table(table, 65_536)
        pyarrow.csv.write_csv(table, self.path("csv"))
        with self.path("jsonl").open("wb") as file:
            for batch in table.to_batches(10_000):
                file.write(b"".join(msgspec.json.encode(r) + b"\n" for r in batch.to_pylist()))
        named = ", ".join(f"{name} REAL" for name in names)
        with closing(sqlite3.connect(self.path("sqlite"))) as database:
            database.execute(f"CREATE TABLE t (id INTEGER PRIMARY KEY, {named}, y INTEGER)")
            marks = ", ".join("?" * (self.slopes + 2))
            rows = zip(*(column.to_pylist() for column in table.columns), strict=True)
            database.executemany(f"INSERT INTO t VALUES ({marks})", rows)  # noqa: S608
            database.commit()
        with duckdb.connect(str(self.path("duckdb"))) as quick:
            quick.register("given", table)
            quick.execute("CREATE TABLE t AS SELECT * FROM given ORDER BY id")
        if self.kafka:
            admin = KafkaAdminClient(bootstrap_servers=self.kafka)
            admin.create_topics([NewTopic(f"data{self.slopes}", 1, 1)])
            admin.close()
            producer = KafkaProducer(bootstrap_servers=self.kafka, linger_ms=20, batch_size=1 << 18)
            with self.path("jsonl").open("rb") as lines:
                for line in lines:
                    producer.send(f"data{self.slopes}", line)
            producer.close()

    def path(self, kind: str) -> Path:
        return self.folder / f"data{self.slopes}.{kind}"

    def spec(self, kind: str) -> str:
        path = self.path(kind)
        if kind == "kafka":
            return f"kafka://data{self.slopes}"
        return f"{kind}://{path}?table=t&key=id" if kind in ("sqlite", "duckdb") else str(path)

    def by_client(self, kind: str) -> float:
        with tempfile.TemporaryDirectory() as name:
            store = ClientStore(Path(name) / "site.db", "site")
            settings = Settings(kafka=self.kafka, folder=name)
            client, source = self.client_of(kind, store, None, settings)
            began = time.process_time()
            while client.turn():
                pass
            client.finish()
            found = time.process_time() - began
            assert client.progress.records == self.records
            source.close()
            store.close()
        return found

    def client_of(
        self, kind: str, store: ClientStore, sender: Any, settings: Settings, **more: Any
    ) -> tuple[Client, Source]:
        """Return a client and its source; without a sender Kafka takes all at once."""
        task, columns = self.task, Encoder(self.task.study).columns
        model = round_model(1, np.full(task.size, 0.1), (1.0, 1.0), 10**9)
        ends: Any = Ends(store, model, read_to=10**9 if sender else 0)
        store.open_stream(task, kind, Limit())
        how: Any = {"folder": settings.home, "columns": columns, "settings": settings}
        source = open_source(self.spec(kind), None, **how)
        more["source_name"] = kind
        return Client(task, source, store, sender or ends, ends, **more), source

    def by_hand(self, kind: str) -> float:
        began = time.process_time()
        getattr(self, f"_{kind}")()
        return time.process_time() - began

    def _parquet(self) -> None:
        file = pyarrow.parquet.ParquetFile(self.path("parquet"))
        wanted = [*self._names(), "y"]
        for batch in file.iter_batches(AT_A_TIME, columns=wanted, use_threads=False):
            self._sum(batch)

    def _arrow(self) -> None:
        with pa.ipc.open_file(self.path("arrow").open("rb")) as file:
            for at in range(file.num_record_batches):
                self._sum(file.get_batch(at))

    def _csv(self) -> None:
        wanted = pyarrow.csv.ConvertOptions(include_columns=[*self._names(), "y"])
        read = pyarrow.csv.ReadOptions(use_threads=False, block_size=4 << 20)
        with pyarrow.csv.open_csv(self.path("csv"), read, convert_options=wanted) as reader:
            for batch in reader:
                self._sum(batch)

    def _jsonl(self) -> None:
        decode = msgspec.json.Decoder().decode
        with self.path("jsonl").open("rb") as file:
            for line in file:
                decode(line)

    def _kafka(self) -> None:
        decode, left = msgspec.json.Decoder().decode, self.records
        consumer = KafkaConsumer(
            bootstrap_servers=self.kafka, group_id=None, max_poll_records=6000,
            allow_auto_create_topics=False,
        )  # fmt: skip
        consumer.assign([partition := TopicPartition(f"data{self.slopes}", 0)])
        consumer.seek_to_beginning(partition)
        while left:
            for records in consumer.poll(200).values():
                for record in records:
                    decode(record.value)
                left -= len(records)
        consumer.close()

    def _sqlite(self) -> None:
        names = [*self._names(), "y"]
        with closing(sqlite3.connect(self.path("sqlite"))) as database:
            found = database.execute(f"SELECT {', '.join(names)} FROM t ORDER BY id")  # noqa: S608
            while rows := found.fetchmany(AT_A_TIME):
                columns = zip(names, zip(*rows, strict=True), strict=True)
                pa.table({name: pa.array(column) for name, column in columns})

    def _duckdb(self) -> None:
        with duckdb.connect(str(self.path("duckdb")), read_only=True) as quick:
            quick.execute("SET threads = 1")
            names = ", ".join([*self._names(), "y"])
            quick.sql(f"SELECT {names} FROM t ORDER BY id").to_arrow_table()  # noqa: S608

    def _names(self) -> list[str]:
        return [f"x{i}" for i in range(self.slopes)]

    def _sum(self, batch: Any) -> None:
        """Clip, shorten, and take a gradient, a curvature and a middle of each window."""
        features = np.column_stack([batch.column(name).to_numpy() for name in self._names()])
        signs = 2.0 * batch.column("y").to_numpy() - 1.0
        rows = np.column_stack([np.ones(len(features)), np.clip(features, -1, 1)])
        bound = np.sqrt(2.0)
        norms = np.linalg.norm(rows, axis=1)
        rows *= np.minimum(1.0, bound / norms)[:, None]
        for start in range(0, len(rows), WINDOW):
            part, sign = rows[start : start + WINDOW], signs[start : start + WINDOW]
            chance = 1 / (1 + np.exp(sign * (part @ np.full(part.shape[1], 0.1))))
            slope = -sign * chance
            part.T @ slope
            (part * (chance * (1 - chance))[:, None]).T @ part
            (part * (slope * slope)[:, None]).T @ part


class Timed(ClientStore):
    """Notes when each release was stored, and how long it took from there to Kafka."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, "site")
        self.made, self.taken = dict[int, float](), list[float]()

    def release(self, *given: Any, **named: Any) -> None:
        super().release(*given, **named)
        self.made |= dict.fromkeys((each.seq for each in given[2]), time.perf_counter())

    def sent(self, study: str, numbers: Any, place: Any) -> None:
        self.taken += [time.perf_counter() - self.made[number] for number in numbers]
        super().sent(study, numbers, place)


def of_a_release(case: Case, rate: float | None, claimed: bool, run: str) -> dict[str, float]:
    study, per = case.task.study, case.task.slots
    with tempfile.TemporaryDirectory() as name, ExitStack() as opened:
        settings = Settings(case.kafka, folder=name, ledger_topic=f"veil.ledger.{run}")
        ensure_topics(settings, [*Topics.of(study).of_clients, ledger_topic(study, settings)])
        began, claims = time.perf_counter(), UNCLAIMED
        opened.enter_context(store := Timed(Path(name) / "site.db"))
        if claimed:
            account = LedgerTopic(settings, "site", store.heritage, print)
            opened.enter_context(closing(account))
            known = account.read(prefix("site", store.ledger))
            claims = Claims(settings, store, known, account.reader, print)
        sender = Sender(store, STUDY, settings, Topics.of(study), claims)
        opened.enter_context(closing(sender))
        start = time.perf_counter() - began
        client, _ = case.client_of("parquet", store, sender, settings, rate=rate and rate * per)
        began, used = time.perf_counter(), time.process_time()
        while client.turn():
            pass
        client.finish()
        clock, processor = time.perf_counter() - began, time.process_time() - used
        log, count = read_partition(settings, settings.ledger_topic, 0), len(store.made)
        return {
            "clock_ms": 1000 * clock / count, "processor_ms": 1000 * processor / count,
            "latency_ms": 1000 * statistics.median(store.taken),
            "claim_bytes": sum(len(r.key + r.value) for r in log) / count, "start_s": start,
        }  # fmt: skip


KINDS = ("parquet", "arrow", "csv", "jsonl", "kafka", "sqlite", "duckdb")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kinds", nargs="*", default=KINDS)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--slopes", type=int, nargs="*", default=[6, 20])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--claims", action="store_true")
    parser.add_argument("--rate", type=float)
    options = parser.parse_args()
    # as the command does, see `pipeline.cli.main`
    gc.set_threshold(50_000, 20, 20)
    if os.environ.get("OPENBLAS_NUM_THREADS") != "1":
        # a second thread of the matrix products would wait for the one core, and count
        alone = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
        command = [sys.executable, "-m", "benchmarks.client", *sys.argv[1:]]
        sys.exit(subprocess.run(command, env=alone, check=False).returncode)
    with tempfile.TemporaryDirectory() as name, ExitStack() as running:
        kafka = ""
        if "kafka" in options.kinds or options.claims:
            kafka = running.enter_context(LocalRuntime(Path(name) / "local")).kafka
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
        for slopes in options.slopes:
            case = Case(Path(name), slopes, options.records, kafka)
            if options.claims:
                print(json.dumps(of_claims(case, options.rate, options.rounds)), flush=True)
            for kind in () if options.claims else options.kinds:
                print(json.dumps(measured(case, kind, options.rounds)), flush=True)


def measured(case: Case, kind: str, rounds: int) -> dict[str, object]:
    ways: dict[str, Callable[[str], float]] = {"client": case.by_client, "script": case.by_hand}
    found = [{name: way(kind) for name, way in ways.items()} for _ in range(rounds)]
    middle = {name: round(statistics.median(each[name] for each in found), 3) for name in ways}
    ratio = round(statistics.median(each["client"] / each["script"] for each in found), 2)
    return {"kind": kind, "slopes": case.slopes, **middle, "ratio": ratio}


def of_claims(case: Case, rate: float | None, rounds: int) -> dict[str, object]:
    # the first client of a process makes the tables of its noise
    case.by_client("parquet")
    found = [of_a_release(case, rate, not at % 2, str(at)) for at in range(2 * rounds)]
    shown: dict[str, object] = {"slopes": case.slopes, "rate": rate}
    for name in found[0]:
        ways = [each[name] for each in found[::2]], [each[name] for each in found[1::2]]
        ratio = statistics.median(a / b if b else 0.0 for a, b in zip(*ways, strict=True))
        shown[name] = [round(each, 3) for each in (*map(statistics.median, ways), ratio)]
    return shown


if __name__ == "__main__":
    main()
