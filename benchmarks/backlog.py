"""How fast a backlog is worked off, and how well models keep up with it.

`python -m benchmarks.backlog [--cases a b c d] [--records N] [--window N] [--growth G] [--plain]`.
On a real Kafka and Redis, with a worker that has nothing to do, logistic, six features:

a: one client with a million records of one Parquet file
b: three clients with 60,000 records each, of files, all at full speed
c: one client with a topic of 60,000
d: three clients with a file of 60,000 each, one after another

The clock runs from the start of the client's process to the commit of its last release. What of
that is the start of the process and the connections of the client is told apart. Of each case it
says behind how many record slots the first interval came, how many of the estimates after it had
none, and how many slots of the log the model of a release had not seen. Writes
`benchmarks/results/backlog.json`.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from infra.local import LocalRuntime
from infra.local.processes import free_port
from pipeline.settings import Settings

RESULTS = Path(__file__).parent / "results" / "backlog.json"
SIZE, SLOPES = 6, np.array([0.8, -0.6, 0.4, 0.0, 0.9, -0.3])
CASES = {
    "a": "1,000,000 records of one Parquet file",
    "b": "three clients with 60,000 records each, at full speed",
    "c": "a topic of 60,000 records",
    "d": "three files of 60,000 records, one after another",
}
STUDY = """
[study]
name = "{name}"
[data]
response = {{ name = "y", positive = "1", negative = "0" }}
[data.features]
{features}
[estimator]
loss = "logistic"
[privacy]
mechanism = "discrete-gaussian"
epsilon = {epsilon}
delta = 1e-6
[window]
records = {window}
{growth}
[stream]
partitions = 1
"""


@dataclass
class Found:
    """What a case gave.

    start: Seconds of the first client's process before it read a record: imports and connections.
    seconds: From the start of the first client's process to the commit of the last release.
    first: Slots of all clients behind the first estimate with an interval; None: there was none.
    lost: Estimates after that one that had none, of so many.
    behind, share: Slots that the models of releases had not seen, and their share of all that were
        before the release, behind the public start: the median and the largest.
    """

    case: str
    releases: int
    models: int
    start: float
    seconds: float
    first: int | None
    lost: int
    estimates: int
    behind: tuple[float, float]
    share: tuple[float, float]


def main() -> None:
    """Run the benchmark, or be one of its clients."""
    if sys.argv[1:2] == ["client"]:
        client(*sys.argv[2:])
        return
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", nargs="+", choices=list(CASES), default=list(CASES))
    parser.add_argument("--records", type=int, help="of each source, in place of the case's own")
    parser.add_argument("--window", type=int, default=250)
    parser.add_argument("--growth", help="of windows; default: the study's default")
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=1, help="of each case, on other records")
    options = parser.parse_args()
    results = []
    with tempfile.TemporaryDirectory() as name, LocalRuntime(Path(name)) as addresses:
        for case in options.cases:
            for number in range(options.rounds):
                folder = Path(name) / f"{case}{number}"
                folder.mkdir()
                settings = Settings(addresses.kafka, addresses.redis, folder=str(folder))
                found = run(case, number, folder, settings, options)
                results.append(asdict(found))
                print(told(found), flush=True)
    said = {name: given for name, given in vars(options).items() if name != "cases"}
    RESULTS.write_text(json.dumps({"options": said, "cases": results}, indent=1) + "\n")


def told(found: Found) -> str:
    """Return a case in words."""
    first = "no interval" if found.first is None else f"first interval at {found.first:,} slots"
    behind, share = found.behind, found.share
    return (
        f"{found.case}: {CASES[found.case]}: {found.seconds:.1f} s, of which {found.start:.1f} s "
        f"are the start of the client; {found.releases} releases at {found.models} models. "
        f"{first}, {found.lost} of {found.estimates} estimates after it without. Models were "
        f"{behind[0]:,.0f} slots behind, at most {behind[1]:,.0f}; {share[0]:.1%}, at most "
        f"{share[1]:.1%}"
    )


def run(
    case: str, number: int, folder: Path, settings: Settings, options: argparse.Namespace
) -> Found:
    """Run a round of a case with a worker of its own."""
    study = folder / "study.toml"
    study.write_text(
        STUDY.format(
            name=f"backlog-{case}{number}",
            features="\n".join(f"x{at} = {{ min = -1, max = 1 }}" for at in range(SIZE)),
            window=options.window,
            growth="" if options.growth is None else f"growth = {options.growth}",
            epsilon=options.epsilon,
        )
    )
    count = options.records or (1_000_000 if case == "a" else 60_000)
    names = [f"{case}{number}-{client}" for client in range(3 if case in "bd" else 1)]
    sources = {name: source(case, name, folder, settings, count) for name in names}
    environment = {
        **os.environ,
        "VEILSTREAM_KAFKA": settings.kafka,
        "VEILSTREAM_REDIS": settings.redis,
        "VEILSTREAM_FOLDER": str(folder),
    }
    with worker(study, environment):
        groups = [names] if case == "b" else [[name] for name in names]
        begun, marks = time.time(), list[dict[str, float]]()
        for group in groups:
            clients = []
            for name in group:
                words = ["client", str(study), name, sources[name]]
                command = [sys.executable, "-m", "benchmarks.backlog", *words]
                clients.append(
                    subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
                )
            for process in clients:
                said, _ = process.communicate()
                if process.returncode:
                    raise RuntimeError(f"a client ended with {process.returncode}")
                marks.append(json.loads(said))
        ended = folded(study, settings)
        time.sleep(2.0)  # the last estimate
    return judged(case, study, settings, marks[0]["read"] - begun, ended - begun)


def source(case: str, name: str, folder: Path, settings: Settings, count: int) -> str:
    """Make the source of a client's records and return where it is."""
    import pyarrow as pa  # noqa: PLC0415
    import pyarrow.parquet as pq  # noqa: PLC0415

    rng = np.random.default_rng(list(name.encode()))
    features = rng.uniform(-1, 1, (count, SIZE))
    responses = rng.random(count) < 1 / (1 + np.exp(0.5 - features @ SLOPES))
    columns = {f"x{at}": features[:, at] for at in range(SIZE)}
    table = pa.table({**columns, "y": responses.astype(int).astype(str)})
    if case == "c":
        return filled(settings, name, table)
    path = folder / f"{name}.parquet"
    pq.write_table(table, path)
    return str(path)


