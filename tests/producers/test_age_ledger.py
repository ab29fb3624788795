"""Rounds in the one ledger: each is charged, together they cost what the nested rule says."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.errors import BudgetExceeded, ConfigError
from pipeline.methods.age_aware.client import AgedTask
from pipeline.privacy.accounting import total_epsilon
from pipeline.release.task import Task
from pipeline.study_file.load import parse_study
from producers.budget import Limit
from producers.metrics import ClientMetrics
from producers.report import account_of, begun, closing, ledger, run_of, standing
from producers.store import ClientStore, Outgoing, Tally
from tests import ages
from tests.stage import study_text
from tests.toy_mean import MeanTask

SOURCE = "csv:meter.csv"
CARD = ages.GROUPS.replace("q = 0.4", "q = 0.4\ncard_epsilon = 0.5")


def task_of(**given: object) -> AgedTask:
    return ages.task_of(ages.study_text(**given)).of_client("b")  # type: ignore[arg-type]


def release(store: ClientStore, task: Task, *rounds: int) -> None:
    store.release(
        task, SOURCE, [Outgoing(number, b"bytes", []) for number in rounds],
        position=b"p%d" % rounds[-1], tally=Tally(task.slots, {}, 0), now=1e9,
    )  # fmt: skip


def test_rounds_go_on_for_ever_where_records_forget(tmp_path: Path) -> None:
    task, limit = task_of(), Limit(epsilon=2.0)
    epsilon = task.budget.per_record
    with ClientStore(tmp_path / "b.db", "b") as store:
        store.open_stream(task, SOURCE, limit)
        for first in range(0, 60, 10):
            release(store, task, *range(first, first + 10))
    assert 60 * epsilon > 2.0 > task.budget.after(10_000)
    # what is printed adds up classically, and says so: the limit holds the nested sum
    told = ledger(tmp_path / "b.db")[SOURCE]
    assert told["spent"]["epsilon"] == pytest.approx(60 * epsilon)
    assert any("classical sum" in words for words in told["warnings"])
    with ClientStore(tmp_path / "b.db", "b") as store:
        # the owner's limit is still kept when the client starts again with it
        store.open_stream(task, SOURCE, limit)
        release(store, task, 60)
        with pytest.raises(ConfigError, match="--epsilon-limit"):
            store.open_stream(task, SOURCE, Limit(epsilon=0.9 * epsilon))


def test_a_run_says_what_its_limit_holds_first_and_the_sum_beside_it(tmp_path: Path) -> None:
    path, task = tmp_path / "b.db", task_of(groups=CARD)
    assert standing(path, task) == {}
    with ClientStore(path, "b") as store:
        store.open_stream(task, SOURCE, Limit(epsilon=4.0))
        before = standing(path, task)
        release(store, task, *range(30))
        after = standing(path, task)
    epsilon, nested = task.budget.per_record, task.budget.after(30)
    assert 30 * epsilon > 4.0 > nested
    done = run_of(before, after)["epsilon"]
    assert done == pytest.approx(
        {"limit": 4.0, "spent": nested, "remaining": 4 - nested, "added_up": 30 * epsilon + 0.5}
    )
    last = next(closing(run_of(before, after), after, task.study))
    assert f"epsilon {nested:.4g} of 4 spent about a value at any one time (nested)" in last
    assert f"{4 - nested:.4g} left; {30 * epsilon + 0.5:.4g} about the history" in last
    assert "epsilon 0 of 4 spent" in begun("r", before, study="s", follow=False)
    # what is scraped is what the limit holds, too
    [spent] = [f for f in ClientMetrics(path, task).collect() if f.name.endswith("epsilon_spent")]
    assert spent.samples[0].value == pytest.approx(nested)


def test_what_does_not_change_is_over_when_the_promise_is_reached(tmp_path: Path) -> None:
    frozen = ages.GROUPS.replace("q = 0.4", "q = 0.0001")
    task = task_of(groups=frozen, epsilon=1.0)
    with ClientStore(tmp_path / "b.db", "b") as store:
        store.open_stream(task, SOURCE, Limit())
        release(store, task, 0, 1, 2)
        with pytest.raises(BudgetExceeded, match="the study is over for this client"):
            release(store, task, 3)


def test_what_a_card_has_cost_counts_for_every_study_of_the_source_and_once(tmp_path: Path) -> None:
    path, task = tmp_path / "b.db", task_of(groups=CARD)
    with ClientStore(path, "b") as store:
        store.open_stream(task, SOURCE, Limit(epsilon=40.0))
        release(store, task, 0, 1)
    with ClientStore(path, "b") as store:
        # of two states it would be, if rows did not agree
        release(store, task, 2)
        again = task_of(groups=CARD, name="again")
        store.open_stream(again, SOURCE)
        release(store, again, 0)
    found = ledger(path)[SOURCE]
    costs = {study["study"]: study["pure_epsilon"] for study in found["studies"]}
    epsilon = task.budget.per_record
    assert sorted(costs.values()) == pytest.approx([0.5, epsilon, 3 * epsilon])
    assert found["spent"]["epsilon"] == pytest.approx(4 * epsilon + 0.5)
    # all of it is told to other folders, which take the card for paid
    [entry] = account_of(path).sources
    assert total_epsilon([spend.event for spend in entry.spends], 0.0) == pytest.approx(
        4 * epsilon + 0.5
    )
    with ClientStore(tmp_path / "other.db", "b") as store:
        store.heritage.take_file(account_of(path))
        store.open_stream(task, SOURCE)
        release(store, task, 0)
    spent = ledger(tmp_path / "other.db")[SOURCE]["spent"]["epsilon"]
    assert spent == pytest.approx(5 * epsilon + 0.5)


def test_rows_and_individuals_are_no_records_of_one_source(tmp_path: Path) -> None:
    laplace = 'mechanism = "discrete-laplace"\nepsilon = 1.0\nneighbours = "replace-one"\n'
    rounds, rows = task_of(), MeanTask(parse_study(study_text("rows", privacy=laplace)))
    for number, (first, second) in enumerate([(rounds, rows), (rows, rounds)]):
        with ClientStore(tmp_path / f"{number}.db", "b") as store:
            # a study that has released nothing binds nobody
            store.open_stream(second, SOURCE, Limit(epsilon=40.0))
            store.open_stream(first, SOURCE)
            release(store, first, 0)
            with pytest.raises(ConfigError, match="data owner must choose"):
                store.open_stream(second, SOURCE)
            with pytest.raises(ConfigError, match=repr(first.study.name)):
                release(store, second, 0)
            assert store.waiting(second.study.name) == 0


def test_a_client_that_starts_again_with_another_card_is_refused_and_has_spent_nothing(
    tmp_path: Path,
) -> None:
    task = task_of()
    other = task_of(groups=ages.GROUPS.replace("q = 0.4", "q = 0.6"))
    with ClientStore(tmp_path / "b.db", "b") as store:
        store.open_stream(task, SOURCE, Limit(epsilon=4.0))
        release(store, task, 0, 1)
    with (
        ClientStore(tmp_path / "b.db", "b") as store,
        pytest.raises(ConfigError, match="restore the file"),
    ):
        store.open_stream(other, SOURCE)
    spent = ledger(tmp_path / "b.db")[SOURCE]["spent"]["epsilon"]
    assert spent == pytest.approx(2 * task.budget.per_record)
