"""A method whose records enter several releases pays for each: all of them, once, or not at all."""

from __future__ import annotations

import math
import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from pipeline.errors import BudgetExceeded, LocalStoreError
from pipeline.methods import revision_of
from pipeline.privacy.accounting import total_mu
from pipeline.privacy.events import Gaussian, Pure, compose, encode
from pipeline.release.budget import Budget
from pipeline.release.model import Model, start_model
from pipeline.release.task import Task
from pipeline.study_file.load import parse_study
from producers import report
from producers.budget import Limit
from producers.client import Client
from producers.prior_spend import account
from producers.sources import open_source
from producers.store import ClientStore, Outgoing, Tally
from tests.databases import rows, sqlite_file
from tests.stage import study_text, write_csv
from tests.toy_mean import MeanTask

SOURCE = "csv:data.csv"
RELEASES = 3
MECHANISMS = {"gaussian": (1.0, 1e-5), "laplace": (1.0, None)}


class RepeatedTask(MeanTask):
    """The private mean of all records so far: three releases share its budget."""

    def make_budget(self, level: str | None) -> Budget:
        return Budget(self.study, level, touched=1, scope="release", releases=RELEASES)


class CalibratedTask(RepeatedTask):
    """A later model buys less noise: what a release costs depends on what the server has said."""

    def event(self, model: Model) -> Gaussian:
        return Gaussian(0.01 * (1 + model.version))


def task_of(kind: str = "gaussian", name: str = "one", made: type[Task] = RepeatedTask) -> Task:
    epsilon, delta = MECHANISMS[kind]
    privacy = f'mechanism = "discrete-{kind}"\nepsilon = {epsilon}\n'
    privacy += f"delta = {delta}" if delta else ""
    study = parse_study(study_text(name, privacy=privacy, stream="max_in_flight_windows = 0"))
    return made(study, revision_of(study))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "site.db"


def release(store: ClientStore, task: Task, *seqs: int) -> None:
    store.release(
        task, SOURCE, [Outgoing(seq, b"bytes %d" % seq, []) for seq in seqs],
        position=b"p%d" % seqs[-1], tally=Tally(20 * len(seqs), {}, 0), now=1e9,
    )  # fmt: skip


def paid(path: Path) -> list[int]:
    """Return the numbers of the releases that are paid; each that is stored must be, and once."""
    assert rows(path, "SELECT study, seq FROM spends") == rows(
        path, "SELECT study, seq FROM ledger"
    )
    assert {scope for (scope,) in rows(path, "SELECT scope FROM spends")} <= {"release"}
    return [seq for (seq,) in rows(path, "SELECT seq FROM spends")]


@pytest.mark.parametrize("kind", MECHANISMS)
@pytest.mark.parametrize("limit", [Limit(), Limit(10.0, 1e-5)])
def test_each_release_is_charged_until_the_budget_is_spent(
    path: Path, kind: str, limit: Limit
) -> None:
    task = task_of(kind)
    with ClientStore(path, "site") as store:
        store.open_stream(task, SOURCE, limit)
        for seq in range(RELEASES):
            release(store, task, seq)
            store.heritage._db._whole.check()
        before = store.peek("one")
        # a larger limit of the source does not loosen what the study promises
        with pytest.raises(BudgetExceeded, match=r"promises 1: the study is over"):
            release(store, task, RELEASES)
        assert store.peek("one") == before
    assert paid(path) == list(range(RELEASES))
    found = report.ledger(path)[SOURCE]
    assert found["spent"]["epsilon"] == pytest.approx(1.0, rel=1e-6)
    assert found["spent"]["mu"] == pytest.approx(task.budget.guarantee.mu, rel=1e-12)
    assert len(found["refusals"]) == 1


def test_what_one_release_costs_is_a_third_of_the_budget() -> None:
    laplace, gaussian = (task_of(kind).budget for kind in ("laplace", "gaussian"))
    assert laplace.event == Pure(1.0 / RELEASES)
    whole = total_mu([compose({gaussian.event: RELEASES})])
    assert isinstance(gaussian.event, Gaussian)
    assert gaussian.event.mu == pytest.approx(whole / math.sqrt(RELEASES), rel=1e-15)
    assert "3 keep this budget" in gaussian.guarantee.guarantee
    # the noise is that of a third
    assert task_of("laplace").channel.standard_deviation == pytest.approx(  # type: ignore[attr-defined]
        3 * MeanTask(task_of("laplace").study).channel.standard_deviation, rel=1e-2
    )


def test_studies_of_both_scopes_share_a_limit(path: Path) -> None:
    repeated, once = task_of(name="repeated"), task_of(name="once", made=MeanTask)
    with ClientStore(path, "site") as store:
        store.open_stream(repeated, SOURCE)
        release(store, repeated, 0)
        store.open_stream(once, SOURCE)
        with pytest.raises(BudgetExceeded, match=r"1 other study .* the limit is 1;"):
            release(store, once, 0)
        store.open_stream(once, SOURCE, Limit(epsilon=1.3))
        release(store, once, 0)
        # the source has no room for a second of its releases, though the study has
        with pytest.raises(BudgetExceeded, match=r"the limit is 1\.3"):
            release(store, repeated, 1)


def test_a_group_is_charged_whole_or_not_at_all(path: Path) -> None:
    task = task_of()
    with ClientStore(path, "site") as store:
        store.open_stream(task, SOURCE)
        with pytest.raises(BudgetExceeded):
            release(store, task, *range(RELEASES + 1))
        assert paid(path) == []
        release(store, task, *range(RELEASES))
    assert paid(path) == list(range(RELEASES))


