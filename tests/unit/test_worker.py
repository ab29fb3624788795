"""A worker: its start, batches and commits, stalls, lost logs, and what it says again."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import aiokafka
import mode
import msgspec
import pytest
from aiokafka import ConsumerRecord, TopicPartition
from aiokafka.consumer.fetcher import FetchResult, PartitionRecords
from aiokafka.errors import IllegalStateError, KafkaConnectionError, KafkaError
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from aiokafka.record.memory_records import MemoryRecords
from aiokafka.util import commit_structure_validate
from faust.types.tuples import TP
from prometheus_client.parser import text_string_to_metric_families

from agents import app as transport
from agents import publishing as publishing_module
from agents import worker
from agents.app import MOST_WAITING, BatchConsumer, BatchThread, PlainRecords, tell_of_waits
from agents.folding import STALLED_SECONDS, Folding, Meters, Progress, check_end, check_log
from agents.link import _started
from agents.metrics import Health
from agents.publishing import LOOK_SECONDS, RECENT, Counts, Due, Publishing
from infra import dead_letters
from infra.admissions import Roll
from infra.local.processes import free_port
from pipeline.cli import client
from pipeline.errors import BrokerError, NumericError, OffsetGap, PayloadError, StateError
from pipeline.messages.admission import KEYS, Entry, Link, Standing, StudyKeys, write_signed
from pipeline.messages.envelope import DeadLetter, dlq_headers, rfc3339
from pipeline.messages.estimate import ProgressMessage
from pipeline.messages.model import read_model, write_model
from pipeline.messages.topics import Topics
from pipeline.methods import task_of
from pipeline.release.model import round_model
from pipeline.release.policy import SECONDS, Rhythm
from pipeline.release.task import Task
from pipeline.settings import Settings
from pipeline.stream.fold import Reducer
from pipeline.stream.in_process import OfflineRun
from pipeline.stream.merge import model_after, start_is_over
from pipeline.stream.partition import Head, Partition
from pipeline.study.model import Publish
from pipeline.study_file.load import parse_study
from tests.builders import LogEntry, folded, relogged, sample_log, study_text
from tests.page.shown import Stream
from tests.trusted import World, trusted_task

TASK = task_of(parse_study(study_text(p=1, records=8)))
TOPICS = Topics.of(TASK.study)


@dataclass
class Scene:
    """A clock, watermarks, and what Kafka says is left."""

    now: float = 0.0
    watermarks: dict[int, int] = field(default_factory=lambda: {0: 5, 1: 7})
    left: dict[int, int] | None = field(default_factory=lambda: {0: 3, 1: 0})

    def progress(self) -> Progress:
        async def ask(_folded: Mapping[int, int]) -> Mapping[int, int] | None:
            return self.left

        return Progress(self, ask, lambda: self.now)  # type: ignore[arg-type]

    @property
    def partitions(self) -> dict[int, Any]:
        return {n: SimpleNamespace(head=SimpleNamespace(next_offset=w))
                for n, w in self.watermarks.items()}  # fmt: skip


def look(progress: Progress, scene: Scene, seconds: float) -> list[str]:
    """Let time pass, look, and return what is wrong."""
    scene.now += seconds
    asyncio.run(progress.look())
    return progress.faults()


def test_something_left_and_nothing_folded_for_long_is_a_stall_until_it_moves() -> None:
    scene = Scene()
    progress = scene.progress()
    assert look(progress, scene, 0.0) == []
    assert look(progress, scene, STALLED_SECONDS - 1) == []
    [fault] = look(progress, scene, 1.0)
    assert "partition 0: 3 records are left" in fault
    assert progress.left == {0: 3, 1: 0}
    scene.watermarks[0] += 1
    assert look(progress, scene, 1.0) == []
    assert look(progress, scene, STALLED_SECONDS) != []


def test_a_log_that_is_folded_to_its_end_is_no_stall_however_long() -> None:
    scene = Scene(left={0: 0, 1: 0})
    progress = scene.progress()
    for _ in range(3):
        assert look(progress, scene, 2 * STALLED_SECONDS) == []
    # what comes then has its time
    scene.left = {0: 1, 1: 0}
    assert look(progress, scene, 5.0) == []
    assert look(progress, scene, STALLED_SECONDS - 6) == []


def test_a_partition_that_was_taken_away_is_none_of_ours() -> None:
    scene = Scene()
    progress = scene.progress()
    look(progress, scene, 0.0)
    del scene.watermarks[0]
    assert look(progress, scene, 2 * STALLED_SECONDS) == []


def test_ends_that_nobody_tells_are_a_fault_too() -> None:
    scene = Scene()
    progress = scene.progress()
    look(progress, scene, 0.0)
    scene.left = None
    assert look(progress, scene, STALLED_SECONDS - 1) == []
    assert "Kafka has not said" in look(progress, scene, 1.0)[0]


class Steps:
    """An estimate step with a store and a topic that hold what a test puts there."""

    def __init__(self) -> None:
        self.now = 0.0
        self.sent: list[str] = []
        self.end, self.looks = 0, list[int | None]()
        state = Partition.empty(TASK)
        self.folding: Any = SimpleNamespace(
            partitions={0: state, 1: Partition.empty(TASK)}, meters=Meters(), came=Counter()
        )
        store: Any = SimpleNamespace(
            newest_model=lambda: None, summed=lambda *_: {}, store_model=lambda *_: None
        )
        self.publishing = Publishing(
            *(TASK, TOPICS, store, self.folding),
            *(self.send, self.read, self.extent, lambda: self.now),
        )
        self.fold(releases=20)

    def fold(self, releases: int) -> None:
        """Let the first so many releases of a log be folded."""
        Reducer(TASK).fold(
            self.folding.partitions[0], sample_log(TASK, releases=releases, clients=2)
        )

    async def send(self, topic: str, *_: object) -> None:
        self.sent.append(topic)

    async def read(self, _topic: str, last: int | None) -> list[Any]:
        self.looks.append(last)
        return []

    async def extent(self, _topic: str, _count: int) -> tuple[int, int]:
        return 0, self.end


def test_an_estimate_step_that_fails_for_long_is_a_stall_and_publishes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise NumericError("no finite estimate")

    steps = Steps()
    with monkeypatch.context() as broken:
        broken.setattr(publishing_module, "combine", fail)
        assert not asyncio.run(steps.publishing.publish_if_due(1e9))
        assert (steps.publishing.message, steps.publishing.faults()) == (None, [])
        steps.now = STALLED_SECONDS
        assert "no finite estimate" in steps.publishing.faults()[0]
    # more releases alone have it tried again, of which some have come
    assert not asyncio.run(steps.publishing.publish_if_due(2e9))
    steps.fold(releases=40)
    assert asyncio.run(steps.publishing.publish_if_due(2e9))
    assert steps.publishing.message is not None
    assert steps.publishing.message.published_at == rfc3339(2e9)
    assert steps.publishing.faults() == []
    assert TOPICS.estimates.name in steps.sent


def test_whoever_fills_the_models_topic_has_little_of_it_read() -> None:
    """All of it is read once, at the start: who fills it then must not hold estimates up."""
    steps = Steps()

    async def run() -> None:
        await steps.publishing._look_at_models()
        await steps.publishing.publish_if_due(1e9)
        for end in (1, 10**7):
            steps.now += LOOK_SECONDS
            steps.end = end
            await steps.publishing._look_at_models()

    asyncio.run(run())
    assert steps.looks == [None, RECENT]


def test_an_estimate_step_that_hangs_is_a_stall() -> None:
    steps = Steps()

    async def run() -> list[str]:
        never = asyncio.Event()

        async def hang(*_: object) -> None:
            await never.wait()

        steps.publishing._models.send_again = hang  # type: ignore[method-assign]
        steps.folding.moved = asyncio.Event()
        steps.folding.moved.set()
        task = asyncio.create_task(steps.publishing.run())
        await asyncio.sleep(0.01)
        steps.now = STALLED_SECONDS
        found = steps.publishing.faults()
        task.cancel()
        return found

    assert "taken 60 s so far" in asyncio.run(run())[0]


def test_healthz_says_what_is_wrong() -> None:
    folding = SimpleNamespace(partitions={}, releases=0, meters=Meters())
    publishing = SimpleNamespace(owner=True, message=None, faults=lambda: ["b"])
    pages = Health(folding, publishing, SimpleNamespace(left={}, faults=lambda: ["a"]))  # type: ignore[arg-type]
    assert pages.facts()["status"] == "starting"
    folding.partitions = {0: None}
    assert pages.facts() == {"status": "stalled", "publishes": True, "reasons": ["a", "b"]}
    publishing.faults = pages._progress.faults = list  # type: ignore[method-assign]
    assert pages.facts()["status"] == "ok"


def test_repeats_bad_records_and_old_ones_are_not_counted_as_applied() -> None:
    log = sample_log(TASK, releases=6, clients=2)
    bad = LogEntry(0, b"client-0", b"none")
    entries = relogged([*log[:4], log[0], bad, *log[4:], log[1]])

    async def run() -> int:
        async def sent(*_: object) -> None:
            return None

        committed = list[int]()
        store = SimpleNamespace(commit=lambda *_, expected: committed.append(expected))
        folding = Folding(TASK, TOPICS, store, sent, sent, sent)  # type: ignore[arg-type]
        folding.partitions[0] = Partition.empty(TASK)
        assert await folding.handle(0, entries[:5])
        # the first of them are folded already
        assert await folding.handle(0, entries[3:])
        # what all is known may be acknowledged, and changes nothing that would be stored
        assert await folding.handle(0, entries[1:4])
        counted = folding.meters.registry.get_sample_value
        letters = {"reason": "undecodable"}
        assert counted("veilstream_dead_letters_by_reason_total", letters) == 1
        assert counted("veilstream_commit_seconds_count") == len(committed) == 2
        return folding.releases

    assert asyncio.run(run()) == 6


def test_that_a_worker_does_not_get_on_is_said_once_for_each_time() -> None:
    said: list[str] = []
    folding: Any = SimpleNamespace(partitions={0: None}, releases=0)
    states = iter([[], ["it hangs"], ["it hangs"], [], ["it hangs"]])

    async def at_once(_: float) -> None:
        return

    told = tell_of_waits(folding, said.append, lambda: next(states))
    with pytest.MonkeyPatch.context() as quick:
        quick.setattr("agents.app.asyncio.sleep", at_once)
        with pytest.raises(RuntimeError, match="StopIteration"):
            asyncio.run(told)
    assert said == ["WARNING: this worker makes no progress: it hangs"] * 2


class Places:
    """Counts assignments and takes down failures."""

    topic = "releases"

    def __init__(self) -> None:
        self.failures: list[Exception] = []

    def failed(self, error: Exception) -> None:
        self.failures.append(error)


class Torn(BatchConsumer):  # type: ignore[misc]
    """A consumer whose partitions are taken away some times while it seeks."""

    def __init__(self, faults: list[Exception]) -> None:
        self.transport = SimpleNamespace(positions=Places())
        self.left, self.sought = faults, 0

    async def _seek_all(self, _positions: object) -> None:
        if self.left:
            raise self.left.pop(0)
        self.sought += 1


def run(faults: list[Exception]) -> Torn:
    consumer = Torn(faults)
    with pytest.MonkeyPatch.context() as quick:
        quick.setattr(transport, "PAUSE_SECONDS", 0.0)
        asyncio.run(consumer.perform_seek())
    return consumer


def test_a_partition_that_is_taken_away_meanwhile_is_looked_up_no_more() -> None:
    found = run([IllegalStateError("No current assignment for partition 0")] * 3)
    assert (found.sought, found.transport.positions.failures) == (1, [])


def test_an_assignment_that_never_settles_ends_the_worker() -> None:
    found = run([IllegalStateError("no")] * transport.ATTEMPTS)
    assert (found.sought, len(found.transport.positions.failures)) == (0, 1)


@pytest.mark.parametrize("fault", [KafkaError(), TimeoutError()])
def test_a_fault_of_kafka_ends_the_worker_with_its_own_code(fault: Exception) -> None:
    assert run([fault]).transport.positions.failures == [fault]


def test_records_are_handed_out_as_they_were_parsed() -> None:
    """Else aiokafka copies each of them, which takes longer than its fold."""
    built = DefaultRecordBatchBuilder(
        magic=2, compression_type=0, is_transactional=0, producer_id=-1, producer_epoch=-1,
        base_sequence=-1, batch_size=1 << 16,
    )  # fmt: skip
    for offset in range(3):
        built.append(offset, timestamp=7, key=b"a", value=b"%d" % offset, headers=[("h", b"x")])
    held = PartitionRecords(
        TopicPartition("t", 0), MemoryRecords(bytes(built.build())), [], 0, None, None, True, 0
    )
    kept = PlainRecords()
    kept[TopicPartition("t", 0)] = FetchResult(
        TopicPartition("t", 0), assignment=None, partition_records=held, backoff=0
    )
    records = list(held)
    assert not any(isinstance(record, ConsumerRecord) for record in records)
    assert [(r.offset, r.timestamp, r.key, r.value, list(r.headers)) for r in records] == [
        (i, 7, b"a", b"%d" % i, [("h", b"x")]) for i in range(3)
    ]


class Taken(BatchThread):  # type: ignore[misc]
    """The thread of a consumer, as aiokafka's own check of what is to be committed sees it."""

    def __init__(self, mine: set[TP]) -> None:
        self._mine, self.tp_last_committed_at = mine, {}
        self.committed: list[Any] = []
        self.crashes: list[BaseException] = []

    def assignment(self) -> set[TP]:
        return self._mine

    def _ensure_consumer(self) -> Any:
        async def commit(offsets: Any) -> None:
            self.committed.append(commit_structure_validate(offsets))

        return SimpleNamespace(commit=commit)

    async def crash(self, reason: BaseException) -> None:
        self.crashes.append(reason)


