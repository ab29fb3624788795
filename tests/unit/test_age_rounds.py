"""Rounds of planned age through clients, log and worker: noise, losses, faults and lies."""

from __future__ import annotations

import ast
import io
import itertools
import re
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from rich.console import Console

from pipeline.api.sample import of_sample
from pipeline.api.table import table as shown
from pipeline.cli.change import change
from pipeline.errors import BudgetExceeded, ConfigError, DataError, PrivacyError
from pipeline.messages.release import MOST_LOST, read
from pipeline.methods import method_of, revision_of
from pipeline.methods.age_aware import method as facts
from pipeline.methods.age_aware import schedule as plans
from pipeline.methods.age_aware.client import AgedTask, WhenOver, repeated_epsilon
from pipeline.methods.age_aware.estimate import KEPT, Members, RoundState, Uploads, estimate
from pipeline.methods.age_aware.method import RoundServer
from pipeline.methods.age_aware.spec import clients_of, spec_of
from pipeline.privacy.accounting import total_epsilon
from pipeline.privacy.events import Pure, compose
from pipeline.records.encoder import Arrays
from pipeline.release.layout import identity
from pipeline.release.policy import Directive, OpenWindow, Send, Wait
from pipeline.release.task import form_of
from pipeline.stream.in_process import OfflineRun
from pipeline.study_file.load import parse_study
from tests import ages
from tests.nested import Upload, table, worst_epsilon
from tests.wire import edited


def window(values: np.ndarray) -> Arrays:
    """Return real values as the rows of a window."""
    return Arrays(np.zeros((len(values), 0)), (values - 90.0) / 90.0)


@pytest.mark.parametrize("use", ["debiased", pytest.param("wiener", marks=pytest.mark.slow)])
def test_the_loss_of_rounds_is_what_the_plan_expects(use: str) -> None:
    law = "law = [0.7, 0.1, 0.1, 0.1]"
    groups = ages.GROUPS.replace("q = 0.9", f"q = 0.9\n{law}")
    task = ages.task_of(
        ages.study_text(groups=groups, records=5, method=f'use = "{use}"\ncap = 8.0')
    )
    rng, plan, losses, values = np.random.default_rng(3), task.plan, [], []
    run, (centre, unit) = OfflineRun(task), task.response_scale
    for _ in range(100):
        truth = []
        for name in plan.names:
            [records] = ages.rounds_of(task, name, 1, rng)
            truth.append(records.reshape(12, -1)[-1].mean())
            run.fold(name, run.release(name, window(records), run.model))
        found, _ = run.estimate(0.0)
        assert found.status == "ready"
        value = centre + unit * float(found.coefficients[0])
        assert value == pytest.approx(found.details["value"])
        losses.append((value - np.mean(truth)) ** 2)
        values.append(value - np.mean(truth))
    expected = float(found.details["expected_loss"])
    # lattice noise is a hair wider than the continuous one that plans reckon with
    assert expected == pytest.approx(plan.losses.sum(), rel=0.02)
    assert abs(np.mean(values)) < 4 * np.std(values) / 100**0.5
    assert abs(np.mean(losses) - expected) < 4 * np.std(losses) / 100**0.5
    assert found.details["epsilon_now"] == 0.3


def test_noise_is_that_of_the_planned_slot_and_of_no_other() -> None:
    task = ages.task_of(ages.study_text(method="capacity = 1\ncap = 2.0"))
    plan = task.plan
    assert len(set(plan.slots.tolist())) == len(plan.names)
    for number, name in enumerate(plan.names):
        mine = task.of_client(name)
        assert mine.budget.event == Pure(float(plan.epsilons[number]))
        allowed = np.log1p(np.expm1(0.3) / plan.deltas[number])
        assert plan.epsilons[number] == pytest.approx(min(2.0, allowed))
        sd = mine.channel.standard_deviation * 90.0 / plan.records
        assert sd == pytest.approx(np.sqrt(2) * plan.scales[number], rel=0.01)
        # a record of another slot does not matter, one of this slot does
        values = np.full(task.slots, 60.0)
        before = mine.query(window(values), task.first_model).parts["sum"].pieces()[0].values
        for slot in range(12):
            changed = values.copy()
            changed[slot * plan.records] = 180.0
            after = mine.query(window(changed), task.first_model).parts["sum"].pieces()[0].values
            assert (after != before) == (slot == plan.slots[number])


