"""Records a second from a Kafka topic to rows, and to releases: d = 10, windows of 250.

`python -m benchmarks.kafka_source [--records N]`. It starts a Kafka and a Redis of its own, fills
topics and times, in seconds of this process's processor: a bare consumer of kafka-python, the
source, and a whole client with noise and ledger; and a second client, which finds in memory what
the first one made once at its start, such as the tables that noise is drawn from. Prints a table
and writes `benchmarks/results/kafka_source.json`.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import KafkaAdminClient, NewTopic

from infra.local import LocalRuntime
from pipeline.methods import task_of
from pipeline.settings import Settings
from pipeline.study import parse_study
from producers.run import Job, run_client
from producers.sources import open_source

RESULTS = Path(__file__).parent / "results"
SIZE, RECORDS, TOPIC, SECOND = 10, 250, "bench-source", "bench-second"
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
    count = parser.parse_args().records
    with tempfile.TemporaryDirectory() as folder, LocalRuntime(Path(folder)) as addresses:
        settings = Settings(kafka=addresses.kafka, redis=addresses.redis, folder=folder)
        for topic in (TOPIC, SECOND):
            fill(addresses.kafka, topic, count)
        rates = {
            "bare consumer": rate(count, lambda: bare(addresses.kafka, count)),
            "source": rate(count, lambda: source(settings)),
            "client": rate(count, lambda: client(settings, TOPIC)),
            "second client": rate(count, lambda: client(settings, SECOND)),
        }
    for name, found in rates.items():
        print(f"{name:14} {found:10,.0f} records per second of processor time")
    results = {"records": count, "window": RECORDS, "features": SIZE, "per_second": rates}
    (RESULTS / "kafka_source.json").write_text(json.dumps(results, indent=2) + "\n")


def fill(kafka: str, topic: str, count: int) -> None:
    """Write records to a topic of one partition."""
    admin = KafkaAdminClient(bootstrap_servers=kafka)
    admin.create_topics([NewTopic(topic, 1, 1)])
    admin.close()
    chance = random.Random(1)
    producer = KafkaProducer(bootstrap_servers=kafka, linger_ms=20, batch_size=1 << 18)
    for _ in range(count):
        record = {f"x{at}": round(chance.uniform(-1, 1), 4) for at in range(SIZE)}
        producer.send(topic, json.dumps({**record, "y": chance.choice("01")}).encode())
    producer.close()


def rate(count: int, run: Callable[[], None]) -> float:
    """Return records per second of this process's processor time."""
    begun = time.process_time()
    run()
    return count / (time.process_time() - begun)


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


def client(settings: Settings, topic: str) -> None:
    """Run a client of its own from a topic to its releases."""
    job = Job(topic, f"kafka://{topic}")
    run_client(task_of(parse_study(STUDY)), settings, job, report=lambda *_: None)


if __name__ == "__main__":
    main()