@pytest.mark.parametrize("mine", [set(), {TP("releases", 0)}])
def test_a_commit_whose_partitions_are_taken_away_on_its_way_is_no_crash(mine: set[TP]) -> None:
    thread = Taken(mine)
    done = asyncio.run(thread._commit({TP("releases", 0): 7, TP("releases", 1): 3}))
    assert (done, len(thread.committed), thread.crashes) == (bool(mine), len(mine), [])


def test_a_log_that_ends_before_what_was_folded_was_made_anew() -> None:
    for after in (40, 41):
        check_end("t", 0, 40, after)
        check_log("t", 0, 40, 40, after)
    with pytest.raises(StateError, match="study recover"):
        check_end("t", 0, 40, 39)
    with pytest.raises(StateError, match="study recover"):
        check_log("t", 0, 40, 0, 39)


def test_what_retention_took_before_it_was_folded_is_for_who_folds_it() -> None:
    # a watermark that was read before it moved on, and a log that is empty now
    check_end("t", 0, 100, 400)
    check_end("t", 0, 100, 101)
    with pytest.raises(OffsetGap, match="offsets 100 to 299 were removed"):
        check_log("t", 0, 100, 300, 400)


async def patiently() -> None:
    consumer = aiokafka.AIOKafkaConsumer(bootstrap_servers=f"127.0.0.1:{free_port()}")
    try:
        async with asyncio.timeout(2.5):
            await _started(consumer)
    finally:
        await consumer.stop()


