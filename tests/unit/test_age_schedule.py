"""Schedules: equal to exhaustive search, bounds that hold, the loss that a simulation finds."""

import itertools

import numpy as np
import pytest
from scipy.optimize import linear_sum_assignment

from pipeline.errors import ConfigError
from pipeline.methods.age_aware.assignment import Schedule, schedule
from pipeline.methods.age_aware.chains import cyclic
from pipeline.methods.age_aware.merging import WHOLE, Limit, Merged, bracket
from pipeline.methods.age_aware.mixing import deltas
from pipeline.methods.age_aware.objective import Costs, Reporter, costs, loss
from pipeline.methods.age_aware.schemes import Round, compare
from pipeline.methods.age_aware.warm import Warm

STATES = np.array([0.0, 60.0, 120.0, 180.0])


def random_round(rng: np.random.Generator, clients: int, slots: int, **given) -> Round:
    chains = {q: cyclic(STATES, q) for q in (0.1, 0.3, 0.4)}
    ages = np.arange(slots)
    picks = rng.choice(list(chains), size=clients)
    reporters = [Reporter(chains[q], rng.dirichlet(np.ones(4)), 100, 1 / clients) for q in picks]
    known = {q: deltas(chain, ages, "spectral") for q, chain in chains.items()}
    found = np.array([known[q] for q in picks])
    given = {"epsilon": 0.1, "cap": 50.0, "start": "collection"} | given
    return Round(reporters, ages, found, np.full(clients, 1.8), **given)


def adversarial(rng: np.random.Generator, clients: int, slots: int) -> Costs:
    """Costs of nothing much and drifts that can cancel: what makes the problem hard."""
    cost = rng.exponential(size=(clients, slots)) * rng.choice([1e-3, 1.0])
    drift = rng.choice([-1.0, 1.0], size=(clients, slots)) * rng.uniform(0, 2, (clients, slots))
    cost[rng.random(cost.shape) < 0.1] = np.inf
    return Costs(cost, drift)


def exhaustive(table: Costs) -> float:
    clients, slots = table.cost.shape
    orders = np.array(list(itertools.permutations(range(slots), clients)))
    rows = np.arange(clients)
    with np.errstate(invalid="ignore"):
        found = table.cost[rows, orders].sum(1) + table.drift[rows, orders].sum(1) ** 2
    return float(found.min())


@pytest.mark.parametrize("kind", ["chains", "adversarial"])
def test_branch_and_bound_finds_what_exhaustive_search_finds(kind):
    rng = np.random.default_rng(10)
    for _ in range(200):
        clients = int(rng.integers(1, 6))
        slots = int(rng.integers(clients, 8))
        if kind == "chains":
            given = random_round(rng, clients, slots)
            table = given.costs(given.scales())
        else:
            table = adversarial(rng, clients, slots)
        best = exhaustive(table)
        if not np.isfinite(best):
            continue
        quick = schedule(table, node_limit=0)
        assert quick.lower_bound <= best * (1 + 1e-9)
        assert quick.value >= best * (1 - 1e-9)
        found = schedule(table, node_limit=100_000)
        np.testing.assert_allclose(found.value, best, rtol=1e-9, atol=1e-15)
        np.testing.assert_allclose(loss(table, found.slots), found.value)
        assert len(set(found.slots.tolist())) == clients


def test_without_drift_one_assignment_is_the_best_schedule():
    rng = np.random.default_rng(11)
    given = random_round(rng, 40, 60)
    table = costs(given.reporters, given.ages, given.scales(), estimator="debiased")
    found = schedule(table)
    assert found.gap == 0.0
    assert found.assignments == 1


def test_a_schedule_beats_random_ones_and_does_not_depend_on_the_order_of_clients():
    rng = np.random.default_rng(12)
    given = random_round(rng, 25, 40)
    table = given.costs(given.scales())
    found = schedule(table)
    assert found.lower_bound <= found.value
    for _ in range(200):
        assert found.value <= loss(table, rng.permutation(40)[:25])
    order = rng.permutation(25)
    again = schedule(Costs(table.cost[order], table.drift[order]))
    np.testing.assert_allclose(again.lower_bound, found.lower_bound, rtol=1e-6)


def test_a_stopped_search_keeps_a_bound_that_holds():
    rng = np.random.default_rng(13)
    for _ in range(30):
        table = adversarial(rng, 4, 6)
        best = exhaustive(table)
        if np.isfinite(best):
            stopped = schedule(table, node_limit=1)
            assert stopped.lower_bound <= best * (1 + 1e-9) <= stopped.value * (1 + 2e-9)