def test_values_are_those_of_the_card_before_they_are_summed() -> None:
    task = ages.task_of(ages.study_text()).of_client("b")

    def total(value: float) -> int:
        values = np.full(task.slots, value)
        return int(task.query(window(values), task.first_model).parts["sum"].pieces()[0].values[0])

    assert total(55.0) == total(60.0) == total(89.0)
    assert total(91.0) == total(120.0) != total(60.0)
    assert total(1e6) == total(180.0)


def test_an_estimate_is_of_the_newest_round_that_is_over() -> None:
    task = ages.task_of(ages.study_text())
    run, rng = OfflineRun(task), np.random.default_rng(4)

    def report(*names: str) -> dict[str, object]:
        for name in names:
            [records] = ages.rounds_of(task, name, 1, rng)
            run.fold(name, run.release(name, window(records), run.model))
        return dict(run.estimate(0.0)[0].details)

    assert run.estimate(0.0)[0].status == "empty"
    assert report("c", "b") == {"clients_used": 2, "clients_missing": 2} | {"clients_used": 0}
    # a clock that is fast closes no round, however far it runs ahead
    assert "round" not in report("c", "c", "c")
    first = report("a-1", "a-2")
    assert (first["round"], first["clients_used"], first["ahead"]) == (0, 4, 1)
    # most of them have sent a later one: who has not is missing, and the others share its weight
    assert report("a-1")["round"] == 0
    second = report("a-2", "a-1", "a-2")
    assert (second["round"], second["clients_used"], second["missing"]) == (1, 3, ["b"])
    # a late upload joins its round as long as that is the newest
    third = report("b")
    assert (third["round"], third["clients_used"], third["missing"]) == (1, 4, [])


@pytest.mark.parametrize("use", ["debiased", "wiener"])
def test_a_value_without_its_drift_is_the_mean_of_what_was_sent(use: str) -> None:
    task = ages.task_of(ages.study_text(method=f'use = "{use}"'))
    run, rng, sent = OfflineRun(task), np.random.default_rng(6), []
    for name in task.plan.names:
        [records] = ages.rounds_of(task, name, 1, rng)
        payload = run.release(name, window(records), run.model)
        run.fold(name, payload)
        [(number,)] = read(task, payload).parts.values()
        sent.append(task.response_scale[0] + number * task.unit)
    details = run.estimate(0.0)[0].details
    assert details["drift_correction"] != 0
    assert details["value"] - details["drift_correction"] == pytest.approx(np.mean(sent))


@pytest.mark.parametrize("epsilon", [pytest.param(0.2, marks=pytest.mark.slow), 1.5])
def test_equal_rounds_cost_what_brute_force_finds(epsilon: float) -> None:
    task = ages.task_of(ages.study_text())
    for card in task.plan.cards.values():
        behind, ahead = card.backward, card.ahead
        for count in (1, 2, 3, 7):
            found = repeated_epsilon(count, epsilon, behind, ahead)
            uploads = [Upload(12 * number + 4, epsilon) for number in range(count)]
            # tables are as long as a round, and no two neighbours are further apart
            worst = worst_epsilon(uploads, table(behind), table(ahead))
            assert found == pytest.approx(worst, rel=1e-9)
        longer = [repeated_epsilon(n, epsilon, behind, ahead) for n in (8, 63, 64, 65, 5000)]
        assert longer == sorted(longer)
    # more than are followed one by one: never less than they say, and each no more than in full
    still = np.linspace(1.0, 0.9999, 13)
    exact = [repeated_epsilon(n, epsilon, still, still) for n in (9_999, 10_000)]
    beyond = [repeated_epsilon(n, epsilon, still, still) for n in (10_001, 2**40)]
    assert beyond == pytest.approx([exact[1] + (n - 10_000) * epsilon for n in (10_001, 2**40)])
    assert 0 < exact[1] - exact[0] <= epsilon
    promise = ages.task_of(ages.study_text(groups=ages.ALONE))
    assert promise.budget.after(5000) < 2 * promise.budget.per_record


