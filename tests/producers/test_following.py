"""A study that follows another: its records, and what both cost together."""

from __future__ import annotations

import functools
import io
import json
import os
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

import pytest

from pipeline.errors import BudgetExceeded, ConfigError, LedgerBehind
from pipeline.methods import task_of
from pipeline.privacy.accounting import Unit, total_epsilon
from pipeline.privacy.events import compose
from pipeline.release.task import Task
from pipeline.study_file.load import parse_study
from producers import report
from producers.budget import Limit
from producers.client import Progress
from producers.report import forecast
from producers.start import Job, run_client
from producers.store import NO_LIMIT, ClientStore, Outgoing, Tally
from tests import ages
from tests.stage import HEADER, PRIVATE, Stage, lines, send, study_text, write_csv
from tests.wire import edited

SOURCE = "csv:data.csv"


def following(text: str, name: str, *follows: str) -> str:
    """Return the text of a study under another name, which follows others."""
    head, other = text.split("\n\n", 1)
    assert head.startswith("[study]")
    line = f"follows = {json.dumps(follows if len(follows) > 1 else follows[0])}\n"
    return f'[study]\nname = "{name}"\n{line if follows else ""}\n{other}'


def task(name: str, *follows: str | None, epsilon: float = 2.0) -> Task:
    text = study_text(name, privacy=PRIVATE.replace("2.0", str(epsilon)))
    names = [one for one in follows if one]
    return task_of(parse_study(following(text, name, *names) if names else text))


def release(store: ClientStore, one: Task, position: bytes, limit: Limit = NO_LIMIT) -> None:
    seq = store.open_stream(one, SOURCE, limit).next_seq
    bytes_ = Outgoing(seq, b"noised", [])
    store.release(one, SOURCE, [bytes_], position=position, tally=Tally(20, {}, 0), now=1.0)
    store.sent(one.study.name, [seq], (0, seq))


def spent(path: Path) -> float:
    return float(report.ledger(path)[SOURCE]["spent"]["epsilon"])


def test_it_begins_behind_the_records_and_the_earlier_one_is_over(path: Path) -> None:
    with ClientStore(path, "site") as store:
        release(store, task("a"), b"20")
        assert store.open_stream(task("b", "a"), SOURCE).position == b"20"
        assert store.open_stream(task("b", "a"), SOURCE).position == b"20"
        # it may never come to a release: a limit may not allow one
        release(store, task("a"), b"30")
        assert (store.following.chain("b")[-1], store.following.chain("a")[-1]) == ("a", "a")
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
            store.following.begin("b", SOURCE, ("a",), {"a": 1}, from_start=False)
        assert store.open_stream(task("b", "a"), SOURCE).position == b"40"


def positions(store: ClientStore, *studies: Task) -> list[bytes | None]:
    return [store.open_stream(one, SOURCE, Limit(9.0)).position for one in studies]


def test_a_client_that_was_away_goes_on_behind_the_study_that_it_knows(path: Path) -> None:
    with ClientStore(path, "site") as store:
        release(store, task("a"), b"20")
        assert positions(store, task("c", "b", "a")) == [b"20"]
        # it has asked for the one between without releasing for it, and the first went on
        assert positions(store, task("b", "a")) == [b"20"]
        release(store, task("a"), b"40")
        assert positions(store, task("d", "b"), task("c", "b", "a")) == [b"40", b"40"]
        release(store, task("c", "b", "a"), b"60", Limit(9.0))
        for over in (task("a"), task("b", "a"), task("d", "b")):
            with pytest.raises(ConfigError, match=r"is over for this client.* study 'c'"):
                store.open_stream(over, SOURCE)
        assert positions(store, task("e", "c", "b", "a")) == [b"60"]
        assert store.following.chain("e")[-1] == store.following.chain("c")[-1] == "a"


def test_one_study_alone_takes_the_place_of_another(path: Path) -> None:
    with ClientStore(path, "site") as store:
        release(store, task("a"), b"20")
        # whoever releases first has it
        assert positions(store, task("b", "a"), task("x", "a")) == [b"20", b"20"]
        release(store, task("b", "a"), b"40", Limit(9.0))
        for second in (task("x", "a"), task("y", "a")):
            with pytest.raises(ConfigError, match=r"moved on to study 'b'.*let it follow 'b'"):
                store.open_stream(second, SOURCE)
        assert positions(store, task("z", "b", "a")) == [b"40"]


def test_records_of_a_study_that_is_not_named_are_not_released_again_unasked(path: Path) -> None:
    with ClientStore(path, "site") as store:
        release(store, task("a"), b"20")
        with pytest.raises(ConfigError, match=r'follows = \["b", "a"\].*--from-start'):
            store.open_stream(task("c", "b"), SOURCE)
        assert store.peek("c").position is None
        assert store.open_stream(task("c", "b"), SOURCE, from_start=True).position is None
        # one that is over by itself is none whose place this one could take
        release(store, task("a2", "a"), b"40", Limit(9.0))
        with pytest.raises(ConfigError, match=r'\["b", "a2"\]'):
            store.open_stream(task("c", "b"), SOURCE)


