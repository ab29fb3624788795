"""A client that lost its database, a part of it or its source must not release records again."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.errors import BudgetExceeded, DataError, LocalStoreError
from pipeline.methods import task_of as make_task
from pipeline.release.task import Task
from pipeline.study_file.load import parse_study
from producers.budget import Limit
from producers.report import ledger
from producers.sources import open_source
from producers.store import ClientStore, Outgoing, Tally
from tests.databases import sqlite_file
from tests.stage import HEADER, Stage, lent, lines, study_text, write_csv

SOURCE = "csv:data.csv"


def task_of(name: str) -> Task:
    privacy = 'mechanism = "discrete-gaussian"\nepsilon = 1.0\ndelta = 1e-5'
    return make_task(parse_study(study_text(name, privacy=privacy)))


def release(store: ClientStore, task: Task, seq: int) -> None:
    store.release(
        task, SOURCE, [Outgoing(seq, b"bytes", [])], position=b"place", now=1e9,
        tally=Tally(20, {}, 0),
    )  # fmt: skip


def test_an_old_copy_is_found_out_by_the_folder_whatever_study_runs_next(path: Path) -> None:
    """The releases topic of the next study says nothing of what another one has lost."""
    first, second = task_of("first"), task_of("second")
    with ClientStore(path, "site") as store:
        store.open_stream(first, SOURCE, Limit(2.0, 1e-5))
        release(store, first, 0)
    copy = path.with_name("copy")
    shutil.copy(path, copy)
    with ClientStore(path, "site") as store:
        store.open_stream(second, SOURCE)
        for seq in range(3):
            release(store, second, seq)
        assert store.missing == {}
    shutil.copy(copy, path)
    with ClientStore(path, "site") as store:
        assert store.missing == {"second": 3}
        store.open_stream(second, SOURCE)
        store.charge_lost(second, SOURCE, range(3), owed=0, now=1e9)
        assert store.missing == {}
        release(store, second, 3)
    with ClientStore(path, "site") as store:
        assert store.missing == {}


def test_what_one_study_has_lost_is_not_forgotten_for_what_another_releases(path: Path) -> None:
    first, second = task_of("first"), task_of("second")
    with ClientStore(path, "site") as store:
        store.open_stream(first, SOURCE, Limit(2.0, 1e-5))
        store.open_stream(second, SOURCE)
    copy = path.with_name("copy")
    shutil.copy(path, copy)
    with ClientStore(path, "site") as store:
        for seq in range(3):
            release(store, second, seq)
    shutil.copy(copy, path)
    for seq in range(4):
        with ClientStore(path, "site") as store:
            assert store.missing == {"second": 3}
            release(store, first, seq)
    [account] = ledger(path).values()
    assert "3 more releases" in account["warnings"][0]


@pytest.mark.parametrize("what", ["site.db", "site.lock"])
@pytest.mark.parametrize("how", ["replaced", "removed"])
def test_files_that_are_put_in_place_of_those_in_use_stop_the_producer(
    path: Path, what: str, how: str
) -> None:
    """Another producer may have started on them: two would release the same records."""
    task, file = task_of("first"), path.with_name(what)
    with ClientStore(path, "site") as store:
        store.open_stream(task, SOURCE)
        release(store, task, 0)
        if how == "replaced":
            shutil.copy(file, copy := file.with_name("copy"))
            copy.replace(file)
        else:
            file.unlink()
        with pytest.raises(LocalStoreError, match="while this producer ran"):
            release(store, task, 1)
        assert store.peek("first").next_seq == 1


def test_lost_releases_are_charged_beyond_the_limit_for_they_have_left(path: Path) -> None:
    first, lost, later = task_of("first"), task_of("lost"), task_of("later")
    with ClientStore(path, "site") as store:
        for task in (first, lost, later):
            store.open_stream(task, SOURCE)
        release(store, first, 0)
        store.charge_lost(lost, SOURCE, range(4), owed=0, now=1e9)
        with pytest.raises(BudgetExceeded, match="2 other studies"):
            release(store, later, 0)
    with sqlite_file(path) as database:
        spent = database.execute("SELECT study FROM spends ORDER BY study").fetchall()
    assert spent == [("first",), ("lost",)]


@pytest.fixture
def stage(tmp_path: Path, kafka: str, redis_url: str) -> Iterator[Stage]:
    yield from lent(
        Stage(tmp_path / "stage", kafka, redis_url, study_text(stream="max_in_flight_windows = 0"))
    )


def test_a_client_that_lost_its_whole_folder_is_refused_and_releases_nothing(
    stage: Stage,
) -> None:
    source = write_csv(stage.folder / "data.csv", 100)
    stage.produced("site", source)
    shutil.rmtree(Path(stage.settings.folder) / "clients")
    for _ in range(2):
        stage.produce("site", source)
        assert stage.code("site") == 44, stage.said("site")
        assert "another ledger has released" in stage.said("site")
    assert len(stage.releases()) == 5
    stage.produced("other", write_csv(stage.folder / "other.csv", 40))


def changed(text: str) -> dict[str, str]:
    """Return what a file can become that holds other records before its middle."""
    header, *rows = text.splitlines(keepends=True)
    return {
        "another order": header + "".join(reversed(rows)),
        "one record moved": header + "".join([rows[1], rows[0], *rows[2:]]),
        "the first record gone": header + "".join(rows[1:]) + "".join(lines(5, 9)),
        "another header": header.replace("heat", "HEAT") + "".join(rows),
        "another file": HEADER + "".join(lines(60, 77)),
    }


@pytest.mark.parametrize("what", list(changed(HEADER + "".join(lines(3)))))
def test_a_file_that_was_rewritten_does_not_hand_its_records_out_again(
    tmp_path: Path, what: str
) -> None:
    path = tmp_path / "data.csv"
    path.write_text(HEADER + "".join(lines(40)))
    source = open_source(str(path), None, folder=tmp_path)
    position = source.anchored(source.read(20, 0.0)[-1].position)
    source.close()
    path.write_text(changed(path.read_text())[what])
    with pytest.raises(DataError):
        open_source(str(path), position, folder=tmp_path)