def test_rounds_compose_by_the_nested_rule_until_the_study_is_over() -> None:
    task = ages.task_of(ages.study_text()).of_client("b")
    event = task.budget.event
    for rounds in (1, 5, 60):
        together = task.budget.together(compose({event: rounds}))
        assert total_epsilon([together], 0.0) == pytest.approx(task.budget.after(rounds))
    assert task.budget.after(60) < 60 * task.budget.per_record
    frozen = ages.GROUPS.replace("q = 0.4", "q = 0.0001")
    slow = ages.task_of(ages.study_text(groups=frozen))
    # what never changes adds up as ever
    assert slow.of_client("b").budget.after(7) == pytest.approx(7 * 0.3, rel=1e-3)
    assert any(
        "after 26 rounds" in words for words in method_of(slow.study).plan(slow, 10_000, 4).warnings
    )


def test_a_card_that_has_expired_pays_for_nothing() -> None:
    groups = ages.GROUPS.replace("q = 0.4", "q = 0.4\nlast_round = 2\ncard_epsilon = 0.5")
    budget = ages.task_of(ages.study_text(groups=groups)).of_client("b").budget
    plain = ages.task_of(ages.study_text()).of_client("b").budget
    spent = total_epsilon([budget.together(compose({budget.event: 3}))], 0.0)
    # what the card has cost is a spend of its own, beside those of releases
    assert spent == pytest.approx(plain.after(3))
    assert budget.after(3) == pytest.approx(plain.after(3) + 0.5)
    [paid] = budget.beforehand.values()
    assert paid == Pure(0.5)
    assert plain.beforehand == {}
    with pytest.raises(BudgetExceeded, match="round 2"):
        budget.together(compose({budget.event: 4}))


def test_a_plan_that_breaks_the_policy_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    study = parse_study(ages.study_text(method="capacity = 1\ncap = 3.0"))
    monkeypatch.setattr(plans, "classical_epsilon", careless(plans.classical_epsilon))
    with pytest.raises(PrivacyError, match="less noise"):
        plans.plan_of(study)


def careless(right):  # type: ignore[no-untyped-def]
    """Return a calibration that gives too little noise, but for whoever looks at single ages."""

    def wrong(present, delta, cap):  # type: ignore[no-untyped-def]
        found = right(present, delta, cap)
        return found if len(delta) == 1 else found._replace(classical=found.classical * 1.5)

    return wrong


def test_clients_are_those_of_the_study() -> None:
    task = ages.task_of(ages.study_text())
    assert task.clients == ("c", "a-1", "a-2", "b")
    with pytest.raises(ConfigError, match="--client"):
        task.of_client("stranger")
    with pytest.raises(PrivacyError):
        task.query(window(np.zeros(task.slots)), task.first_model)
    many = ages.GROUPS.replace("a-{1..2}", "a-{1..2000}")
    assert len(clients_of(spec_of(parse_study(ages.study_text(groups=many))))) == 2002


