"""A study of a test's own, with real processes around it, and what a test asks of them."""

from __future__ import annotations

import hashlib
import os
import random
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, TypeVar

from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import KafkaAdminClient

from agents.announcing import state_key
from infra.keyring import study_path
from infra.topics import ensure_topics
from pipeline.messages.estimate import EstimateMessage, read_estimate
from pipeline.messages.spend import ledger_topic
from pipeline.messages.topics import Topics
from pipeline.methods import task_of
from pipeline.settings import Settings
from pipeline.stream.partition import Partition
from pipeline.study_file.load import parse_study
from producers.database import vault_path
from state import RedisStore
from state.connection import redis_client
from tests.databases import rows
from tests.forks import FORKS, PROGRAM, Process
from tests.program import APART, run_here

Found = TypeVar("Found")
#: Seconds that a slow and busy machine may need for anything: only a test that fails waits so long.
PATIENCE = 180.0

STUDY = """\
[study]
name = "{name}"

[data]
response = {{ name = "failed", positive = "yes", negative = "no" }}

[data.features]
heat = {{ min = 0, max = 100 }}
load = {{ min = -1, max = 1 }}

[estimator]
loss = "logistic"

[privacy]
{privacy}

[window]
records = {records}
growth = {growth}
{window}

[stream]
partitions = {partitions}
retention = "1d"
{stream}
publish = {{ releases = {releases}, seconds = 0.2, pause = 0.05 }}
"""
PRIVATE = 'mechanism = "discrete-gaussian"\nepsilon = 2.0\ndelta = 1e-5'
OPEN = 'mechanism = "none"'
HEADER = "heat,load,failed\n"


def study_text(
    name: str | None = None,
    *,
    records: int = 20,
    partitions: int = 2,
    privacy: str = PRIVATE,
    window: str = "",
    growth: float = 0.0,
    stream: str = "",
    releases: int = 4,
) -> str:
    """Return the text of a study file, by default under a name that nobody has used.

    Windows are alike unless a test asks for others: most count them.
    """
    return STUDY.format(
        name=name or f"t-{uuid.uuid4().hex[:12]}",
        records=records,
        partitions=partitions,
        privacy=privacy,
        window=window,
        growth=growth,
        stream=stream,
        releases=releases,
    )


def lines(count: int, seed: int = 0) -> list[str]:
    """Return `count` good records as CSV lines, none like another."""
    chance = random.Random(seed)
    made = []
    for _ in range(count):
        heat, load = chance.uniform(0, 100), chance.uniform(-1, 1)
        odds = heat / 40 - 1.5 + load + chance.gauss(0, 1)
        made.append(f"{heat:.6f},{load:.6f},{'yes' if odds > 0 else 'no'}\n")
    return made


def write_csv(path: Path, count: int, seed: int = 0) -> Path:
    """Write a CSV file of good records."""
    path.write_text(HEADER + "".join(lines(count, seed)))
    return path


def until(condition: Callable[[], Found], what: str, seconds: float = PATIENCE) -> Found:
    """Wait until a condition holds and return what it gave; fail by a deadline."""
    began = time.monotonic()
    while not (found := condition()):
        waited = time.monotonic() - began
        assert waited < seconds, f"not within {seconds} s: {what}"
        # a question costs Kafka more than it seems, and who has waited long can wait a little more
        time.sleep(min(0.02 + waited / 8, 0.15))
    return found


def until_it_answers(process: Process, answers: Callable[[], bool], log: Path) -> None:
    """Wait until a server answers; fail at once, with its log, if it ends before."""

    def looked() -> bool:
        ended = process.poll() is not None
        assert not ended, log.read_text(errors="replace")
        return answers()

    until(looked, f"an answer of the server of {log}")