def test_lost_releases_are_charged_one_by_one(path: Path) -> None:
    task = task_of()
    with ClientStore(path, "site") as store:
        store.open_stream(task, SOURCE)
        store.charge_lost(task, SOURCE, range(RELEASES), owed=0, now=1e9)
        assert paid(path) == list(range(RELEASES))
        with pytest.raises(BudgetExceeded):
            release(store, task, RELEASES)


def test_a_spend_that_is_missing_is_found(path: Path) -> None:
    task = task_of()
    with ClientStore(path, "site") as store:
        store.open_stream(task, SOURCE)
        release(store, task, 0, 1)
    with sqlite_file(path) as db:
        db.execute("DELETE FROM spends WHERE seq = 1")
    db.close()
    with pytest.raises(LocalStoreError, match="the spends has gaps"):
        ClientStore(path, "site")


def test_an_account_tells_all_releases_together_and_nothing_lowers_it(path: Path) -> None:
    task, told = task_of(), []
    with ClientStore(path, "site") as store:
        store.open_stream(task, SOURCE)
        for seq in range(2):
            release(store, task, seq)
            told.append(store.heritage.account())
    whole = compose({task.budget.event: 2})
    assert told[1].sources[0].spends[0].event == whole
    new = path.with_name("new.db")
    with ClientStore(new, "site") as store:
        assert [store.heritage.take_file(told[i]) for i in (0, 1, 0, 1)] == [1, 1, 0, 0]
        [entry] = account(store.heritage._db.rows).sources
        assert entry.spends[0].event == whole
        assert rows(new, "SELECT event FROM inherited") == [(encode(whole),)]


# --- the client's loop ------------------------------------------------------------------------


class Ends:
    """Stands for the two ends at Kafka: nothing is acknowledged, and no model comes."""

    claiming = False

    def __init__(self, model: Model) -> None:
        self.newest = model

    def pump(self) -> None: ...

    def drain(self) -> None: ...

    read_to = 0

    def unseen(self, offset: int | None) -> tuple[int, int]:
        return 0, 0

    def wait(self, seconds: float) -> bool:
        return False

    def poll(self, seconds: float = 0.0) -> Model:
        return self.newest


def client_of(
    path: Path, store: ClientStore, task: Task, told: list[int], version: int = 0
) -> Client:
    ends = Ends(replace(start_model(task.size), version=version))
    stream = store.open_stream(task, SOURCE)
    source = open_source(str(path.with_name("data.csv")), stream.position, folder=path.parent)
    return Client(
        task, cast("Any", source), store, cast("Any", ends), cast("Any", ends),
        source_name=SOURCE, publish=lambda: told.append(1),
    )  # fmt: skip


def test_a_client_releases_what_its_budget_allows_and_stops(path: Path) -> None:
    write_csv(path.with_name("data.csv"), 200)
    task, told = task_of(), list[int]()
    with ClientStore(path, "site") as store:
        client = client_of(path, store, task, told)
        for _ in range(RELEASES):
            assert client.turn()
        with pytest.raises(BudgetExceeded):
            client.turn()
        assert client.progress.releases == RELEASES
    assert paid(path) == list(range(RELEASES))
    assert rows(path, "SELECT records FROM streams") == [(RELEASES * task.slots,)]
    # others are told of each spend before its release leaves
    assert len(told) == RELEASES


def test_a_release_pays_for_the_model_that_it_is_at(path: Path) -> None:
    write_csv(path.with_name("data.csv"), 40)
    task = task_of(made=CalibratedTask)
    with ClientStore(path, "site") as store:
        for version in (0, 4):
            client = client_of(path, store, task, [], version)
            client.turn()
    events = [event for (event,) in rows(path, "SELECT event FROM spends ORDER BY seq")]
    assert events == [encode(Gaussian(0.01)), encode(Gaussian(0.05))]


@pytest.fixture
def filled(path: Path) -> Path:
    with ClientStore(path, "site") as store:
        store.open_stream(task_of(), SOURCE)
        release(store, task_of(), 0)
    return path


def test_a_client_that_dies_at_any_statement_has_paid_for_what_it_keeps(filled: Path) -> None:
    task, died = task_of(), 0
    for step in range(100):
        before = paid(filled)
        if len(before) == RELEASES:
            break
        child = os.fork()
        if child == 0:
            _die_at(filled, task, len(before), step)
        _, status = os.waitpid(child, 0)
        died += os.WIFSIGNALED(status)
        with ClientStore(filled, "site") as store:
            store.heritage._db._whole.check()
            stored = [item.seq for item in store.unsent("one", -1, 10)]
        # bytes that may leave are paid; what was not stored cost nothing
        assert stored == paid(filled)
        assert stored in (before, [*before, len(before)])
        if not os.WIFSIGNALED(status):
            assert os.WEXITSTATUS(status) == 0
            assert stored == [*before, len(before)]
    else:
        raise AssertionError("no release was ever whole")
    # charge, spend, position, ledger, outbox, begin and commit of two releases
    assert died >= 10


def _die_at(path: Path, task: Task, seq: int, step: int) -> None:
    """In a child: release once, and be killed as its statement with this number begins."""
    code = 1
    try:
        with ClientStore(path, "site") as store:
            counted = 0

            def trace(_: str) -> None:
                nonlocal counted
                if counted == step:
                    os.kill(os.getpid(), signal.SIGKILL)
                counted += 1

            store.open_stream(task, SOURCE)
            store.heritage._db._db.set_trace_callback(trace)
            release(store, task, seq)
        code = 0
    finally:
        os._exit(code)