def test_a_broker_that_does_not_answer_is_waited_for() -> None:
    # and whoever waits says how long
    with pytest.raises(TimeoutError):
        asyncio.run(patiently())


@pytest.mark.parametrize("number", [0, None])
def test_a_letter_behind_the_note_that_it_is_done_with_is_new(
    monkeypatch: pytest.MonkeyPatch, number: int | None
) -> None:
    """Of a log that was made anew: sent again to the place where it stood, it has failed again."""
    fault = PayloadError("not-admitted", "why")
    failed = DeadLetter(4, b"c", b"bytes", (), fault).annotated("log", 0)
    marks = {"done": "replayed", "partition": 0, "offset": 4}
    done = dlq_headers(marks if number is None else {**marks, "letter": number})
    topic: list[Any] = []

    def found() -> list[tuple[int, str]]:
        monkeypatch.setattr(dead_letters, "read_partition", lambda *_: iter(topic))
        letters = dead_letters.read_letters(trusted_task().study, None)  # type: ignore[arg-type]
        return [(letter.number, letter.done) for letter in letters]

    def add(headers: Any, value: bytes | None) -> None:
        topic.append(
            SimpleNamespace(offset=len(topic), key=b"c", value=value, headers=headers, timestamp=1)
        )

    add(failed, b"bytes")
    # a worker repeats it after a crash
    add(failed, b"bytes")
    assert found() == [(0, "")]
    add(done, None)
    add(failed, b"bytes")
    assert found() == [(0, "replayed"), (3, "")]