class Stage:
    """One study, its folder, and the `veilstream` processes that a test starts for it."""

    #: Python that its processes run first.
    before = ""

    def __init__(
        self, folder: Path, kafka: str, redis_url: str, text: str, *, ledger: str = ""
    ) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.task = task_of(parse_study(text))
        self.topics = Topics.of(self.task.study)
        self.study = folder / f"{self.task.study.name}.toml"
        self.study.write_text(text)
        # clients of other tests have the same ids; those of one folder have one topic
        own = f"veil.ledger.{hashlib.blake2b(bytes(folder), digest_size=8).hexdigest()}"
        self.settings = Settings(
            kafka=kafka, redis=redis_url, folder=str(folder / "home"),
            ledger_topic=ledger or own,
        )  # fmt: skip
        self.redis = redis_client(self.settings)
        self.processes: dict[str, Process] = {}
        self._arguments: dict[str, tuple[object, ...]] = {}
        #: Those whose end the test knows of: it has ended them, or asked for their code.
        self._known: set[Process] = set()
        self.environment = {
            **os.environ,
            "VEILSTREAM_KAFKA": kafka,
            "VEILSTREAM_REDIS": redis_url,
            "VEILSTREAM_FOLDER": self.settings.folder,
            "VEILSTREAM_LEDGER_TOPIC": self.settings.ledger_topic,
        }

    @property
    def there(self) -> str:
        """Python that takes a process into the stage's folder."""
        return f"import os\nos.chdir({str(self.folder)!r})"

    @property
    def store(self) -> RedisStore:
        """The stored state, under the study's key where it has one by now."""
        there = study_path(self.settings, self.task.study.name).exists()
        key = state_key(self.task, self.settings) if there else b""
        return RedisStore(self.redis, self.task, key)

    def __enter__(self) -> Stage:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def start(
        self,
        name: str,
        *arguments: object,
        module: str = PROGRAM,
        stdin: int = subprocess.DEVNULL,
        out: IO[bytes] | None = None,
        before: str = "",
    ) -> Process:
        """Start `veilstream ARGUMENTS` under a name; its output goes to a log of that name.

        Parameters
        ----------
        module
            Whose `main` it is.
        stdin
            What it reads, as `subprocess` is told.
        out
            Where its output goes instead.
        before
            Python that it runs first, as a `sitecustomize` would.
        """
        self._arguments[name] = arguments
        with self.log(name).open("ab") as log:
            self.processes[name] = FORKS.start(
                [str(argument) for argument in arguments], self.environment, out or log,
                module=module, stdin=stdin, before=f"{self.before}\n{before}",
            )  # fmt: skip
        return self.processes[name]

    def worker(self, instance: str = "w0") -> Process:
        """Start a worker under its instance name.

        One that comes back under its name goes on at once: Kafka holds the partitions of another
        for ten seconds.
        """
        return self.start(instance, "worker", self.study, "--instance", instance)

    def produce(self, client: str, source: Path | str, *options: object, **how: Any) -> Process:
        """Start a producer under its client id."""
        return self.start(
            client, "produce", self.study, "--client", client, "--source", source, "--quiet",
            *options, **how,
        )  # fmt: skip

    def produced(self, client: str, source: Path | str, *options: object, **how: Any) -> None:
        """Run a producer to its good end."""
        self.produce(client, source, *options, **how)
        self.ended(client)

    def ended(self, *names: str) -> None:
        """Wait for the good end of processes."""
        for name in names:
            assert self.code(name) == 0, self.said(name)

    def ran(self, *arguments: object, **how: Any) -> subprocess.CompletedProcess[str]:
        """Run a command as `run` does, which must succeed."""
        done = self.run(*arguments, **how)
        assert done.returncode == 0, done.stdout + done.stderr
        return done

    def run(
        self, *arguments: object, seconds: float = PATIENCE, apart: bool = False
    ) -> subprocess.CompletedProcess[str]:
        """Run `veilstream ARGUMENTS` to its end: in this process, if the command allows it.

        Parameters
        ----------
        apart
            Whether it must be started as users start it.
        """
        words = [str(argument) for argument in arguments]
        if apart:
            return subprocess.run(
                [sys.executable, "-m", PROGRAM, *words], stdin=subprocess.DEVNULL, text=True,
                capture_output=True, env=self.environment, timeout=seconds, check=False,
            )  # fmt: skip
        if words[0] in APART:
            return self.run_beside(*words, seconds=seconds)
        return run_here(words, self.environment)

    def run_beside(
        self, *arguments: object, before: str = "", **how: Any
    ) -> subprocess.CompletedProcess[str]:
        """Run a command apart from this process, as `Forks.run` does: several may run at once."""
        return FORKS.run(arguments, self.environment, before=f"{self.before}\n{before}", **how)

    def log(self, name: str) -> Path:
        """Return the log of a process."""
        return self.folder / f"{name}.log"

    def said(self, name: str) -> str:
        """Return what a process has written."""
        return self.log(name).read_text(errors="replace")

    def kill(self, name: str) -> None:
        """End a process as a crash would."""
        self._known.add(self.processes[name])
        self.processes[name].kill()
        self.processes[name].wait()

    def stop(self, name: str, seconds: float = PATIENCE) -> int:
        """Ask a process to end and return its exit code."""
        self.processes[name].send_signal(signal.SIGTERM)
        return self.code(name, seconds)

    def code(self, name: str, seconds: float = PATIENCE) -> int:
        """Wait for a process and return its exit code."""
        self._known.add(self.processes[name])
        try:
            return self.processes[name].wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(
                f"{name} still runs after {seconds} s: {self.said(name)}"
            ) from None

    def revive(self, allowed: set[int]) -> None:
        """Do as a supervisor does for those that ended for a reason that passes."""
        for name, process in list(self.processes.items()):
            code = process.poll()
            if code in (None, 0):
                continue
            assert code in allowed, f"{name} ended with {code}: {self.said(name)}"
            self.start(name, *self._arguments[name])

    def end(self) -> None:
        """End every process of this stage."""
        for name in self.processes:
            self.kill(name)
        self.redis.close()

    def remove(self) -> None:
        """End every process, and remove the study's topics and keys."""
        for name in self.processes:
            self.kill(name)
        if keys := self.stored_keys():
            self.redis.delete(*keys)
        self.redis.close()
        with KafkaAdminClient(bootstrap_servers=self.settings.kafka) as admin:
            # a test may have removed some
            used = (*self.topics.all(), ledger_topic(self.task.study, self.settings))
            admin.delete_topics([topic.name for topic in used], raise_errors=False)

    def stored_keys(self) -> list[bytes]:
        """Return the study's keys in Redis."""
        return sorted(self.redis.scan_iter(f"veil:{{{self.task.study.name}}}:*"))

    def stored_copy(self) -> dict[bytes, bytes]:
        """Return all of the study's keys as they stand at one moment, as Redis itself saves them.

        One after the other they would be of different times while a worker commits.
        """
        stored = self.stored_keys()
        pipeline = self.redis.pipeline(transaction=True)
        for key in stored:
            pipeline.dump(key)
        return dict(zip(stored, pipeline.execute(), strict=True))

    def put_back(self, copy: Mapping[bytes, bytes]) -> None:
        """Have Redis hold an earlier copy again, in one step, as one that lost its end does."""
        pipeline = self.redis.pipeline(transaction=True)
        for key, value in copy.items():
            pipeline.restore(key, 0, value, replace=True)
        pipeline.execute()

    def ensure_topics(self) -> None:
        """Make the study's topics; that of the ledger is the first client's to make."""
        ensure_topics(self.settings, self.topics.all())

    def database(self, client: str) -> Path:
        """Return the file of a client's database."""
        return vault_path(self.settings.home, client)

    def query(self, client: str, statement: str) -> list[tuple[Any, ...]]:
        """Ask a client's database, also while its producer runs."""
        return rows(self.database(client), statement)

    def watermarks(self) -> list[int]:
        """Return how far each partition has been committed."""
        return [self.store.watermark(n) for n in range(self.task.study.stream.partitions)]

    def ends(self) -> list[int]:
        """Return where the log of each partition ends."""
        with reader(self.settings.kafka) as consumer:
            return self._ends(consumer)

    def _ends(self, consumer: Any) -> list[int]:
        places = [
            TopicPartition(self.topics.releases.name, n)
            for n in range(self.task.study.stream.partitions)
        ]
        found = consumer.end_offsets(places)
        return [found[place] for place in places]

    def partitions(self) -> list[Partition]:
        """Return the stored state."""
        return [self.store.load(n) for n in range(self.task.study.stream.partitions)]

    def caught_up(self, seconds: float = PATIENCE) -> None:
        """Wait until everything in the log is committed."""
        with reader(self.settings.kafka) as consumer:
            self.until(
                lambda: self.watermarks() == self._ends(consumer),
                "all releases are folded",
                seconds,
                workers=True,
            )

    def until(
        self,
        condition: Callable[[], Found],
        what: str,
        seconds: float = PATIENCE,
        *,
        workers: bool = False,
    ) -> Found:
        """Wait as `until` does, and fail at once where it is in vain.

        That is where a process has failed, unless the test knows of it. A worker whose state has
        moved on (41) leaves its partitions to another one.

        Parameters
        ----------
        workers
            Whether it is also in vain where workers were started, and none of them is left.
        """

        def looked() -> Found:
            # before the condition: what a process has done at its end, that one sees
            vain = self._failed() or (workers and self._without_workers())
            found = condition()
            assert found or not vain, f"in vain: {what}: {vain}"
            return found

        return until(looked, what, seconds)

    def _failed(self) -> str:
        """Say which process has failed, unless the test knows of it."""
        for name, process in self.processes.items():
            code = process.poll()
            if code not in (None, 0, 41) and process not in self._known:
                return f"{name} ended with {code}: {self.said(name)}"
        return ""

    def _without_workers(self) -> str:
        """Say that workers were started, and that none of them is left."""
        started = [name for name in self.processes if "worker" in self._arguments[name]]
        if not started or any(self.processes[name].poll() is None for name in started):
            return ""
        return f"no worker is left: {[self.said(name) for name in started]}"

    def read(self, topic: str) -> list[Any]:
        """Read a whole topic, in the order of each partition; joins no group."""
        return read_topic(self.settings.kafka, topic)

    def releases(self) -> list[Any]:
        """Read the releases topic."""
        return self.read(self.topics.releases.name)

    def dead_letters(self) -> list[Any]:
        """Read the dead letters."""
        return self.read(self.topics.dead_letters.name)

    def estimates(self) -> list[EstimateMessage]:
        """Read all estimates."""
        return [read_estimate(r.value) for r in self.read(self.topics.estimates.name)]

    def final_estimate(self, seconds: float = PATIENCE) -> EstimateMessage:
        """Wait for the estimate that stands for the whole log."""

        def found() -> EstimateMessage | None:
            newest = read_all(consumer, self.topics.estimates.name)[-1:]
            estimate = read_estimate(newest[0].value) if newest else None
            whole = estimate and [p.next_offset for p in estimate.watermark] == self._ends(consumer)
            return estimate if whole else None

        # a consumer takes six times as long to make as to ask
        with reader(self.settings.kafka) as consumer:
            estimate = self.until(found, "an estimate of the whole log", seconds, workers=True)
        assert estimate is not None
        return estimate

    def verified(self) -> bool:
        """Ask `veilstream state verify`."""
        done = self.run("state", "verify", self.study, "--json")
        assert done.returncode in (0, 40), done.stderr
        return done.returncode == 0 and '"verified": true' in done.stdout