@pytest.mark.parametrize(
    ("change", "key"),
    [
        (('mixing = "cyclic"', 'mixing = "constant"'), "groups.slow.states"),
        (("q = 0.4", "q = 1.4"), "groups.*.q"),
        (("states = [0, 60, 120, 180]", "states = [0, 60, 120, 181]"), "groups.fast.states"),
        (("q = 0.4", "q = 0.0"), "groups.slow.q"),
        (("q = 0.4", "q = 0.4\nlaw = [0, 1, 0, 0]"), "groups.slow.law"),
        (("q = 0.4", "q = 0.4\nlaw = [0.5, 0.6, 0, 0]"), "groups.slow: law"),
        (('clients = ["b"]', 'clients = ["a-1"]'), "groups.slow.clients"),
        (('clients = ["b"]', 'clients = ["two words"]'), "groups.slow.clients: no client can be"),
        (("epsilon_now = 0.3", "epsilon_now = 1.3"), "method.cap"),
        (("epsilon_now = 0.3", "epsilon_now = 0.3\ncap = inf"), "method.cap"),
        (("epsilon_now = 0.3", 'epsilon_now = 0.3\nuse = "model"'), "method.use: unknown value"),
        (("epsilon_now = 0.3", 'epsilon_now = 0.3\ndelta = "bayes"'), "method.delta: unknown"),
        (("epsilon_now = 0.3", "epsilon_now = 0.3\nclosed = [12]"), "method.closed"),
        (("epsilon_now = 0.3", "epsilon_now = 0.3\nclosed = [-1]"), "method.closed"),
        (("epsilon_now = 0.3", f"epsilon_now = 0.3\nclosed = {[*range(12)]}"), "method.closed"),
        (("epsilon_now = 0.3", "epsilon_now = inf"), "method.epsilon_now"),
        (("slots = 12", "slots = 7"), "window.records"),
        (("discrete-laplace", "discrete-gaussian"), "privacy"),
        (("replace-one", "zero-out"), "privacy.neighbours"),
        (("features = {}", "features = { x = { min = 0, max = 1 } }"), "data.features"),
        (("[study]", '[study]\nfollows = "earlier"'), "study.follows"),
        (("[stream]", "seconds = 5.0\n[stream]"), "window.seconds"),
        (('loss = "linear"', 'loss = "linear"\nnorm_bound = 3.0'), "estimator.norm_bound"),
    ],
)
def test_what_cannot_be_is_refused_by_its_key(change: tuple[str, str], key: str) -> None:
    text = ages.study_text()
    assert change[0] in text
    with pytest.raises(ConfigError, match=re.escape(key)):
        plans.plan_of(parse_study(text.replace(*change)))


def test_more_clients_than_places_are_refused() -> None:
    closed = ", ".join(map(str, range(3, 12)))
    text = ages.study_text(method=f"capacity = 1\nclosed = [{closed}]")
    with pytest.raises(ConfigError, match=r"method\.capacity: 4 clients"):
        plans.plan_of(parse_study(text))
    roomy = plans.plan_of(parse_study(text.replace("capacity = 1", "capacity = 2")))
    assert max(np.bincount(roomy.slots)) <= 2
    assert set(roomy.slots.tolist()) <= {0, 1, 2}


def test_a_plan_of_few_places_has_the_least_loss_of_all_that_fit() -> None:
    def losses(method: str) -> np.ndarray:
        return plans.plan_of(parse_study(ages.study_text(method=method))).losses

    slots = range(12)
    cost = np.array(
        [losses(f"closed = {[other for other in slots if other != slot]}") for slot in slots]
    ).T
    for places in (1, 2):
        orders = np.array(list(itertools.product(slots, repeat=len(cost))))
        crowd = [np.bincount(order).max() for order in orders]
        least = cost[np.arange(len(cost)), orders[np.array(crowd) <= places]].sum(axis=1).min()
        found = losses(f"capacity = {places}").sum()
        assert found == pytest.approx(least, rel=1e-12)
        assert found > cost.min(axis=1).sum() * (1 + 1e-6)


