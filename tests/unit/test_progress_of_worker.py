"""When a worker is called stalled, and what counts as folded."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from agents import publishing as publishing_module
from agents.app import tell_of_waits
from agents.folding import STALLED_SECONDS, Folding, Meters, Progress
from agents.metrics import Health
from agents.publishing import LOOK_SECONDS, RECENT, Publishing
from pipeline.errors import NumericError
from pipeline.messages.envelope import rfc3339
from pipeline.messages.topics import Topics
from pipeline.methods import task_of
from pipeline.stream.fold import Reducer
from pipeline.stream.partition import Partition
from pipeline.study_file.load import parse_study
from tests.builders import LogEntry, relogged, sample_log, study_text

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

        store = SimpleNamespace(commit=lambda *_, **__: None)
        folding = Folding(TASK, TOPICS, store, sent, sent, sent)  # type: ignore[arg-type]
        folding.partitions[0] = Partition.empty(TASK)
        assert await folding.handle(0, entries[:5])
        # the first of them are folded already
        assert await folding.handle(0, entries[3:])
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