class Log:
    """A log of one partition, as `History` reads it; `first`: what retention has left."""

    def __init__(self, world: World, first: int = 0) -> None:
        self._log, self._first = world.log, first

    def __enter__(self) -> Log:
        return self

    def __exit__(self, *_: object) -> None: ...

    def extents(self) -> dict[int, Any]:
        return {0: SimpleNamespace(first=self._first, after=len(self._log))}

    def seek(self, spans: dict[int, Any]) -> None:
        self._span = spans[0]

    def records(self, _number: int) -> Any:
        return iter(self._log[self._span.start : self._span.stop])


def warned(
    monkeypatch: pytest.MonkeyPatch, world: World, said: dict[str, Entry], first: int = 0
) -> str:
    """Return the warning of a clients topic that says this."""
    study, pair = world.task.study, world.pairs[0]
    roll, lines = Roll(study, pair.public), list[str]()
    keys = StudyKeys(study.name, [Link(1, pair.public.hex())])
    roll.take(KEYS, write_signed(keys, pair))
    roll.clients = {name: Standing(study.name, name, [entry]) for name, entry in said.items()}
    monkeypatch.setattr(client, "history_of", lambda *_: Log(world, first))
    monkeypatch.setattr(client, "say", lines.append)
    client._warn_of_lost(world.task, None, roll)  # type: ignore[arg-type]
    return "".join(lines)


