"""The expected loss of a schedule: what a simulation finds, and the paper's schemes by it."""

import numpy as np
import pytest

from benchmarks.papers.age_schemes import Reporter, Round, best_slots, compare, costs, loss
from pipeline.errors import ConfigError
from pipeline.methods.age_aware.markov import cyclic, deltas

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
        assert found.best_adaptive == min(found[:6])
        assert found.random_adaptive <= found.random_constant
        assert found.bound_adaptive <= found.random_adaptive


def test_the_best_slots_at_common_noise_are_the_freshest():
    # all need the noise of the freshest: 2 (1.8 / 0.1)^2 / 3 = 216, and what ages 0, 1, 2 cost
    rng = np.random.default_rng(18)
    given = random_round(rng, 3, 20)
    found = compare(given, rng, draws=1)
    silent = given.costs(np.zeros((3, 20)))
    slots = best_slots(silent)
    np.testing.assert_allclose(found.best_constant, 216 + loss(silent, slots), rtol=1e-9)
    assert min(given.ages[slots]) == 0


def test_laws_and_scales_that_do_not_fit_are_refused():
    chain, law = cyclic(STATES, 0.1), np.full(4, 0.25)
    with pytest.raises(ConfigError, match="law"):
        costs([Reporter(chain, law * 2, 1, 1.0)], np.arange(3), np.ones((1, 3)))
    with pytest.raises(ConfigError, match="scales"):
        costs([Reporter(chain, law, 1, 1.0)], np.arange(3), np.ones((1, 2)))