def lent(stage: Stage) -> Iterator[Stage]:
    """Lend a stage to the tests of a fixture, and remove it after them."""
    try:
        yield stage
    finally:
        stage.remove()


def reader(kafka: str) -> Any:
    """Return a consumer that joins no group."""
    return KafkaConsumer(
        bootstrap_servers=kafka, group_id=None, enable_auto_commit=False, fetch_max_wait_ms=50
    )


def read_topic(kafka: str, topic: str, seconds: float = PATIENCE) -> list[Any]:
    """Read a whole topic."""
    with reader(kafka) as consumer:
        return read_all(consumer, topic, seconds)


def read_all(consumer: Any, topic: str, seconds: float = PATIENCE) -> list[Any]:
    """Read a whole topic with a consumer that joins no group."""
    found: list[Any] = []
    deadline = time.monotonic() + seconds
    numbers: Iterable[int] = consumer.partitions_for_topic(topic) or ()
    places = [TopicPartition(topic, n) for n in sorted(numbers)]
    if not places:
        return []
    consumer.assign(places)
    ends = consumer.end_offsets(places)
    consumer.seek_to_beginning(*places)
    while any(consumer.position(place) < ends[place] for place in places):
        assert time.monotonic() < deadline, f"{topic} cannot be read to its end"
        for records in consumer.poll(timeout_ms=200).values():
            found += records
    return sorted(found, key=lambda r: (r.partition, r.offset))


def send(kafka: str, topic: str, records: Iterable[dict[str, Any]]) -> list[Any]:
    """Send records, each as arguments of `KafkaProducer.send`, and return their places."""
    producer = KafkaProducer(
        bootstrap_servers=kafka, acks="all", max_request_size=16 * 2**20, linger_ms=0
    )
    try:
        return [producer.send(topic, **record).get(timeout=PATIENCE) for record in records]
    finally:
        producer.close(timeout=5)