def test_another_plan_of_the_same_study_is_another_revision(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    texts = ages.study_text(), ages.study_text(method="capacity = 1")
    free, placed = (revision_of(parse_study(text)) for text in texts)
    monkeypatch.setattr("pipeline.methods.age_aware.method.PLAN_SEMANTICS", 3)
    assert revision_of(parse_study(texts[0])) == free
    assert revision_of(parse_study(texts[1])) != placed


@pytest.mark.slow
def test_without_age_credit_every_release_has_the_noise_of_a_fresh_one() -> None:
    groups = ages.ALONE.replace("rate = 0.4", "rate = 1e-5")
    task = ages.task_of(ages.study_text(groups=groups))
    assert task.plan.epsilons == pytest.approx([0.3], rel=1e-3)
    assert any(
        "no noise in group 'all'" in words
        for words in method_of(task.study).plan(task, 10_000, 4).warnings
    )
    # of two groups, the one whose values go round and are never forgotten
    turning = 'mixing = "matrix"\nmatrix = [[0, 1], [1, 0]]'
    groups = ages.GROUPS.replace('mixing = "cyclic"', turning).replace("q = 0.4\n", "")
    before, slow = groups.split("[estimator.method.groups.slow]")
    slow = slow.replace("states = [0, 60, 120, 180]", "states = [0, 180]")
    task = ages.task_of(ages.study_text(groups=f"{before}[estimator.method.groups.slow]{slow}"))
    said = [
        words
        for words in method_of(task.study).plan(task, 10_000, 4).warnings
        if "no noise in" in words
    ]
    assert [word for words in said for word in words.split() if "'" in word] == ["'slow':"]


def test_a_card_that_costs_all_there_is_releases_nothing() -> None:
    groups = ages.GROUPS.replace("q = 0.4", "q = 0.4\ncard_epsilon = 8.0")
    with pytest.raises(ConfigError, match=r"groups\.slow\.card_epsilon"):
        ages.task_of(ages.study_text(groups=groups))


def test_a_plan_says_when_its_card_has_expired() -> None:
    groups = ages.GROUPS.replace("q = 0.4", "q = 0.4\nlast_round = 2")
    task = ages.task_of(ages.study_text(groups=groups))
    said = [
        " ".join(method_of(task.study).rounds.timetable(task, number).notes) for number in (2, 3)
    ]
    assert ["round 3 is one of those that are refused" in words for words in said] == [False, True]
    [warning] = [
        words
        for words in method_of(task.study).plan(task, 10_000, 4).warnings
        if "last_round" in words
    ]
    assert "'slow'" in warning
    assert "from round 3 on" in warning


def test_who_keeps_a_round_open_is_named() -> None:
    task = ages.task_of(ages.study_text())
    run, rng = OfflineRun(task), np.random.default_rng(3)
    for client in ("c", "a-1", "c", "a-1"):
        [values] = ages.rounds_of(task, client, 1, rng)
        window = Arrays(np.zeros((len(values), 0)), (values - 90) / 90)
        run.fold(client, run.release(client, window, run.model))
    found, _ = run.estimate(0.0)
    assert found.reason == (
        "no round is over: 2 of 4 clients have reported; round 0 waits for 'a-2', 'b'"
    )


@pytest.mark.parametrize("use", ["debiased", "wiener"])
def test_no_upload_moves_a_round_further_than_study_check_says(use: str) -> None:
    law = "law = [0.7, 0.1, 0.1, 0.1]"
    groups = ages.GROUPS.replace("q = 0.9", f"q = 0.9\n{law}")
    task = ages.task_of(ages.study_text(groups=groups, method=f'use = "{use}"\ncap = 8.0'))
    said, largest = facts.largest_move(task), int(task.layout.later[0].largest)
    moves = []
    for name in task.plan.names:
        ends = []
        for number in (-largest, largest):
            server = RoundServer(task)
            state = server.empty()
            rows = np.zeros(len(task.plan.names), form_of(task).dtype)
            for row, one in zip(rows, task.plan.names, strict=True):
                row["client"] = np.frombuffer(identity(one.encode()), "<u8")
                row["sums"][0] = number if one == name else 0
            server.fold(state, rows)
            ends.append(float(server.estimate([(1.0, state)], [0]).coefficients[0]))
        moves.append((ends[1] - ends[0]) * task.response_scale[1])
    assert max(moves) == pytest.approx(said, rel=1e-6)


def test_who_is_too_far_ahead_is_not_called_missing() -> None:
    task = ages.task_of(ages.study_text())
    run, rng = OfflineRun(task), np.random.default_rng(5)

    def report(client: str, rounds: int) -> None:
        for values in ages.rounds_of(task, client, rounds, rng):
            run.fold(client, run.release(client, window(values), run.model))

    report("c", KEPT + 3)
    report("a-1", 4)
    report("a-2", 4)
    details = dict(run.estimate(0.0)[0].details)
    # the first three rounds of `c` are no longer kept when the others come to them
    assert (details["round"], details["clients_used"]) == (2, 2)
    assert (details["missing"], details["clients_too_far_ahead"]) == (["b"], 1)


@pytest.mark.parametrize("rounds", [1, KEPT - 1])
def test_a_value_is_not_lost_while_others_go_on_without_the_dead(rounds: int) -> None:
    task = ages.task_of(ages.study_text())
    run, rng = OfflineRun(task), np.random.default_rng(6)
    for name in task.plan.names:
        [values] = ages.rounds_of(task, name, 1, rng)
        run.fold(name, run.release(name, window(values), run.model))
    first = run.estimate(0.0)[0].details["value"]
    for name in ("c", "a-1"):
        for values in ages.rounds_of(task, name, rounds, rng):
            run.fold(name, run.release(name, window(values), run.model))
    # half of them are no majority: the last whole round stands
    found = run.estimate(0.0)[0]
    assert (found.status, found.details["round"]) == ("ready", 0)
    assert found.details["value"] == first


def test_a_round_is_dropped_where_nothing_of_it_would_be_kept() -> None:
    uploads = Uploads()
    for number in np.random.default_rng(4).permutation(KEPT + 20).tolist():
        for other in range(KEPT + 20):
            tried = Uploads(sums=dict(uploads.sums))
            tried.put(other, 1)
            assert uploads.dropped(other) == (other not in tried.sums)
        uploads.put(number, 7)


def test_missing_values_under_a_promise_of_speed_are_told() -> None:
    task = ages.task_of(ages.study_text(groups=ages.ALONE))
    run = OfflineRun(task)
    run.fold("c", run.release("c", window(np.full(task.slots, np.nan)), run.model))
    found = run.estimate(0.0)[0]
    assert found.details["missing_values_count_as"] == 90.0
    assert any(
        "counts as 90" in words for words in method_of(task.study).plan(task, 10_000, 4).warnings
    )


def test_all_rounds_cost_what_the_card_has_cost_and_what_was_never_folded() -> None:
    groups = ages.GROUPS.replace("q = 0.4", "q = 0.4\ncard_epsilon = 3.0")
    task = ages.task_of(ages.study_text(groups=groups))
    names = task.plan.names
    for newest in (0, 19):
        state = RoundState(releases=len(names), slots=len(names) * task.slots)
        for name in names:
            state.clients[identity(name.encode()).hex()] = Uploads(1, {newest: 0})
        told = estimate(task, state, Members(names)).details
        each = float(task.plan.epsilons.max())
        assert told["epsilon_of_all_rounds"] == pytest.approx(3.0 + each * (newest + 1))
        assert told["epsilon_at_any_time"] == task.worst(newest + 1)
        assert told["epsilon_of_all_rounds"] >= told["epsilon_at_any_time"]


def test_who_watches_is_told_of_the_round_and_of_what_no_data_give() -> None:
    task = ages.task_of(ages.study_text(method='use = "wiener"'))
    run, rng = OfflineRun(task), np.random.default_rng(8)
    for name, rounds in (("c", 3), ("a-1", 3), ("a-2", 3), ("b", 1)):
        for values in ages.rounds_of(task, name, rounds, rng):
            run.fold(name, run.release(name, window(values), run.model))
    assert method_of(task.study).report.lines(task.study, {}) == []
    message = run.estimate(0.0)[1]
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(shown(message, task.study))
    said, alone = console.export_text(), float(message.details["loss_without_data"])
    assert "round 1 (slots 12 to 23 of each source): 3 of 4 clients; not yet of 'b'" in said
    # records of both chains are in each state as often as in any other
    assert f"without any data the value would be 90, error {np.sqrt(alone):.4g}" in said
    assert ("data do not help" in said) is not message.details["data_help"]
    assert "round 2 is due after slot 35 of each source" in said
    # there are no features, and no residuals
    assert "feature" not in said
    assert "noise scale" not in said
    assert "behind" not in said
    unknown = ages.task_of(ages.study_text(groups=ages.ALONE))
    run = OfflineRun(unknown)
    run.fold("c", run.release("c", window(np.full(unknown.slots, 60.0)), run.model))
    said = " ".join(
        method_of(unknown.study).report.lines(unknown.study, run.estimate(0.0)[1].details)
    )
    assert "would be unknown" in said
    assert "not yet of" not in said


def test_who_watches_is_told_who_comes_too_late_to_count_and_whose_card_has_ended() -> None:
    def said(groups: str, **rounds: int) -> str:
        task = ages.task_of(ages.study_text(groups=groups))
        run, rng = OfflineRun(task), np.random.default_rng(8)
        for key, each in rounds.items():
            name = key.replace("_", "-")
            for values in ages.rounds_of(task, name, each, rng):
                run.fold(name, run.release(name, window(values), run.model))
        message = run.estimate(0.0)[1]
        return " ".join(method_of(task.study).report.lines(task.study, message.details))

    # one whose source began later releases, and its rounds are over
    found = said(ages.GROUPS, c=5, a_1=5, a_2=5, b=2)
    assert "not yet of 'b'; 1 client more than a round behind" in found
    ended = ages.GROUPS.replace("q = 0.4", "q = 0.4\nlast_round = 1")
    found = said(ended, c=5, a_1=5, a_2=5, b=2)
    assert "no more of 'b', whose model card has ended" in found
    assert "not yet of" not in found
    assert "behind" not in found
    found = said(ended.replace("q = 0.9", "q = 0.9\nlast_round = 1"), c=2, a_1=2, a_2=2, b=2)
    assert "no later round comes" in found


def test_a_member_whose_card_expects_the_opposite_moves_a_round_as_far() -> None:
    """With two states that always change places a gain is below 0, and so much of a lie counts."""
    swap = '[estimator.method.groups.all]\nclients = ["c"]\nmixing = "matrix"\n'
    swap += "states = [0, 180]\nmatrix = [[0.1, 0.9], [0.9, 0.1]]\n"
    task = ages.task_of(
        ages.study_text(groups=swap, slots=2, method='use = "wiener"\nclosed = [1]\ncap = 8.0')
    )
    assert task.plan.gains[0] < 0
    [field] = task.layout.later
    moved = 2 * abs(task.plan.gains[0]) * field.largest * task.unit
    assert facts.largest_move(task) == pytest.approx(moved)


def test_details_that_a_stranger_wrote_end_nobody_who_reads() -> None:
    task = ages.task_of(ages.study_text())
    run, rng = OfflineRun(task), np.random.default_rng(8)
    for name in task.plan.names:
        [values] = ages.rounds_of(task, name, 1, rng)
        run.fold(name, run.release(name, window(values), run.model))
    details, told = dict(run.estimate(0.0)[1].details), method_of(task.study).report.lines
    assert told(task.study, details)
    for key in ("round", "missing", "expected_loss", "loss_without_data", "epsilon_now"):
        for value in ("x", -1.0, [1], 1e400, True):
            told(task.study, details | {key: value})
        assert told(task.study, {k: v for k, v in details.items() if k != key}) == []
    assert told(task.study, details | {"missing": ["nobody"]})


def test_a_sample_of_a_study_without_features_is_of_the_response(tmp_path: Path) -> None:
    task, path = ages.task_of(ages.study_text()), tmp_path / "sample.csv"

    def said(*values: str) -> dict[str, Any]:
        path.write_text("\n".join(["power", *values]) + "\n")
        return dict(of_sample(task, str(path)))

    right = said(*["0", "60", "120", "180"] * 10, "", "much")
    assert (right["records"], right["unusable"], right["outside_range"]) == (42, 2, 0)
    assert "advice" not in right
    # kilowatts for watts, and the other way round
    for wrong in (["0", "0.06", "0.12"], ["0", "60000", "120000"]):
        assert "in its unit" in said(*wrong * 10)["advice"]
    with pytest.raises(DataError, match="'power'"):
        said("much")


def test_a_changed_study_is_not_advised_to_follow_one_that_it_cannot(tmp_path: Path) -> None:
    old, new = tmp_path / "old.toml", tmp_path / "new.toml"
    old.write_text(ages.study_text())
    new.write_text(ages.study_text(method="cap = 2.0"))
    done = CliRunner().invoke(change, [str(old), str(new)])
    assert isinstance(done.exception, ConfigError)
    assert "give NEW a name of its own" in str(done.exception)
    assert "follows" not in str(done.exception)


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
