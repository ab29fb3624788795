"""A source whose records cannot be used is refused before anything is spent on it."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.errors import DataError
from pipeline.methods import task_of
from pipeline.release.task import Task
from pipeline.study_file.load import parse_study
from producers import source_check as source_test
from producers.client import Progress
from producers.source_check import MOST_TESTS, Held, passed, stamp_of
from producers.sources import open_source
from producers.sources.base import Source
from producers.start import Job, run_client
from producers.store import ClientStore
from tests.builders import SeededStream
from tests.stage import HEADER, OPEN, Stage, lines, study_text, write_csv

#: Slots that a study of epsilon 2 looks at.
LOOKED = 56


@pytest.fixture(autouse=True)
def _seeded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw a test's noise from seeds: one real draw in 2,000 lets a bad source pass."""
    seeds = itertools.count(1)
    monkeypatch.setattr(source_test, "SecureStream", lambda: SeededStream(next(seeds)))


@pytest.fixture
def task() -> Task:
    return task_of(parse_study(study_text()))


@pytest.fixture
def store(tmp_path: Path, task: Task) -> Iterator[ClientStore]:
    with ClientStore(tmp_path / "site.db", "site") as made:
        made.open_stream(task, "csv:data.csv")
        yield made


def write_bad(path: Path, records: int) -> Path:
    """Write records whose labels are none of the study's."""
    rows = ({"heat": 10.5, "load": 0.25, "failed": 31337.5} for _ in range(records))
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def tried(
    task: Task,
    store: ClientStore,
    path: Path,
    *,
    accept: bool = False,
    said: list[str] | None = None,
) -> Held:
    source = open_source(str(path), None, folder=path.parent)
    try:
        return tried_of(source, task, store, path, accept=accept, said=said)
    finally:
        source.close()


def tried_of(
    source: Source, task: Task, store: ClientStore, path: Path, *, accept: bool = False,
    said: list[str] | None = None,
) -> Held:  # fmt: skip
    held = passed(
        task, source, store.tests, name="csv:data.csv",
        stamp=stamp_of(str(path), task.revision),
        accept=accept, times=None, stopped=lambda: False,
        say=pytest.fail if said is None else said.append, report=lambda _: None,
    )  # fmt: skip
    assert held is not None
    return held


def test_a_bad_source_is_refused_with_its_faults_by_kind_and_never_a_value(
    task: Task, store: ClientStore, tmp_path: Path
) -> None:
    bad = write_bad(tmp_path / "bad.jsonl", 500)
    with pytest.raises(DataError) as caught:
        tried(task, store, bad)
    said = str(caught.value)
    assert f"0 of the first {LOOKED} record slots can be used" in said
    assert f"{LOOKED} x column 'failed': unknown class; allowed: 'yes', 'no'" in said
    assert "--accept-unusable" in said
    assert "31337" not in said
    assert not store.tests.passed(task.study.name)


@pytest.mark.parametrize("privacy", [None, OPEN])
def test_a_class_that_is_spelt_otherwise_is_a_refusal_although_most_records_can_be_used(
    tmp_path: Path, privacy: str | None
) -> None:
    task = task_of(parse_study(study_text() if privacy is None else study_text(privacy=privacy)))
    path = tmp_path / "data.csv"
    path.write_text(HEADER + "".join(lines(60)).replace("yes", "Yes"))
    with ClientStore(tmp_path / "site.db", "site") as store:
        store.open_stream(task, "csv:data.csv")
        with pytest.raises(DataError, match="nothing was spent") as caught:
            tried(task, store, path)
        assert "unknown class; allowed: 'yes', 'no'" in str(caught.value)
        assert "'Yes'" not in str(caught.value)
        # as many of another fault are no mistake of spelling
        path.write_text(HEADER + "".join(lines(60)).replace(",yes", "x,yes"))
        tried(task, store, path)


@pytest.mark.parametrize(("privacy", "column", "times"), [(None, "heat", 1000), (OPEN, "load", -5)])
def test_a_column_in_another_unit_is_refused_and_one_that_is_cut_is_not(
    tmp_path: Path, privacy: str | None, column: str, times: int
) -> None:
    task = task_of(parse_study(study_text() if privacy is None else study_text(privacy=privacy)))
    rows = [{"heat": 31.5 + i % 60, "load": (-1) ** i, "failed": "yes"} for i in range(60)]
    path = tmp_path / "data.jsonl"
    with ClientStore(tmp_path / "site.db", "site") as store:
        store.open_stream(task, "csv:data.csv")
        path.write_text("".join(json.dumps({**r, column: times * r[column]}) + "\n" for r in rows))
        with pytest.raises(DataError, match="nothing was spent") as caught:
            tried(task, store, path)
        said = str(caught.value)
        assert "have a value further outside its range than that is wide" in said
        assert f"column '{column}'" in said
        # outside, but by less than the range is wide: cut, as the study says
        path.write_text("".join(json.dumps({**r, "load": 2.9 * r["load"]}) + "\n" for r in rows))
        tried(task, store, path)