def filled(settings: Settings, topic: str, table: Any) -> str:
    """Write records to a topic of one partition and return its name as a source."""
    from kafka import KafkaProducer  # noqa: PLC0415
    from kafka.admin import KafkaAdminClient, NewTopic  # noqa: PLC0415

    admin = KafkaAdminClient(bootstrap_servers=settings.kafka)
    admin.create_topics([NewTopic(topic, 1, 1)])
    admin.close()
    producer = KafkaProducer(bootstrap_servers=settings.kafka, linger_ms=20, batch_size=1 << 18)
    for record in table.to_pylist():
        producer.send(topic, json.dumps(record).encode())
    producer.close()
    return f"kafka://{topic}"


def client(study: str, name: str, place: str) -> None:
    """Run one client to the end of its source, and print when it began to read."""
    from pipeline.methods import task_of  # noqa: PLC0415
    from pipeline.study_file.load import read_study  # noqa: PLC0415
    from producers.start import Job, run_client  # noqa: PLC0415

    # as the command does
    gc.set_threshold(50_000, 20, 20)
    task, begun = task_of(read_study(Path(study))), list[float]()
    run_client(
        task, Settings.read(), Job(name, place), report=lambda *_: None,
        started=lambda: begun.append(time.time()),
    )  # fmt: skip
    print(json.dumps({"read": begun[0], "cpu": time.process_time()}))


@contextmanager
def worker(study: Path, environment: dict[str, str]) -> Iterator[None]:
    """Run a worker, once it has its partition."""
    port = free_port()
    words = ["worker", str(study), "--health-port", str(port)]
    process = subprocess.Popen(
        [sys.executable, "-m", "pipeline.cli.main", *words], env=environment,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        while not _answers(f"http://127.0.0.1:{port}/healthz"):
            time.sleep(0.1)
        yield
    finally:
        process.terminate()
        process.wait()


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=1) as answer:  # noqa: S310  this machine
            return bool(json.load(answer)["publishes"])
    except OSError:
        return False


def folded(study: Path, settings: Settings) -> float:
    """Wait until all releases are folded, and return when that was, in seconds since 1970."""
    from kafka import TopicPartition  # noqa: PLC0415

    from agents.announcing import store_of  # noqa: PLC0415
    from infra.kafka import log_reader  # noqa: PLC0415
    from pipeline.messages.topics import Topics  # noqa: PLC0415
    from pipeline.methods import task_of  # noqa: PLC0415
    from pipeline.study_file.load import read_study  # noqa: PLC0415

    task = task_of(read_study(study))
    place = TopicPartition(Topics.of(task.study).releases.name, 0)
    asked = time.time()
    with log_reader(settings, wait_ms=100) as reader:
        end = reader.end_offsets([place])[place]
    store, took = store_of(task, settings), time.time() - asked
    while store.watermark(0) < end:
        time.sleep(0.005)
        took = 0.0
    return time.time() - took


def judged(case: str, study: Path, settings: Settings, start: float, seconds: float) -> Found:
    """Read the topics of a case, and say what they show."""
    from infra.kafka import read_all  # noqa: PLC0415
    from pipeline.messages.estimate import read_estimate  # noqa: PLC0415
    from pipeline.messages.model import read_model  # noqa: PLC0415
    from pipeline.messages.topics import Topics  # noqa: PLC0415
    from pipeline.methods import task_of  # noqa: PLC0415
    from pipeline.release.layout import HEADER  # noqa: PLC0415
    from pipeline.study_file.load import read_study  # noqa: PLC0415

    task = task_of(read_study(study))
    topics = Topics.of(task.study)

    def values(topic: str) -> list[bytes]:
        return [value for _, value in read_all(settings, topic) if value is not None]

    models = [read_model(task, value) for value in values(topics.models.name)]
    seen = {0: 0} | {model.version: model.watermark for model in models}
    before, behind, share = 0, list[int](), list[float]()
    releases = values(topics.releases.name)
    for value in releases:
        row = np.frombuffer(value, HEADER, count=1)[0]
        if row["version"]:
            behind.append(before - seen[int(row["version"])])
            share.append(behind[-1] / before)
        before += int(row["records"])
    estimates = [read_estimate(value) for value in values(topics.estimates.name)]
    given = [any(one.interval for one in estimate.coefficients) for estimate in estimates]
    first = given.index(True) if any(given) else None
    after = [] if first is None else given[first + 1 :]
    return Found(
        case, len(releases), len(seen) - 1, start, seconds,
        None if first is None else estimates[first].records, after.count(False), len(after),
        _middle(behind), _middle(share),
    )  # fmt: skip


def _middle(values: Sequence[float]) -> tuple[float, float]:
    return (float(np.median(values)), float(max(values))) if values else (0.0, 0.0)


if __name__ == "__main__":
    main()
