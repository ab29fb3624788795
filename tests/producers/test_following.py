"""A study that follows another: its records, and what both cost together."""

from __future__ import annotations

import functools
import io
import os
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

import pytest

from pipeline.errors import BudgetExceeded, ConfigError, LedgerBehind
from pipeline.methods import task_of
from pipeline.privacy.accounting import Unit, total_epsilon
from pipeline.release.task import Task
from pipeline.study import parse_study
from producers import report
from producers.client import Progress
from producers.client_store import NO_LIMIT, ClientStore, Outgoing, Tally
from producers.following import forecast
from producers.ledger import Limit
from producers.run import Job, run_client
from tests.stage import HEADER, PRIVATE, Stage, lines, study_text

SOURCE = "csv:data.csv"


def task(name: str, follows: str | None = None, *, epsilon: float = 2.0, records: int = 1) -> Task:
    privacy = PRIVATE.replace("2.0", str(epsilon))
    privacy += f'\nunit = "user"\nrecords = {records}' if records > 1 else ""
    text = study_text(name, privacy=privacy)
    head = f'name = "{name}"'
    return task_of(
        parse_study(text.replace(head, f'{head}\nfollows = "{follows}"', int(bool(follows))))
    )


def release(store: ClientStore, one: Task, position: bytes, limit: Limit = NO_LIMIT) -> None:
    seq = store.open_stream(one, SOURCE, limit).next_seq
    bytes_ = Outgoing(seq, b"noised", [])
    store.release(one, SOURCE, [bytes_], position=position, tally=Tally(20, {}, 0), now=1.0)
    store.sent(one.study.name, [seq], (0, seq))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "clients" / "site.db"


def spent(path: Path) -> float:
    return float(report.ledger(path)[SOURCE]["spent"]["epsilon"])


def test_it_begins_behind_the_records_and_the_earlier_one_is_over(path: Path) -> None:
    with ClientStore(path, "site") as store:
        release(store, task("a"), b"20")
        assert store.open_stream(task("b", "a"), SOURCE).position == b"20"
        assert store.open_stream(task("b", "a"), SOURCE).position == b"20"
        # it may never come to a release: a limit may not allow one
        release(store, task("a"), b"30")
        assert (store.input_of("b"), store.input_of("a")) == ("a", "a")
        # nothing was released yet: whoever takes the key out again gets the earlier study back
        assert store.open_stream(task("b"), SOURCE).position is None
        release(store, task("a"), b"40")
        release(store, task("b", "a"), b"60", Limit(9.0))
        with pytest.raises(ConfigError, match="study 'a' is over for this client"):
            store.open_stream(task("a"), SOURCE)


def test_a_refused_follower_takes_nothing_away(path: Path) -> None:
    with ClientStore(path, "site") as store:
        release(store, task("a"), b"20")
        with pytest.raises(BudgetExceeded):
            release(store, task("b", "a"), b"40")
        release(store, task("a"), b"40")
        assert store.open_stream(task("b", "a"), SOURCE).position == b"40"
        # who releases nothing cannot be gone behind by the one that it follows
        store.open_stream(task("c"), SOURCE)
        store.open_stream(task("d", "c"), SOURCE)
        with pytest.raises(ConfigError, match="follows study 'c'"):
            store.open_stream(task("c", "d"), SOURCE)


def test_what_was_passed_over_is_so_for_the_earlier_study_too(path: Path) -> None:
    with ClientStore(path, "site") as store:
        release(store, task("a"), b"20")
        store.charge_lost(task("a"), SOURCE, range(1, 2), owed=20, now=1.0)
        assert store.open_stream(task("b", "a"), SOURCE).owed == 20
        store.pass_over("b", 15, b"35")
        for one in (task("b", "a"), task("a")):
            found = store.open_stream(one, SOURCE)
            assert (found.position, found.owed) == (b"35", 5)


