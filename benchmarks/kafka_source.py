"""Records a second from a Kafka topic to rows, and to releases: d = 10, windows of 250.

`python -m benchmarks.kafka_source [--records N] [--rounds N]`. It starts a Kafka and a Redis of its
own, fills a topic and times, in seconds of this process's processor: a bare consumer of
kafka-python, the source, and a whole client with noise and ledger: from where it begins to read,
and with its start, when it asks Kafka for all that it must know before. They take turns, and of all
rounds the quickest counts: what else the machine does only adds. Prints a table and writes
`benchmarks/results/kafka_source.json`.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import KafkaAdminClient, NewTopic

from infra.local import LocalRuntime
from pipeline.methods import task_of
from pipeline.settings import Settings
from pipeline.study_file.load import parse_study
from producers.sources import open_source
from producers.start import Job, run_client

RESULTS = Path(__file__).parent / "results"
SIZE, RECORDS, TOPIC = 10, 250, "bench-source"
STUDY = f"""
[study]
name = "bench-source"
[data]
response = {{ name = "y", positive = "1", negative = "0" }}
[data.features]
{"".join(f"x{at} = {{ min = -1, max = 1 }}{chr(10)}" for at in range(SIZE))}
[estimator]
loss = "logistic"
[privacy]
mechanism = "discrete-gaussian"
epsilon = 1.0
delta = 1e-6
[window]
records = {RECORDS}
[stream]
max_in_flight_windows = 0
"""


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    count, times = options.records, dict[str, list[float]]()
    # as the command does, see `pipeline.cli.main`
    gc.set_threshold(50_000, 20, 20)
    with tempfile.TemporaryDirectory() as folder, LocalRuntime(Path(folder)) as addresses:
        settings = Settings(kafka=addresses.kafka, redis=addresses.redis, folder=folder)
        fill(addresses.kafka, count)
        for number in range(options.rounds):
            # nobody else has the topic in a folder of its own
            own = replace(settings, folder=f"{folder}/{number}")
            begun = time.process_time()
            bare(addresses.kafka, count)
            read = time.process_time()
            source(settings)
            rows = time.process_time()
            started = client(own, f"bench-{number}", count)
            ended = time.process_time()
            for name, found in (
                ("bare consumer", read - begun),
                ("source", rows - read),
                ("client", ended - started),
                ("client with its start", ended - rows),
            ):
                times.setdefault(name, []).append(found)
    rates = {name: count / min(found) for name, found in times.items()}
    for name, found in rates.items():
        print(f"{name:22} {found:10,.0f} records per second of processor time")
    results = {
        "records": count,
        "window": RECORDS,
        "features": SIZE,
        "per_second": rates,
        "microseconds_of_a_record": {
            name: [round(1e6 * one / count, 2) for one in found] for name, found in times.items()
        },
    }
    (RESULTS / "kafka_source.json").write_text(json.dumps(results, indent=2) + "\n")


def fill(kafka: str, count: int) -> None:
    """Write records to a topic of one partition."""
    admin = KafkaAdminClient(bootstrap_servers=kafka)
    admin.create_topics([NewTopic(TOPIC, 1, 1)])
    admin.close()
    chance = random.Random(1)
    producer = KafkaProducer(bootstrap_servers=kafka, linger_ms=20, batch_size=1 << 18)
    for _ in range(count):
        record = {f"x{at}": round(chance.uniform(-1, 1), 4) for at in range(SIZE)}
        producer.send(TOPIC, json.dumps({**record, "y": chance.choice("01")}).encode())
    producer.close()


def bare(kafka: str, count: int) -> None:
    """Read the topic with the library alone."""
    consumer = KafkaConsumer(bootstrap_servers=kafka, group_id=None, max_poll_records=2000)
    partition = TopicPartition(TOPIC, 0)
    consumer.assign([partition])
    consumer.seek_to_beginning(partition)
    while count > 0:
        count -= sum(map(len, consumer.poll(200).values()))
    consumer.close()


def source(settings: Settings) -> None:
    """Read the topic as a client does."""
    opened = open_source(f"kafka://{TOPIC}", None, folder=Path(), settings=settings)
    while not opened.ended:
        opened.read(4096, 0.2)
    opened.close()


def client(settings: Settings, name: str, count: int) -> float:
    """Run a client from the topic to its releases; return when it began to read."""
    job, begun = Job(name, f"kafka://{TOPIC}"), list[float]()
    done = run_client(
        task_of(parse_study(STUDY)), settings, job, report=lambda *_: None,
        started=lambda: begun.append(time.process_time()),
    )  # fmt: skip
    if (done.records, done.releases) != (count, count // RECORDS):
        raise AssertionError(f"{done.records} records and {done.releases} releases of {count}")
    return begun[0]


if __name__ == "__main__":
    main()