def test_a_list_of_studies_is_part_of_the_revision() -> None:
    assert task("c", "b", "a").revision not in (task("c", "b").revision, task("c", "a").revision)
    one, same = (
        parse_study(study_text("c").replace('"c"', f'"c"\nfollows = {given}', 1))
        for given in ('"b"', '["b"]')
    )
    assert task_of(one).revision == task_of(same).revision
    for wrong in ('["b", "c"]', '["b", "b"]', "[]", '["B"]'):
        with pytest.raises(ConfigError, match=r"study\.follows"):
            parse_study(study_text("c").replace('"c"', f'"c"\nfollows = {wrong}', 1))


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


@pytest.mark.parametrize(
    ("promised", "rounds", "method"), [(8.0, 200, ""), (1.15, 2, "cap = 1.0")],
    ids=["all rounds for ever", "all that are promised"],
)  # fmt: skip
def test_rounds_that_each_pay_are_forecast_as_all_that_may_come(
    path: Path, promised: float, rounds: int, method: str
) -> None:
    text = ages.study_text(epsilon=promised, method=method)
    one, unit = ages.task_of(text).of_client("c"), Unit(1, "replace-one")
    with ClientStore(path.with_name("c.db"), "c") as store:
        ask = functools.partial(forecast, store.heritage._db.rows, one, SOURCE, unit)
        store.open_stream(one, SOURCE)
        then = total_epsilon(ask(), 0.0)
        release(store, one, b"20")
        assert total_epsilon(ask(), 0.0) == then <= promised
        whole = one.budget.together(compose({one.budget.event: rounds}))
        paid = total_epsilon([whole], 0.0)
        assert paid <= then * (1 + 1e-12)
        # a promise need not be a sum of whole rounds
        assert then == pytest.approx(paid if promised > 2 else promised, rel=1e-6)
        seqs = range(1, rounds)
        group = [Outgoing(seq, b"noised", []) for seq in seqs]
        tally = Tally(20, {}, 0)
        store.release(one, SOURCE, group, position=b"40", tally=tally, now=1.0)
        if promised < 2:
            with pytest.raises(BudgetExceeded, match=r"it promises 1\.15"):
                release(store, one, b"60")


def test_a_study_cannot_follow_itself() -> None:
    with pytest.raises(ConfigError, match=r"study\.follows"):
        task("a", "a")
    assert task("b", "a").revision != task("b").revision


def test_records_that_wait_in_a_pipe_go_on_into_the_study_that_follows(
    tmp_path: Path, kafka: str, redis_url: str
) -> None:
    """58 records make two releases of 20; the rest, and 22 more, make two of the next study."""
    old = Stage(tmp_path, kafka, redis_url, study_text())
    name = old.task.study.name
    new = Stage(tmp_path, kafka, redis_url, following(old.study.read_text(), f"{name}-2", name))

    def run(stage: Stage, stream: BinaryIO, until: int) -> None:
        def report(progress: Progress) -> None:
            waiting = stage.query("site", "SELECT count(*) FROM outbox")
            # a busy Kafka takes them later than a client that ends waits for it
            if progress.releases == until and waiting == [(0,)]:
                raise KeyboardInterrupt

        with suppress(KeyboardInterrupt):
            job = Job("site", "-", limit=Limit(9.0))
            run_client(stage.task, stage.settings, job, report=report, stream=stream)

    out, into = os.pipe()
    try:
        with os.fdopen(out, "rb", buffering=0) as pipe, os.fdopen(into, "wb") as writer:
            writer.write((HEADER + "".join(lines(58))).encode())
            writer.flush()
            # the pipe stays open, and so does the third window
            run(old, pipe, 2)
        run(new, io.BytesIO((HEADER + "".join(lines(22, 1))).encode()), 9)
        rows = old.query("site", "SELECT records, next_seq FROM streams ORDER BY study")
        assert rows == [(40, 2), (40, 2)]
        assert [len(stage.releases()) for stage in (old, new)] == [2, 2]
        with pytest.raises(ConfigError, match="is over for this client"):
            run_client(old.task, old.settings, Job("site", "-"), report=lambda *_: None)
    finally:
        old.remove()
        new.remove()


def test_a_forged_release_of_the_earlier_study_stops_nobody(
    tmp_path: Path, kafka: str, redis_url: str
) -> None:
    old = Stage(tmp_path, kafka, redis_url, study_text())
    name = old.task.study.name
    new = Stage(tmp_path, kafka, redis_url, following(old.study.read_text(), f"{name}-2", name))
    source = write_csv(tmp_path / "data.csv", 60)
    job = Job("site", str(source), limit=Limit(9.0))
    try:
        run_client(old.task, old.settings, job, report=lambda *_: None)
        topic, last = old.topics.releases.name, old.releases()[-1]
        forged = edited(old.task, last.value, seq=7)
        send(kafka, topic, [{"key": last.key, "value": forged, "partition": last.partition}])
        with source.open("a") as file:
            file.writelines(lines(40, 1))
        run_client(new.task, new.settings, job, report=lambda *_: None)
        rows = new.query("site", "SELECT study, records FROM streams ORDER BY study")
        assert rows == [(name, 60), (f"{name}-2", 40)]
    finally:
        old.remove()
        new.remove()