def test_what_was_looked_at_is_handed_out_again_once_and_in_order(
    task: Task, store: ClientStore, tmp_path: Path
) -> None:
    path = write_csv(tmp_path / "data.csv", 130)
    source = open_source(str(path), None, folder=tmp_path)
    held = tried_of(source, task, store, path)
    assert len(held.slots) == LOOKED
    found = []
    while slots := held.take(7):
        found += slots
    while not source.ended:
        found += source.read(7, 0.0)
    plain = open_source(str(path), None, folder=tmp_path)
    wanted = plain.read(1000, 0.0)
    assert [slot.position for slot in found] == [slot.position for slot in wanted]
    assert [slot.record for slot in found] == [slot.record for slot in wanted]
    source.close()
    plain.close()


def test_a_source_that_has_passed_is_not_tested_again(
    task: Task, store: ClientStore, tmp_path: Path
) -> None:
    tried(task, store, write_csv(tmp_path / "data.csv", 100))
    assert store.tests.passed(task.study.name)
    held = tried(task, store, write_bad(tmp_path / "bad.jsonl", 100))
    assert held.slots == []


def test_a_file_that_was_not_written_since_is_refused_without_another_draw(
    task: Task, store: ClientStore, tmp_path: Path
) -> None:
    bad = write_bad(tmp_path / "bad.jsonl", 100)
    for _ in range(3 * MOST_TESTS):
        with pytest.raises(DataError):
            tried(task, store, bad)
    # all these starts were one test
    with pytest.raises(DataError, match=f"This was test 2 of {MOST_TESTS}"):
        tried(task, store, write_bad(bad, 101))
    tried(task, store, write_csv(tmp_path / "data.csv", 100))


def test_a_client_that_dies_in_its_test_is_tested_anew(
    task: Task, store: ClientStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_csv(tmp_path / "good.csv", LOOKED, seed=3)

    def dies(trial: object, found: object) -> bool:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(source_test, "_refuses", dies)
        with pytest.raises(KeyboardInterrupt):
            tried(task, store, path)
    assert len(tried(task, store, path).slots) == LOOKED


def test_after_so_many_tests_nothing_about_the_records_decides(
    task: Task, store: ClientStore, tmp_path: Path
) -> None:
    for count in range(MOST_TESTS):
        with pytest.raises(DataError, match=f"This was test {count + 1} of {MOST_TESTS}"):
            tried(task, store, write_bad(tmp_path / "bad.jsonl", 100 + count))
    good = write_csv(tmp_path / "data.csv", 100)
    # all of its records are good: there is nothing that somebody could mend
    with pytest.raises(DataError, match=r"not tested again.* (\d+) of the first \1 .* used now"):
        tried(task, store, good)
    tried(task, store, good, accept=True)
    assert store.tests.passed(task.study.name)


def test_few_slots_are_not_tested_but_said(task: Task, store: ClientStore, tmp_path: Path) -> None:
    said: list[str] = []
    tried(task, store, write_bad(tmp_path / "bad.jsonl", 10), said=said)
    [line] = said
    assert "WARNING: 0 of the first 10 record slots can be used" in line


def test_without_privacy_the_test_is_exact_and_may_be_repeated(tmp_path: Path) -> None:
    task = task_of(parse_study(study_text(privacy=OPEN)))
    path = tmp_path / "data.csv"
    with ClientStore(tmp_path / "open.db", "open") as store:
        store.open_stream(task, "csv:data.csv")
        for _ in range(2 * MOST_TESTS):
            path.write_text(HEADER + "".join(lines(4)) + "1,,no\n" * 16)
            with pytest.raises(DataError, match="4 of the first 20"):
                tried(task, store, path)
        path.write_text(HEADER + "".join(lines(5)) + "1,,no\n" * 15)
        tried(task, store, path)


def test_a_client_spends_nothing_on_a_bad_file_and_all_of_a_mended_one(
    tmp_path: Path, kafka: str, redis_url: str
) -> None:
    stage = Stage(tmp_path, kafka, redis_url, study_text(stream="max_in_flight_windows = 0"))
    try:
        source = write_bad(tmp_path / "data.jsonl", 300)
        said: list[str] = []

        def run() -> Progress:
            job = Job("site", str(source))
            return run_client(
                stage.task, stage.settings, job, report=lambda *_: None, say=said.append
            )

        with pytest.raises(DataError, match="nothing was spent"):
            run()
        assert stage.query("site", "SELECT count(*) FROM ledger") == [(0,)]
        assert stage.ends() == [0, 0]
        good = [line.strip().split(",") for line in lines(100)]
        source.write_text(
            "".join(json.dumps({"heat": h, "load": o, "failed": f}) + "\n" for h, o, f in good)
        )
        assert run().releases == 5
        assert stage.query("site", "SELECT records, rejected FROM streams") == [(100, 0)]
        assert not said
        # later it is a warning, and every slot is released as before
        with source.open("a") as file:
            file.writelines('{"heat": 1}\n' for _ in range(100))
        assert run().releases == 5
        [line] = said
        assert "100% of the last 100 record slots cannot be used, 0% before" in line
        assert "column 'load': missing" in line
    finally:
        stage.remove()