@pytest.mark.parametrize("start", ["collection", "round", "stationary"])
@pytest.mark.parametrize("estimator", ["plain", "debiased", "wiener", "model"])
def test_the_expected_loss_is_what_a_simulation_finds(start, estimator):
    rng = np.random.default_rng(14)
    clients, slots, records, runs = 3, 5, 4, 20_000
    given = random_round(rng, clients, slots, start=start, epsilon=2.0)
    reporters = [Reporter(r.chain, r.law, records, r.weight) for r in given.reporters]
    scales = given.scales() * 3
    table = costs(reporters, given.ages, scales, start=start, estimator=estimator)
    picked = rng.permutation(slots)[:clients]
    error = np.zeros(runs)
    for reporter, slot, scale in zip(reporters, picked, scales[np.arange(3), picked], strict=True):
        age = int(given.ages[slot])
        law = {
            "collection": reporter.law,
            "round": reporter.law @ np.linalg.matrix_power(reporter.chain.matrix, slots - 1 - age),
            "stationary": reporter.chain.stationary,
        }[start]
        kernel = np.linalg.matrix_power(reporter.chain.matrix, age)
        then = rng.choice(4, size=(runs, records), p=law / law.sum())
        now = (rng.random((runs, records, 1)) > kernel[then].cumsum(axis=2)).sum(axis=2).clip(0, 3)
        upload = STATES[then].mean(1) + rng.laplace(0, scale, runs)
        a, b = law @ STATES, law @ kernel @ STATES
        va = law @ STATES**2 - a * a
        cov = (law * STATES) @ kernel @ STATES - a * b
        gain = (cov / records) / (va / records + 2 * scale**2)
        heard = {
            "plain": upload,
            "debiased": upload + b - a,
            "wiener": b + gain * (upload - a),
            "model": np.full(runs, b),
        }[estimator]
        error += reporter.weight * (heard - STATES[now].mean(1))
    squares = error**2
    np.testing.assert_allclose(
        loss(table, picked), squares.mean(), atol=4 * squares.std() / np.sqrt(runs)
    )


def test_better_use_of_the_model_is_never_worse():
    rng = np.random.default_rng(15)
    given = random_round(rng, 6, 10)
    tables = {
        name: costs(given.reporters, given.ages, given.scales(), start="collection", estimator=name)
        for name in ("debiased", "wiener", "model")
    }
    assert (tables["wiener"].cost <= tables["debiased"].cost * (1 + 1e-12)).all()
    assert (tables["wiener"].cost <= tables["model"].cost * (1 + 1e-12)).all()


def test_the_six_schemes_stand_in_the_order_that_optimality_asks_for():
    rng = np.random.default_rng(17)
    for epsilon in (0.03, 0.1, 0.4):
        found = compare(random_round(rng, 3, 20, epsilon=epsilon), rng, draws=100)
        assert found.best.gap <= 1e-6
        assert found.best_adaptive == min(found[:6])
        assert found.random_adaptive <= found.random_constant
        assert found.bound_adaptive <= found.random_adaptive


def test_the_best_slots_at_common_noise_are_the_freshest():
    # all need the noise of the freshest: 2 (1.8 / 0.1)^2 / 3 = 216, and what ages 0, 1, 2 cost
    rng = np.random.default_rng(18)
    given = random_round(rng, 3, 20)
    found = compare(given, rng, draws=1)
    silent = schedule(given.costs(np.zeros((3, 20))))
    np.testing.assert_allclose(found.best_constant, 216 + silent.value, rtol=1e-9)
    assert sorted(given.ages[silent.slots].tolist())[0] == 0


@pytest.mark.parametrize(
    ("cost", "drift", "says"),
    [
        (np.ones((3, 2)), np.zeros((3, 2)), "3 clients have 2 slots"),
        (np.ones((0, 2)), np.zeros((0, 2)), "no client"),
        (np.full((1, 2), np.nan), np.zeros((1, 2)), "numbers"),
        (np.full((1, 2), np.inf), np.zeros((1, 2)), "allow more"),
        (np.array([[1, np.inf], [1, np.inf]]), np.zeros((2, 2)), "allow more"),
        (np.ones((1, 2)), np.zeros((2, 2)), "same shape"),
        (np.array([[1.0, -0.5]]), np.zeros((1, 2)), "0 or more"),
        (np.array([[1.0, -np.inf]]), np.zeros((1, 2)), "0 or more"),
        (np.ones((1, 2)), np.array([[0.0, np.inf]]), "finite"),
    ],
)
def test_tables_without_a_schedule_are_refused(cost, drift, says):
    with pytest.raises(ConfigError, match=says):
        schedule(Costs(cost, drift))


