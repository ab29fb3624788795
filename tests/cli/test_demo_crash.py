"""The demonstration's crash: it waits for the state, and not for a commit that never comes."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

import msgspec
import pytest

from pipeline.cli.stage import Processes, Stage
from pipeline.methods import task_of
from pipeline.settings import Settings
from pipeline.stream.partition import Partition
from pipeline.study_file.load import load_study, parse_study
from state import RedisStore
from state.connection import redis_client
from tests.ages import study_text

EXAMPLES = Path(str(files("pipeline.study") / "examples"))


class Worker(Processes):
    """Stands for the worker: each start of it commits so many more releases, if any."""

    def __init__(self, logs: Path, store: RedisStore, empty: Partition, batches: list[int]) -> None:
        super().__init__(logs, {})
        self._store, self._empty, self._batches, self._at = store, empty, batches, 0

    def start(self, name: str, *words: str) -> None:
        if self._batches:
            after = self._at + self._batches.pop(0)
            self._empty.head = msgspec.structs.replace(self._empty.head, next_offset=after)
            self._store.commit(0, self._empty, expected=self._at)
            self._at = after

    def kill(self, name: str) -> None:
        """Nothing runs."""

    def check(self) -> None:
        """Nothing runs."""


@pytest.fixture
def given(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Settings, RedisStore]]:
    # a crash that waits for what does not come is refused soon
    monkeypatch.setattr("pipeline.cli.stage.PATIENCE_SECONDS", 0.5)
    settings = Settings(redis=redis_url)
    client = redis_client(settings)
    yield settings, RedisStore(client, task_of(parse_study(study_text(name="demo-crash"))))
    if found := list(client.scan_iter("veil:{demo-crash}:*")):
        client.delete(*found)
    client.close()


@pytest.mark.parametrize(("batches", "timed"), [([8], False), ([5, 3], True)])
def test_a_crash_after_the_last_release_waits_for_no_commit(
    given: tuple[Settings, RedisStore], tmp_path: Path, batches: list[int], timed: bool
) -> None:
    settings, store = given
    task = task_of(parse_study(study_text(name="demo-crash")))
    worker = Worker(tmp_path, store, Partition.empty(task), batches)
    worker.start("worker")
    stage = Stage(task, settings, worker, "study.toml", [])
    stage._crash(expected=8 * task.slots)
    assert (stage.recovery is not None) == timed


def test_windows_that_grow_are_counted_by_their_slots(
    given: tuple[Settings, RedisStore], tmp_path: Path
) -> None:
    """The stage waited for as many releases as there are windows of the first size."""
    task = task_of(load_study(EXAMPLES / "airlines.toml"))
    assert task.growth.divisor
    stage = Stage(task, given[0], Processes(tmp_path, {}), "study.toml", [])
    assert stage._slots(releases=255, slots=346_000) == 346_000
