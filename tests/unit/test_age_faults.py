"""Rounds and what goes wrong: clocks that disagree, values that come twice, late or too early."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from pipeline.messages.release import MOST_LOST
from pipeline.methods.age_aware.client import AgedTask, WhenOver
from pipeline.records.encoder import Arrays
from pipeline.release.policy import Directive, OpenWindow, Send, Wait
from pipeline.stream.in_process import OfflineRun
from tests import ages
from tests.wire import edited

ROOT = Path(__file__).parents[2]
PARTS = ("task", "client", "state", "plan", "budget", "rounds")
ROUNDS = [f"pipeline.methods.age_aware.{part}" for part in PARTS]
#: What reads a clock, or waits for one; of `datetime`, what reads it, and not what reads a text.
CLOCKS = {"time", "sched", "asyncio", "threading", "signal", "zoneinfo"}
READ_OFF = {"now", "utcnow", "today"}


def file_of(module: str) -> Path | None:
    place = ROOT / module.replace(".", "/")
    return next((p for p in (place.with_suffix(".py"), place / "__init__.py") if p.exists()), None)


def imported(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_what_a_round_is_made_of_reads_no_clock() -> None:
    """Nor does anything that it imports: the only order in time is that of a source's slots."""
    todo, seen = list(ROUNDS), set[str]()
    while todo:
        module = todo.pop()
        path = file_of(module)
        if module in seen or path is None:
            continue
        seen.add(module)
        tree = ast.parse(path.read_text(encoding="utf-8"))
        names = list(imported(tree))
        assert not CLOCKS & {name.split(".")[0] for name in names}, module
        assert not READ_OFF & {n.attr for n in ast.walk(tree) if isinstance(n, ast.Attribute)}
        todo += [name for name in names if name.startswith("pipeline.")]
    # what it would prove nothing without
    assert {"pipeline.release.policy", "pipeline.release.task"} < seen


def test_when_a_round_leaves_no_clock_says() -> None:
    moments = (None, -1e9, 0.0, 1e9)
    for taken, opened, now in product(range(13), moments, (-1e12, 0.0, 1e12)):
        window = OpenWindow(taken, 12, opened, ended=now > 0)
        decision = WhenOver().decide(window, Directive(0, 5), now)
        assert decision == Send() if taken == 12 else isinstance(decision, Wait)


def released(run: OfflineRun, task: AgedTask, client: str, seed: int) -> bytes:
    [values] = ages.rounds_of(task, client, 1, np.random.default_rng(seed))
    window = Arrays(np.zeros((len(values), 0)), (values - 90.0) / 90.0)
    return run.release(client, window, run.model)


@pytest.fixture(scope="module")
def task() -> AgedTask:
    return ages.task_of(ages.study_text())


def details(run: OfflineRun) -> dict[str, object]:
    return dict(run.estimate(0.0)[0].details)


def test_a_second_value_for_a_round_does_not_count(task: AgedTask) -> None:
    """Neither the same bytes again nor other ones, in one batch with the first or after it."""
    run, twin = OfflineRun(task), OfflineRun(task)
    first = {name: released(run, task, name, 1) for name in task.plan.names}
    second = {name: released(twin, task, name, 2) for name in task.plan.names}
    assert all(first[name] != second[name] for name in first)
    run.fold_all([*first.items()])
    said = details(run)
    run.fold_all([*first.items(), *second.items()])
    assert details(run) == said
    assert run.estimate(0.0)[0].releases == len(first)
    together = OfflineRun(task)
    together.fold_all([(name, sent[name]) for name in first for sent in (first, second, first)])
    assert details(together) == said
    assert together.estimate(0.0)[0].releases == len(first)


def test_rounds_in_any_order_and_batches_give_the_same(task: AgedTask) -> None:
    """A late upload joins its round, whoever else has come in between."""
    run = OfflineRun(task)
    sent = [(n, released(run, task, n, s)) for s in range(3) for n in task.plan.names]
    run.fold_all(sent)
    for seed in range(5):
        shuffled = np.random.default_rng(seed).permutation(len(sent)).tolist()
        other = OfflineRun(task)
        for place in shuffled:
            other.fold(*sent[place])
        assert details(other) == details(run)
    late = [one for one in sent if one[0] != "b"]
    other = OfflineRun(task)
    other.fold_all(late)
    assert (details(other)["round"], details(other)["missing"]) == (1, ["b"])
    other.fold_all([one for one in sent if one[0] == "b"])
    assert details(other) == details(run)


def test_a_member_that_says_it_has_had_any_number_of_rounds_keeps_nobody_waiting() -> None:
    """Where rounds add up for ever, what they say together is not followed through all of them.

    Nor is it told that the promise were broken: who pays so much has stopped before.
    """
    task = ages.task_of(ages.study_text(groups=ages.GROUPS.replace("q = 0.4", "q = 0.001")))
    run = OfflineRun(task)
    first = [(name, released(run, task, name, 1)) for name in task.plan.names]
    last = MOST_LOST
    forged = [(name, edited(task, payload, seq=last)) for name, payload in first if name == "b"]
    run.fold_all([*first, *forged])
    said = details(run)
    assert (said["round"], said["ahead"]) == (0, 1)
    assert said["epsilon_at_any_time"] == task.study.privacy.epsilon
    paid = task.plan.epsilons[task.plan.number("b")]
    assert said["epsilon_of_all_rounds"] == pytest.approx(paid * (MOST_LOST + 1))