def test_laws_and_scales_that_do_not_fit_are_refused():
    chain, law = cyclic(STATES, 0.1), np.full(4, 0.25)
    with pytest.raises(ConfigError, match="law"):
        costs([Reporter(chain, law * 2, 1, 1.0)], np.arange(3), np.ones((1, 3)))
    with pytest.raises(ConfigError, match="scales"):
        costs([Reporter(chain, law, 1, 1.0)], np.arange(3), np.ones((1, 2)))


@pytest.mark.parametrize("closed", [0.0, 0.2])
def test_columns_that_are_alike_are_taken_together_and_the_bound_holds(closed):
    rng = np.random.default_rng(19)
    given = random_round(rng, 70, 150, start="round")
    table = given.costs(given.scales())
    shut = rng.random(150) < closed
    table.cost[np.ix_(rng.random(70) < 0.5, shut)] = np.inf
    merged, alone = Merged(table, 1e-2), Merged(table)
    assert len(merged.alike) > 10
    assert not shut[merged.alike].any()
    assert len(alone.alike) == 0
    for theta in (-0.01, 0.0, 0.003):
        least, exact = merged.best(theta, WHOLE), alone.best(theta, WHOLE)
        assert least.at(theta) <= exact.at(theta) * (1 + 1e-12)
        assert least.at(theta) >= exact.at(theta) * (1 - 1e-2)
    found = schedule(table, node_limit=10)
    assert len(set(found.slots.tolist())) == 70
    assert np.isfinite(loss(table, found.slots))
    assert found.lower_bound <= found.value
    # the best of all prices is no worse a bound than one of them
    assert found.lower_bound >= exact.at(0.003) * (1 - 1e-9)


def closed_among_alike(clients: int, slots: int, alike: int, few: int, room: int) -> Costs:
    """Costs whose first columns are alike, of which a few clients may have but some."""
    rng = np.random.default_rng(21)
    cost, drift = np.ones((clients, slots)), np.full((clients, slots), 0.01)
    cost[:, alike:] = rng.uniform(1, 3, (clients, slots - alike))
    drift[:, alike:] = rng.normal(0, 0.1, (clients, slots - alike))
    cost[:few, room:] = np.inf
    return Costs(cost, drift)


def test_clients_that_may_have_some_of_the_columns_that_are_alike_have_their_places():
    table = closed_among_alike(70, 100, alike=60, few=12, room=8)
    table.cost[:12, 60:66] = 50.0
    found = schedule(table, node_limit=10)
    assert len(set(found.slots.tolist())) == 70
    assert found.value == pytest.approx(loss(table, found.slots))
    assert found.lower_bound <= found.value < np.inf
    # four of the twelve find no room in the eight
    assert found.lower_bound > 200


def test_clients_that_find_no_room_in_columns_that_are_alike_are_refused():
    with pytest.raises(ConfigError, match="allow more"):
        schedule(closed_among_alike(70, 100, alike=60, few=12, room=11))


def test_alike_columns_with_closed_cells_give_what_exhaustive_search_finds(monkeypatch):
    monkeypatch.setattr("pipeline.methods.age_aware.assignment.FEW", 1)
    rng, seen = np.random.default_rng(22), set()
    for _ in range(150):
        clients = int(rng.integers(2, 5))
        slots = int(rng.integers(clients, 8))
        cost, drift = rng.uniform(1, 3, (clients, slots)), rng.normal(0, 0.1, (clients, slots))
        same = int(rng.integers(2, slots + 1))
        cost[:, :same], drift[:, :same] = cost[:, [0]], drift[:, [0]]
        cost[np.ix_(rng.random(clients) < 0.5, rng.random(slots) < 0.5)] = np.inf
        table = Costs(cost, drift)
        best = exhaustive(table)
        seen.add((np.isfinite(best), len(Merged(table, 1e-8).alike) > 1))
        if not np.isfinite(best):
            with pytest.raises(ConfigError, match="allow more"):
                schedule(table)
            continue
        found = schedule(table)
        assert found.lower_bound <= best * (1 + 1e-9)
        assert best * (1 - 1e-9) <= found.value <= best * (1 + 1e-6)
        assert loss(table, found.slots) == pytest.approx(found.value)
    assert len(seen) == 4


