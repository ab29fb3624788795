"""Rounds in the one ledger: each is charged, together they cost what the nested rule says."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.errors import BudgetExceeded, ConfigError
from pipeline.methods.age_aware.task import AgedTask
from producers.client_store import ClientStore, Outgoing, Tally
from producers.ledger import Limit
from tests import ages

SOURCE = "csv:meter.csv"


def task_of(**given: object) -> AgedTask:
    return ages.task_of(ages.study_text(**given)).of_client("b")  # type: ignore[arg-type]


def release(store: ClientStore, task: AgedTask, *rounds: int) -> None:
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
    with ClientStore(tmp_path / "b.db", "b") as store:
        # the owner's limit is still kept when the client starts again with it
        store.open_stream(task, SOURCE, limit)
        release(store, task, 60)
        with pytest.raises(ConfigError, match="--epsilon-limit"):
            store.open_stream(task, SOURCE, Limit(epsilon=0.9 * epsilon))


def test_a_plan_beyond_what_the_owner_allows_is_paid_by_nobody(tmp_path: Path) -> None:
    task = task_of()
    with ClientStore(tmp_path / "b.db", "b") as store:
        store.open_stream(task, SOURCE, Limit(epsilon=0.5 * task.budget.per_record))
        with pytest.raises(BudgetExceeded, match="--epsilon-limit"):
            release(store, task, 0)
        assert store.waiting(task.study.name) == 0


def test_what_does_not_change_is_over_when_the_promise_is_reached(tmp_path: Path) -> None:
    frozen = ages.GROUPS.replace("q = 0.4", "q = 0.0001")
    task = task_of(groups=frozen, epsilon=1.0)
    with ClientStore(tmp_path / "b.db", "b") as store:
        store.open_stream(task, SOURCE, Limit())
        release(store, task, 0, 1, 2)
        with pytest.raises(BudgetExceeded, match="it is over for this client"):
            release(store, task, 3)
