"""Sums that clients send again replace what they sent before: the estimate is that of one fit."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose

from pipeline.errors import ConfigError, StateError
from pipeline.estimators.estimate import Estimate
from pipeline.methods import method_of, server_of, task_of
from pipeline.methods.renewable.replacing import ReplacingState
from pipeline.methods.renewable.task import RenewableTask
from pipeline.records.encode import Arrays
from pipeline.reducer import Partition, Reducer, estimate_of, slots_seen
from pipeline.release.model import Model, round_model
from pipeline.releasing import release_again, release_of
from pipeline.study import parse_study
from tests.builders import LogEntry, oracle, simulate, study_text

CLIENTS, WINDOWS, ROUNDS, RIDGE = 3, 12, 10, 0.01


@pytest.fixture(scope="module")
def task() -> RenewableTask:
    text = study_text(private=False, method="reexpand = true", ridge=RIDGE)
    made = task_of(parse_study(text))
    assert isinstance(made, RenewableTask)
    return made


@pytest.fixture(scope="module")
def windows(task: RenewableTask) -> dict[str, list[Arrays]]:
    rng = np.random.default_rng(4)
    return {
        f"c{k}": [Arrays(*simulate(rng, task.slots, 3)) for _ in range(WINDOWS)]
        for k in range(CLIENTS)
    }


def named(client: str, seq: int) -> dict[str, object]:
    return {"client": client, "ledger": f"l-{client}", "seq": seq}


def first(task: RenewableTask, windows: dict[str, list[Arrays]]) -> list[LogEntry]:
    """Return every window once, each at another model."""
    rng, log = np.random.default_rng(1), []
    for seq in range(WINDOWS):
        for client, held in windows.items():
            point = rng.normal(0, 0.5, task.size)
            at = round_model(seq, point, (1.0, 1.0)) if seq else task.first_model
            value = release_of(task, held[seq], at, **named(client, seq))  # type: ignore[arg-type]
            log.append(LogEntry(len(log), client.encode(), value))
    return log


def again(
    task: RenewableTask,
    windows: dict[str, list[Arrays]],
    model: Model,
    seq: int,
) -> list[tuple[str, bytes]]:
    made = []
    for client, held in windows.items():
        point = task.point_again(held, np.zeros(task.size), model)
        assert point is not None
        made.append((client, release_again(task, held, point, model, **named(client, seq))))  # type: ignore[arg-type]
    return made


class Log:
    """A partition and the log that it was folded from."""

    def __init__(self, task: RenewableTask) -> None:
        self.task, self.state, self.entries = task, Partition.empty(task), list[LogEntry]()

    def take(self, client: str, value: bytes) -> None:
        entry = LogEntry(len(self.entries), client.encode(), value)
        self.entries.append(entry)
        assert Reducer(self.task).fold(self.state, [entry]) == []

    @property
    def estimate(self) -> Estimate:
        return estimate_of(self.task, [self.state])


@pytest.fixture
def log(task: RenewableTask, windows: dict[str, list[Arrays]]) -> Log:
    made = Log(task)
    for entry in first(task, windows):
        made.take((entry.key or b"").decode(), entry.value or b"")
    return made


def test_rounds_of_sums_sent_again_come_to_the_pooled_fit(
    task: RenewableTask, windows: dict[str, list[Arrays]], log: Log
) -> None:
    features = np.vstack([w.features for held in windows.values() for w in held])
    responses = np.concatenate([w.responses for held in windows.values() for w in held])
    pooled = oracle(features, responses, np.ones(len(responses)), q=1.0, ridge=RIDGE)
    before, seen = log.estimate, slots_seen([log.state])
    points = dict.fromkeys(windows, np.zeros(task.size))
    shares = []
    for number in range(ROUNDS):
        found = log.estimate
        model = round_model(100 + number, found.coefficients, found.weights, seen)
        for client, held in windows.items():
            point = task.point_again(held, points[client], model)
            assert point is not None
            moved = np.abs([point - points[client], model.coefficients - points[client]])
            shares.append(moved[0].sum() / max(moved[1].sum(), 1e-9))
            points[client] = point
            value = release_again(task, held, point, model, **named(client, WINDOWS + number))  # type: ignore[arg-type]
            log.take(client, value)
    after = log.estimate
    assert np.max(np.abs(before.coefficients - pooled)) > 0.02
    # the last point is on a lattice of 2^-12, and a Newton step from there leads on
    assert_allclose(after.coefficients, pooled, atol=2**-13)
    assert after.status == "ready"
    assert after.records == before.records == CLIENTS * WINDOWS * task.slots
    assert after.releases == CLIENTS * (WINDOWS + ROUNDS)
    # from bad first points whole steps of Newton's method lead away
    assert min(shares[:9]) < 0.9
    assert shares[-9:-6] == pytest.approx([1.0] * 3)
    # nothing new was seen: models do not grow older by it
    assert slots_seen([log.state]) == seen == after.records


def of(log: Log) -> ReplacingState:
    state = log.state.sums.states[0]
    assert isinstance(state, ReplacingState)
    return state


def test_what_was_replaced_leaves_no_trace_in_the_sums(
    task: RenewableTask, windows: dict[str, list[Arrays]], log: Log
) -> None:
    model = round_model(9, np.full(task.size, 0.2), (1.0, 1.0))
    alone = Log(task)
    for client, value in again(task, windows, model, WINDOWS):
        log.take(client, value)
    for client, value in again(task, windows, model, 0):
        alone.take(client, value)
    assert log.estimate.coefficients.tolist() == alone.estimate.coefficients.tolist()
    for name in ("curvature", "scores", "right", "records", "counts"):
        held, other = (state.total().part(name) for state in (of(log), of(alone)))
        assert held.tolist() == other.tolist()


def test_duplicates_late_and_overtaken_releases_count_once(
    task: RenewableTask, windows: dict[str, list[Arrays]]
) -> None:
    entries = [e for e in first(task, windows) if e.key == b"c0"]
    own = {"c0": windows["c0"]}
    model = round_model(9, np.full(task.size, 0.2), (1.0, 1.0))
    [(_, newer)] = again(task, own, model, WINDOWS)
    after = release_of(task, windows["c1"][0], model, **named("c0", WINDOWS + 1))  # type: ignore[arg-type]
    straight, late, overtaken = Log(task), Log(task), Log(task)
    values = [entry.value or b"" for entry in entries]
    for value in [*values, newer, after]:
        straight.take("c0", value)
    # number 5 comes after the sums that stand for it, twice
    for value in [*values[:5], *values[6:], newer, after, values[5], values[5], newer]:
        late.take("c0", value)
    assert late.state.head.duplicates == 2
    assert late.estimate.coefficients.tolist() == straight.estimate.coefficients.tolist()
    assert late.estimate.records == straight.estimate.records == (WINDOWS + 1) * task.slots
    # sums that come after newer releases would take these out: they are left out themselves
    for value in [*values, after, newer]:
        overtaken.take("c0", value)
    assert overtaken.estimate.records == (WINDOWS + 1) * task.slots
    assert overtaken.state.head.missing == 0


def test_states_are_stored_by_client_and_lost_ones_are_found_out(
    task: RenewableTask, log: Log
) -> None:
    fields = log.state.fields(everything=True)
    clients = log.state.client_fields(everything=True)
    read = Partition.decode(task, fields, clients)
    assert read.fields(everything=True) == fields
    log.state.stored()
    log.take("c9", release_of(task, Arrays(*simulate(np.random.default_rng(0), 50, 3)),
                              task.first_model, **named("c9", 0)))  # type: ignore[arg-type]  # fmt: skip
    assert len(log.state.fields(everything=False)) == 3  # the head, the count, and the new client
    whole = log.state.sums.states[0].encode()
    server = server_of(task)
    for lost in whole:
        with pytest.raises(StateError):
            server.read({name: data for name, data in whole.items() if name != lost})


def test_other_clients_stay_where_one_is_erased(
    task: RenewableTask, windows: dict[str, list[Arrays]], log: Log
) -> None:
    model = round_model(9, np.full(task.size, 0.2), (1.0, 1.0))
    for client, value in again(task, windows, model, WINDOWS):
        log.take(client, value)
    without = Partition.empty(task, frozenset({"c1"}))
    assert Reducer(task).fold(without, log.entries) == []
    alone = Log(task)
    for client, value in again(task, {c: windows[c] for c in ("c0", "c2")}, model, 0):
        alone.take(client, value)
    found = estimate_of(task, [without])
    assert found.coefficients.tolist() == alone.estimate.coefficients.tolist()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"private": True}, 'privacy.mechanism = "none"'),
        (
            {"private": False, "forgetting": 'of = "records", half_life = 1000'},
            "estimator.forgetting",
        ),
    ],
)
def test_studies_that_cannot_are_refused(settings: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=r"estimator\.method\.reexpand") as told:
        task_of(parse_study(study_text(method="reexpand = true", **settings)))  # type: ignore[arg-type]
    assert words in str(told.value)


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"private": False}, True),
        ({"private": False, "loss": "logistic"}, False),
        ({"private": True}, False),
        ({"private": False, "method": "reexpand = true"}, False),
    ],
)
def test_an_open_study_hears_of_sums_that_keep_early_curvatures(
    settings: dict[str, object], *, told: bool
) -> None:
    task = task_of(parse_study(study_text(**settings)))  # type: ignore[arg-type]
    words = " ".join(method_of(task.study).warnings(task))
    assert ("early models" in words) == told