def test_a_study_and_the_one_that_it_follows_add_up(path: Path) -> None:
    with ClientStore(path, "site") as store:
        release(store, task("a"), b"20")
        once = spent(path)
        with pytest.raises(BudgetExceeded):
            release(store, task("b", "a"), b"40")
        release(store, task("b", "a"), b"40", Limit(9.0))
        twice = spent(path)
        assert twice > 1.4 * once
        release(store, task("c", "b", epsilon=1.0), b"60")
        assert spent(path) > twice
        store.heritage._db._whole.check()


def test_what_waits_or_is_lost_comes_first(path: Path) -> None:
    with ClientStore(path, "site") as store:
        release(store, task("a"), b"20")
        store.release(
            task("a"), SOURCE, [Outgoing(1, b"noised", [])], position=b"40",
            tally=Tally(20, {}, 0), now=1.0,
        )  # fmt: skip
        with pytest.raises(ConfigError, match="1 releases of study 'a' have not been sent"):
            store.open_stream(task("b", "a"), SOURCE)
        store.sent("a", [1], (0, 1))
        with pytest.raises(LedgerBehind):
            store._following.begin("b", SOURCE, "a", {"a": 1})
        assert store.open_stream(task("b", "a"), SOURCE).position == b"40"


def test_another_source_is_read_from_its_start(path: Path) -> None:
    with ClientStore(path, "site") as store:
        release(store, task("a"), b"20")
        assert store.open_stream(task("b", "a"), "csv:other.csv").position is None
        assert store.open_stream(task("a"), SOURCE).next_seq == 1


@pytest.mark.parametrize("follows", ["a", None])
@pytest.mark.parametrize("epsilon", [1.0, 3.0])
def test_a_forecast_is_what_is_paid(path: Path, follows: str | None, epsilon: float) -> None:
    one, unit = task("b", follows, epsilon=epsilon), Unit(1, "zero-out")
    with ClientStore(path, "site") as store:
        release(store, task("a"), b"20")
        ask = functools.partial(forecast, store.heritage._db.rows, one, SOURCE, unit)
        then = total_epsilon(ask(), 1e-5)
        release(store, one, b"40", Limit(9.0))
        assert spent(path) == pytest.approx(then, rel=1e-12)
        assert total_epsilon(ask(), 1e-5) == pytest.approx(then, rel=1e-12)


def test_a_study_cannot_follow_itself() -> None:
    with pytest.raises(ConfigError, match=r"study\.follows"):
        task("a", "a")
    assert task("b", "a").revision != task("b").revision


def test_records_that_wait_in_a_pipe_go_on_into_the_study_that_follows(
    tmp_path: Path, kafka: str, redis_url: str
) -> None:
    """50 records make two releases of 20; the rest, and 30 more, make two of the next study."""
    old = Stage(tmp_path, kafka, redis_url, study_text())
    name = old.task.study.name
    head = f'name = "{name}"'
    text = old.study.read_text().replace(head, f'name = "{name}-2"\nfollows = "{name}"')
    new = Stage(tmp_path, kafka, redis_url, text)

    def run(stage: Stage, stream: BinaryIO, until: int) -> None:
        def report(progress: Progress, _share: float | None) -> None:
            if progress.releases == until:
                raise KeyboardInterrupt

        with suppress(KeyboardInterrupt):
            job = Job("site", "-", limit=Limit(9.0))
            run_client(stage.task, stage.settings, job, report=report, stream=stream)

    out, into = os.pipe()
    try:
        with os.fdopen(out, "rb", buffering=0) as pipe, os.fdopen(into, "wb") as writer:
            writer.write((HEADER + "".join(lines(50))).encode())
            writer.flush()
            # the pipe stays open, and so does the third window
            run(old, pipe, 2)
        run(new, io.BytesIO((HEADER + "".join(lines(30, 1))).encode()), 9)
        rows = old.query("site", "SELECT records, next_seq FROM streams ORDER BY study")
        assert rows == [(40, 2), (40, 2)]
        assert [len(stage.releases()) for stage in (old, new)] == [2, 2]
        with pytest.raises(ConfigError, match="is over for this client"):
            run_client(old.task, old.settings, Job("site", "-"), report=lambda *_: None)
    finally:
        old.remove()
        new.remove()