@pytest.mark.parametrize("offset", [0, 2, 9])
def test_a_word_that_was_said_again_is_found_wherever_the_log_has_it(
    monkeypatch: pytest.MonkeyPatch, offset: int
) -> None:
    """A worker that says it again from the log knows no place: it may be before that, or behind."""
    world = World()
    for name in ("b", "a", "b"):
        world.admit(name)
    said = {"a": Entry(2, world.client("a").public.hex(), 0, offset)}
    assert warned(monkeypatch, world, said) == ""


def test_a_log_that_lacks_a_word_is_said_by_a_name_that_a_terminal_bears(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world, name = World(), "\x1b[31ma"
    # an older word about it is not that one
    world.admit(name)
    world.admit("b")
    said = {name: Entry(3, world.client(name).public.hex(), 0, 0)}
    found = warned(monkeypatch, world, said)
    assert "WARNING" in found
    assert "1 client: '\\x1b[31ma'" in found
    # what retention has taken, nobody can tell
    assert warned(monkeypatch, world, said, first=1) == ""


def reads(waiting: int, *, flow_active: bool = True) -> int:
    """Return how often a consumer asks the fetcher while so many batches wait for the agent."""

    async def asked() -> int:
        queues = [asyncio.Queue[int](), asyncio.Queue[int]()]
        for number in range(waiting):
            queues[number % 2].put_nowait(number)
        count = 0

        async def fetched(_: float) -> tuple[None, None]:
            nonlocal count
            count += 1
            return None, None

        consumer: Any = SimpleNamespace(
            app=SimpleNamespace(topics=[SimpleNamespace(queue=queue) for queue in queues]),
            transport=SimpleNamespace(positions=None), flow_active=flow_active,
            sleep=asyncio.sleep, _wait_next_records=fetched,
        )  # fmt: skip
        consumer._waiting = lambda: BatchConsumer._waiting(consumer)
        assert [found async for found in BatchConsumer.getmany(consumer, 1.0)] == []
        return count

    return asyncio.run(asked())


@pytest.mark.parametrize(("waiting", "read"), [(0, 1), (MOST_WAITING - 1, 1), (MOST_WAITING, 0)])
def test_no_batch_is_read_while_enough_wait(waiting: int, read: int) -> None:
    assert reads(waiting) == read


def test_what_waits_for_a_rebalance_holds_nothing_up() -> None:
    # nobody folds meanwhile, and this is where the worker finds its new positions
    assert reads(MOST_WAITING, flow_active=False) == 1


class Ended(Exception):
    """Stands for the end of the process."""


class Failing(mode.Service):  # type: ignore[misc]
    """A part of Faust that cannot begin."""

    def __init__(self, fault: Exception) -> None:
        super().__init__()
        self._fault = fault

    async def on_start(self) -> None:
        """Fail."""
        raise self._fault


def started(fault: Exception) -> None:
    loop = asyncio.new_event_loop()
    running = mode.Worker(Failing(fault), loop=loop, loglevel="critical", redirect_stdouts=False)
    worker.begin(running, Settings(kafka="a:1"))


def test_a_kafka_that_goes_away_as_faust_begins_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[BaseException] = []

    def stop(error: BaseException) -> None:
        told.append(error)
        raise Ended

    monkeypatch.setattr(worker, "stop", stop)
    with pytest.raises(Ended):
        started(KafkaConnectionError("no bootstrap"))
    assert [type(error) for error in told] == [BrokerError]
    assert "a:1" in str(told[0])
    assert told[0].exit_code == 50
    bug = RuntimeError("a bug")
    with pytest.raises(Ended):
        started(bug)
    assert told[1] is bug


def task_with(*, releases: int, lead: int, private: bool = True) -> Task:
    text = study_text(p=2, records=30, releases=releases, private=private)
    return task_of(parse_study(f"{text}max_in_flight_windows = {lead}\n"))


@pytest.mark.parametrize(
    ("releases", "lead", "clients", "came", "over"),
    [
        # max_in_flight_windows = 0: no client ever waits
        (8, 0, 3, 0, False),
        (8, 0, 3, 7, False),
        (8, 0, 3, 8, True),
        (1, 0, 3, 1, True),
        # a client that has sent all its lead waits for a model
        (8, 2, 3, 3, False),
        (8, 2, 3, 4, True),
        (8, 4, 1, 3, False),
        (8, 4, 1, 4, True),
        (8, 1, 3, 1, True),
    ],
)
def test_the_start_ends_with_enough_releases_or_with_a_client_that_waits(
    releases: int, lead: int, clients: int, came: int, over: bool
) -> None:
    task = task_with(releases=releases, lead=lead)
    log = sample_log(task, releases=came, clients=clients, start=100)
    assert start_is_over(task, [folded(task, log)]) is over
    # however they are spread over partitions
    parts = [[e for e in log if e.key == key] for key in {e.key for e in log}]
    spread = [folded(task, relogged(part)) for part in parts]
    assert start_is_over(task, spread) is over


def test_the_start_is_over_once_a_client_has_seen_a_model() -> None:
    """Also where the version is lost: a client cannot go back to the start."""
    task = task_with(releases=100, lead=0)
    log = sample_log(task, releases=6, clients=3, start=1)
    assert start_is_over(task, [folded(task, log)])


def test_without_privacy_there_is_nothing_to_wait_for() -> None:
    task = task_with(releases=100, lead=0, private=False)
    log = sample_log(task, releases=1, clients=1, start=1)
    assert start_is_over(task, [folded(task, log)])


def samples(message=None, verifying=None, meters=None):
    """Return the values of all series, by name and the value of their label."""
    heads = {
        0: Head(revision="r", next_offset=12, duplicates=1, dead_letters=2, missing=4, clients=3),
        3: Head(revision="r", next_offset=5),
    }
    folding = SimpleNamespace(
        partitions={n: SimpleNamespace(head=head) for n, head in heads.items()},
        releases=14,
        meters=meters or Meters(),
    )
    publishing = SimpleNamespace(owner=True, faults=list, message=message)
    progress = SimpleNamespace(left={0: 3, 3: 0}, faults=list)
    text = Health(folding, publishing, progress, verifying).text().decode()
    assert text.count("# HELP") == text.count("# TYPE")
    return {
        (sample.name.removeprefix("veilstream_"), *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_metrics_name_partitions_and_totals():
    found = samples(Stream().next(published_at=rfc3339(0)))
    assert found["state_watermark_offset", "0"] == 12
    assert found["state_watermark_offset", "3"] == 5
    assert found["lag_records", "0"] == 3
    assert found["releases_folded_total", "0"] == 9
    assert found["releases_applied_total",] == 14
    assert found["duplicates_dropped_total",] == 1
    assert found["dead_letters_total",] == 2
    assert (found["releases_missing",], found["clients",]) == (4, 3)
    # seconds since 1970
    assert found["estimate_age_seconds",] > 1e9


def test_a_worker_that_has_published_nothing_says_nothing_of_estimates():
    assert not [name for name, *_ in samples() if "estimate_" in name and "seconds_" not in name]


def test_the_newest_estimate_has_status_coefficients_and_widths():
    stream = Stream(size=2)
    warming = samples(stream.next())
    assert warming["estimate_status", "warming"] == 1
    assert warming["estimate_status", "ready"] == 0
    assert not [name for name, *_ in warming if name == "interval_width"]
    ready = stream.next(reason="")
    while ready.status != "ready":
        ready = stream.next()
    row, found = ready.coefficients[1], samples(ready)
    assert found["estimate_value", row.name] == row.value
    assert found["interval_width", row.name] == row.interval[1] - row.interval[0]


def test_the_way_to_intervals_is_a_metric_where_it_is_known():
    message = Stream().next(progress=ProgressMessage(0.25, 3000))
    told = samples(message)
    assert told["interval_progress",] == 0.25
    assert told["interval_missing_records",] == 3000
    endless = samples(msgspec.structs.replace(message, progress=ProgressMessage(0.0, None)))
    assert endless["interval_progress",] == 0
    assert ("interval_missing_records",) not in endless


def test_letters_commits_delays_and_verifications_are_counted():
    meters = Meters()
    meters.letters([DeadLetter(1, b"k", b"v", (), PayloadError("forged", "why"))] * 2)
    meters.verified(True)
    meters.published(rfc3339(0))
    with meters.commits.time():
        pass
    found = samples(meters=meters)
    assert found["dead_letters_by_reason_total", "forged"] == 2
    assert found["verifications_total", "same"] == 1
    assert found["commit_seconds_count",] == 1
    assert found["release_to_estimate_seconds_bucket", "3600.0"] == 0
    assert found["release_to_estimate_seconds_count",] == 1


def test_two_workers_of_one_process_share_nothing():
    first = Meters()
    first.verified(False)
    assert samples(meters=first)["verifications_total", "different"] == 1
    # there from the start: a counter that begins with 1 has not increased, and raises no alert
    assert samples()["verifications_total", "different"] == 0


GROWS = Rhythm(True, 8, 2)


@pytest.mark.parametrize(
    ("rhythm", "counts", "wait"),
    [
        (GROWS, (1000, 1039, 1, 1), None),
        (GROWS, (1000, 1040, 1, 1), 0.0),
        (GROWS, (0, 1, 1, 1), 0.0),
        # somebody waits for it
        (GROWS, (1000, 1001, 2, 2), 0.03),
        (Rhythm(True, 8, 0), (1000, 1001, 2, 2), None),
        (GROWS, (1000, 1001, 7, 1), None),
        (GROWS, (1000, 1001, 8, 1), SECONDS),
        # where each window stands by itself, growth is no reason
        (Rhythm(False, 8, 4), (1000, 2000, 7, 3), None),
        (Rhythm(False, 8, 4), (1000, 2000, 7, 4), 0.03),
    ],
)
def test_a_model_is_due_when_slots_have_grown_or_a_client_waits_or_many_releases_came(
    rhythm: Rhythm, counts: tuple[int, int, int, int], wait: float | None
) -> None:
    assert rhythm.wait(*counts, least=0.03) == wait


def test_no_rhythm_of_estimates_holds_a_model_back() -> None:
    due = Due(Publish(releases=100, seconds=60.0, pause=30.0), GROWS)
    first = Counts(10, 1000, 12)
    assert (due.estimate(first, 5.0), due.model(first, 0, 5.0)) == (0.0, 0.0)
    due.estimated(first, 5.0)
    due.moved(first, 5.0, 0.2)
    assert (due.estimate(first, 6.0), due.model(first, 0, 6.0)) == (None, None)
    grown = Counts(11, 1040, 13)
    assert (due.estimate(grown, 5.0), due.model(grown, 1, 5.0)) == (60.0, 0.0)
    # the last one took a fifth of a second, and folding has as long before the next
    held = Counts(12, 1001, 14)
    assert due.model(held, 2, 5.05) == pytest.approx(0.15)
    assert due.model(held, 1, 5.0) == 60.0
    # what was refused is worth telling, and no estimate
    refused = Counts(10, 1000, 13)
    assert (due.estimate(refused, 6.0), due.model(refused, 1, 6.0)) == (None, 59.0)


def test_an_estimate_follows_growth_whatever_its_pause_is() -> None:
    due = Due(Publish(releases=2, seconds=60.0, pause=30.0), GROWS)
    due.estimated(Counts(10, 1000, 10), 0.0)
    assert due.estimate(Counts(11, 1099, 11), 1.0) == 59.0
    assert due.estimate(Counts(12, 1099, 12), 1.0) == 29.0
    assert due.estimate(Counts(11, 1100, 11), 1.0) == 0.0


def test_what_studies_wait_for_by_default_and_what_they_say() -> None:
    def found(task: Task) -> tuple[int, int, Rhythm]:
        return task.most_in_flight, task.most_at_start, task.rhythm

    private = task_of(parse_study(study_text(releases=20)))
    assert found(private) == (2, 4, Rhythm(True, 8, 2))
    without = task_of(parse_study(study_text(releases=20, private=False)))
    assert found(without) == (4, 4, Rhythm(False, 20, 4))
    said = task_of(parse_study(f"{study_text(releases=3)}max_in_flight_windows = 1\n"))
    assert found(said) == (1, 1, Rhythm(True, 3, 1))


def test_a_model_says_how_far_it_has_read_each_partition() -> None:
    task = task_of(parse_study(study_text(p=2, records=30) + "partitions = 3\n"))
    log = sample_log(task, releases=12, clients=3, start=2)
    parts = [relogged([e for e in log if e.key == key]) for key in sorted({e.key for e in log})]
    partitions = {number: folded(task, part[:number]) for number, part in enumerate(parts)}
    point = task.first_model.coefficients, (1.0, 1.0)
    model = model_after(task, partitions, point, 7, 90)
    assert model.offsets == (0, 1, 2)
    payload = write_model(task, model, "2026-01-01T00:00:00Z")
    assert read_model(task, payload).offsets == (0, 1, 2)
    # one that does not say is a model, too
    assert read_model(task, write_model(task, round_model(7, *point), "t")).offsets == ()
    for bad in (b"[0,1]", b"[0,1,-2]", b"[0,1,2.5]", b"[0,1,2,3]"):
        with pytest.raises(PayloadError):
            read_model(task, payload.replace(b"[0,1,2]", bad))


def test_models_of_a_file_follow_growth_from_the_end_of_the_start() -> None:
    task = task_of(parse_study(study_text(p=2, records=30, releases=8)))
    run, seen = OfflineRun(task), list[tuple[int, int]]()
    for _, name in zip(range(30 * 60), itertools.cycle(["a", "b", "c"]), strict=False):
        run.take(name, (None,))
        seen.append((run.model.version, run.model.watermark))
    models = sorted(set(seen))
    # eight releases of the start, or four of one client; then one whenever slots grow by 4 %
    assert models[:2] == [(0, 0), (1, 8 * 30)]
    assert [version for version, _ in models] == list(range(len(models)))
    for (_, before), (_, after) in itertools.pairwise(models[1:]):
        assert 25 * (after - before) >= before
        assert after - before <= max(30, before // 5)
