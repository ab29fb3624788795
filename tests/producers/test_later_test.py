"""A stream that turns to rubbish is stopped before it spends more on noise."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.errors import DataError
from pipeline.methods import task_of
from pipeline.release.quality import BLOCK, Trial
from pipeline.release.task import Task
from pipeline.study_file.load import parse_study
from producers import source_check as later_test
from producers import source_check as source_test
from producers.source_check import MOST_TESTS, LaterTest
from producers.start import Job, run_client
from producers.store import ClientStore
from tests.builders import SeededStream
from tests.stage import OPEN, Stage, lines, study_text

BAD = Counter({"column 'failed': unknown class; allowed: 'yes', 'no'": 20})
NONE = Counter[str]()
WINDOWS = -(-BLOCK // 20)


@pytest.fixture(autouse=True)
def _seeded(monkeypatch: pytest.MonkeyPatch) -> None:
    seeds = itertools.count(1)
    for module in (source_test, later_test):
        monkeypatch.setattr(module, "SecureStream", lambda: SeededStream(next(seeds)))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ClientStore]:
    with ClientStore(tmp_path / "site.db", "site") as made:
        yield made


def begun(store: ClientStore, *, accept: bool = False, privacy: str | None = None) -> LaterTest:
    text = study_text("tested") if privacy is None else study_text("tested", privacy=privacy)
    task: Task = task_of(parse_study(text))
    store.open_stream(task, "csv:data.csv")
    return LaterTest(task, store.tests, name="csv:data.csv", accept=accept)


def windows(test: LaterTest, count: int, usable: int) -> None:
    for _ in range(count):
        test.take(20, usable, NONE if usable == 20 else BAD)


def test_its_slots_and_threshold_follow_from_the_noise() -> None:
    # of epsilon 2, and of 0.5
    found = [
        Trial.later(
            task_of(
                parse_study(study_text(privacy=f'mechanism = "discrete-laplace"\nepsilon = {e}'))
            )
        )
        for e in (2.0, 0.5)
    ]
    assert found == [Trial(BLOCK, 2.0), Trial(480, 8.0)]
    assert found[1].stops(0, 480, 47)
    assert not found[1].stops(0, 480, 48)
    assert not found[1].stops(120, 480, -72)


@pytest.mark.parametrize("privacy", [None, OPEN])
def test_a_stream_is_stopped_and_says_why_without_a_value(
    store: ClientStore, privacy: str | None
) -> None:
    test = begun(store, privacy=privacy)
    windows(test, 5 * WINDOWS, 20)
    windows(test, 5 * WINDOWS, 5)
    with pytest.raises(DataError, match="stopped before this window was spent") as caught:
        windows(test, WINDOWS, 0)
    assert f"{20 * WINDOWS} x column 'failed': unknown class" in str(caught.value)
    assert "--accept-unusable" in str(caught.value)


def test_it_is_tested_four_times_in_succession_and_then_somebody_decides(
    store: ClientStore,
) -> None:
    for _ in range(MOST_TESTS):
        with pytest.raises(DataError, match="stopped before this window"):
            windows(begun(store), WINDOWS, 0)
    with pytest.raises(DataError, match="not tested again"):
        begun(store)
    windows(begun(store, accept=True), 10 * WINDOWS, 0)
    # the next run is tested again, and what passes ends the succession
    for _ in range(MOST_TESTS - 1):
        with pytest.raises(DataError, match="stopped before this window"):
            windows(begun(store), WINDOWS, 0)
    windows(begun(store), WINDOWS, 20)
    for _ in range(MOST_TESTS):
        with pytest.raises(DataError, match="stopped before this window"):
            windows(begun(store), WINDOWS, 0)


def test_no_slot_of_the_first_test_is_in_another(store: ClientStore) -> None:
    begun(store)
    store.tests.note("tested", 20 * WINDOWS)
    test = begun(store)
    windows(test, 2 * WINDOWS - 1, 0)
    with pytest.raises(DataError):
        windows(test, 1, 0)


def test_a_client_stops_and_goes_on_where_it_stopped(
    tmp_path: Path, kafka: str, redis_url: str
) -> None:
    stage = Stage(tmp_path, kafka, redis_url, study_text(stream="max_in_flight_windows = 0"))
    try:
        source = tmp_path / "data.jsonl"
        good = [line.strip().split(",") for line in lines(60)]
        rows = [json.dumps({"heat": h, "load": o, "failed": f}) + "\n" for h, o, f in good]
        rubbish = ['{"heat": 10.5, "load": 0.25, "failed": "31337"}\n'] * 600
        source.write_text("".join(rows + rubbish))

        def run(*, accept: bool = False) -> int:
            job = Job("site", str(source), accept=accept)
            return run_client(
                stage.task, stage.settings, job, report=lambda *_: None, say=lambda _: None
            ).releases

        with pytest.raises(DataError, match="stopped before this window was spent"):
            run()
        # 48 slots were in the first test, which ends within the third window
        [(spent,)] = stage.query("site", "SELECT next_seq FROM streams")
        assert spent <= 3 + WINDOWS
        with pytest.raises(DataError):
            run()
        assert stage.query("site", "SELECT next_seq FROM streams")[0][0] <= 3 + 2 * WINDOWS
        run(accept=True)
        assert stage.query("site", "SELECT next_seq, records, rejected FROM streams") == [
            (33, 60, 600)
        ]
    finally:
        stage.remove()