@pytest.mark.parametrize("few", [60, 1])
def test_slots_of_several_places_give_what_exhaustive_search_finds(monkeypatch, few):
    monkeypatch.setattr("pipeline.methods.age_aware.assignment.FEW", few)
    rng, tried = np.random.default_rng(26), 0
    for _ in range(100):
        clients, places = int(rng.integers(2, 5)), int(rng.integers(2, 4))
        slots = int(rng.integers(max(1, -(-clients // places)), 8 // places + 1))
        cost, drift = (
            rng.uniform(0, 3, (clients, slots)).round(),
            rng.normal(0, 1, (clients, slots)),
        )
        cost[rng.random(cost.shape) < 0.2] = np.inf
        table = Costs(np.repeat(cost, places, axis=1), np.repeat(drift, places, axis=1))
        best = exhaustive(table)
        if np.isfinite(best):
            tried += 1
            found = schedule(table)
            assert found.lower_bound <= best * (1 + 1e-9) + 1e-12
            assert best * (1 - 1e-9) - 1e-12 <= found.value <= best * (1 + 1e-6) + 1e-12
    assert tried > 50


def test_a_loss_that_is_no_number_is_not_called_the_best():
    assert Schedule(np.array([0]), np.inf, 0.0).gap == np.inf


def test_the_two_sides_of_a_part_keep_to_their_drifts_and_leave_nothing_out():
    rng = np.random.default_rng(20)
    given = random_round(rng, 70, 150, start="round")
    table = given.costs(given.scales())
    merged = Merged(table, 1e-3)
    whole = bracket(merged, 0.0, WHOLE)
    sides = merged.divide(whole.low, whole.high)
    ends = np.sort([merged.drifts(cut.slots, 0.0) for cut in (whole.low, whole.high)], axis=0)
    cuts = [merged.best(0.0, side, fine=1e9) for side in sides]
    for cut, [limit], end in zip(cuts, sides, ends, strict=True):
        assert not limit.leaves_out(end[[limit.client]]).any()
        assert not limit.leaves_out(merged.drifts(cut.slots, 0.0)[[limit.client]]).any()
        assert cut.at(0.0) >= merged.best(0.0).at(0.0) * (1 - 1e-12)
    # what is best of all is on one of the sides
    assert min(cut.at(0.0) for cut in cuts) == pytest.approx(merged.best(0.0).at(0.0), rel=1e-12)


def test_a_client_that_may_not_share_pays_the_fine_or_has_a_column_of_its_own():
    rng = np.random.default_rng(23)
    table = Costs(np.ones((70, 100)), np.full((70, 100), 0.01))
    table.drift[:, 90:] = rng.uniform(0.1, 0.2, (70, 10))
    table.cost[:, 90:] = 5.0
    merged = Merged(table, 1e-3)
    part = tuple(Limit(client, 0.05, True) for client in range(12))
    cut = merged.best(0.0, part, fine=100.0)
    # ten of the twelve have the ten columns apart, two pay
    assert (cut.slots[:12] < len(merged.apart)).sum() == 10
    assert cut.cost == pytest.approx(10 * 5 + 58 + 2 * 101)


@pytest.mark.parametrize("turned", [False, True])
# a table of which every other row and column holds no assignment, as well
@pytest.mark.parametrize("closed", [0.2, 0.95])
def test_assignments_begun_from_others_are_as_good_as_those_begun_anew(turned, closed):
    rng = np.random.default_rng(24)
    cost, drift = rng.uniform(1, 2, (120, 120)), rng.normal(0, 1, (120, 120))
    shut = rng.random(cost.shape) < closed
    cost[shut & ~np.eye(120, k=1, dtype=bool) & ~np.eye(120, k=-119, dtype=bool)] = np.inf
    warm = Warm(turned)
    for price in (0.0, 0.3, 0.1, 0.1, -0.2, 0.05, 1e6):
        priced = cost + price * drift
        found = priced[warm.solve(priced, price)].sum()
        assert found == pytest.approx(priced[linear_sum_assignment(priced)].sum(), rel=1e-12)
    if turned:
        return
    # what columns are worth is such that no row would change to another
    worth = warm._worths[0]
    priced = cost - 0.2 * drift
    columns = linear_sum_assignment(priced)[1]
    reduced = priced - worth
    own = reduced[np.arange(120), columns]
    assert (reduced.min(axis=1) >= own - 1e-9).all()
    with pytest.raises(ValueError, match="infeasible"):
        warm.solve(np.where(np.arange(120) < 60, np.inf, priced), 0.0)


@pytest.mark.parametrize("slots", [110, 150, 400])
def test_clients_in_more_slots_that_are_all_apart_have_the_best_of_them(slots):
    rng = np.random.default_rng(25)
    cost = rng.uniform(1, 2, (110, slots))
    cost[rng.random(cost.shape) < 0.2] = np.inf
    table = Costs(cost, np.zeros_like(cost))
    assert len(Merged(table).alike) == 0
    least = cost[linear_sum_assignment(cost)].sum()
    assert Merged(table).best(0.0).cost == pytest.approx(least, rel=1e-12)
    assert schedule(table).value == pytest.approx(least, rel=1e-12)
