"""Delta(t), and the two epsilons: numbers of the paper, brute force, and what must always hold."""

import itertools

import numpy as np
import pytest

from pipeline.errors import ConfigError, PrivacyError
from pipeline.methods.age_aware.markov import (
    Chain,
    birth_death,
    constant,
    cyclic,
    deltas,
    forward,
    known_law,
    odds,
)
from pipeline.methods.age_aware.schedule import classical_epsilon, present_epsilon, sensitivity

STATES = np.array([0.0, 60.0, 120.0, 180.0])
AGES = np.arange(20)
KINDS = ("prior-free", "stationary", "spectral")


def random_chain(rng: np.random.Generator, size: int, sparse: bool = False) -> Chain:
    matrix = rng.dirichlet(np.full(size, 0.7), size=size)
    if sparse:
        matrix[rng.random((size, size)) < 0.3] = 0.0
        matrix[matrix.sum(axis=1) == 0] = 1.0
        matrix /= matrix.sum(axis=1, keepdims=True)
    return Chain(np.arange(size, dtype=float), matrix)


@pytest.mark.parametrize(("q", "rate"), [(0.1, 0.9055), (0.3, 0.7616), (0.4, 0.7211)])
def test_the_cyclic_chain_of_the_paper_mixes_at_its_rate(q, rate):
    found = deltas(cyclic(STATES, q), np.array([10, 11]), "spectral")
    np.testing.assert_allclose(found[1] / found[0], rate, atol=5e-5)


@pytest.mark.parametrize(("q", "printed"), [(0.1, 2.3), (0.3, 10.8), (0.4, 13.5)])
def test_old_reports_of_the_paper_have_hardly_any_noise(q, printed):
    delta = deltas(cyclic(STATES, q), np.array([50]), "spectral")
    found = classical_epsilon(0.1, delta, cap=100.0).classical[0]
    np.testing.assert_allclose(found, printed, atol=0.05)


@pytest.mark.parametrize("kind", KINDS)
def test_delta_is_one_at_age_zero_and_never_rises(kind):
    rng = np.random.default_rng(5)
    for _ in range(40):
        found = deltas(random_chain(rng, 4), AGES, kind)
        assert found[0] == 1.0
        assert (np.diff(found) <= 1e-12).all()
        assert ((found >= 0) & (found <= 1)).all()


def test_kinds_are_ordered_as_what_they_protect_against():
    rng = np.random.default_rng(6)
    for number in range(60):
        chain, law = random_chain(rng, 3, sparse=number % 3 == 0), rng.dirichlet(np.ones(3))
        free = deltas(chain, AGES, "prior-free")
        assert (known_law(chain, AGES, law) <= free * (1 + 1e-9) + 1e-12).all()
        try:
            chain.stationary  # noqa: B018
        except ConfigError:
            continue
        if chain.stationary.min() > 0:
            known = deltas(chain, AGES, "stationary")
            assert (known <= free * (1 + 1e-9) + 1e-12).all()
            assert (known <= deltas(chain, AGES, "spectral") * (1 + 1e-9) + 1e-12).all()


def test_prior_free_is_what_the_worst_law_reaches():
    rng = np.random.default_rng(7)
    chain, ages = random_chain(rng, 3), np.array([1, 2, 4])
    free = deltas(chain, ages, "prior-free")
    worst = np.zeros(3)
    for one, other in itertools.combinations(range(3), 2):
        for share in np.linspace(0.001, 0.999, 999):
            law = np.zeros(3)
            law[one], law[other] = share, 1 - share
            worst = np.maximum(worst, known_law(chain, ages, law))
    assert (worst <= free * (1 + 1e-9) + 1e-12).all()
    np.testing.assert_allclose(worst, free, rtol=1e-3)


def test_prior_free_gives_nothing_while_a_step_is_impossible():
    found = deltas(cyclic(STATES, 0.3), np.array([1, 2, 3]), "prior-free")
    assert found[:2].tolist() == [1.0, 1.0]
    assert found[2] < 1.0


def test_chains_that_mix_at_once_and_never():
    at_once = Chain(STATES, np.tile([0.1, 0.2, 0.3, 0.4], (4, 1)))
    np.testing.assert_allclose(deltas(at_once, np.array([0, 1]), "prior-free"), [1, 0], atol=1e-11)
    never = Chain(STATES, np.eye(4))
    assert deltas(never, AGES, "prior-free").tolist() == [1.0] * 20


def test_a_law_that_knows_the_value_asks_for_no_noise_and_is_refused():
    with pytest.raises(PrivacyError, match="prior-free"):
        known_law(cyclic(STATES, 0.3), AGES, np.array([1.0, 0, 0, 0]))


def test_epsilons_invert_each_other_at_all_sizes():
    delta = np.array([1.0, 0.5, 0.01, 1e-6])
    for present in (1e-6, 0.1, 1.0, 5.0):
        found = classical_epsilon(present, delta, cap=1e3)
        assert not found.capped.any()
        np.testing.assert_allclose(present_epsilon(found.classical, delta), present, rtol=1e-9)
    assert np.isfinite(present_epsilon(np.array(800.0), np.array(0.5)))


def test_the_cap_decides_where_age_would_allow_everything():
    found = classical_epsilon(0.1, np.array([1.0, 1e-12, 0.0]), cap=2.0)
    np.testing.assert_allclose(found.classical, [0.1, 2.0, 2.0])
    assert found.capped.tolist() == [False, True, True]


def test_proposition_1_holds_for_every_binary_release_by_brute_force():
    rng = np.random.default_rng(8)
    closest = 0.0
    for _ in range(200):
        chain, age, epsilon = random_chain(rng, 2), int(rng.integers(1, 4)), rng.uniform(0.1, 3)
        law = rng.dirichlet(np.ones(2))
        kernel = chain.powers(np.array([age]))[0]
        joint = law[:, None] * kernel
        back = (joint / joint.sum(axis=0)).T
        # randomised response: the release whose law depends most on the value
        truth = np.exp(epsilon) / (1 + np.exp(epsilon))
        release = np.array([[truth, 1 - truth], [1 - truth, truth]])
        seen = back @ release
        exact = np.abs(np.log(seen[0] / seen[1])).max()
        delta = known_law(chain, np.array([age]), law)
        bound = present_epsilon(np.array(epsilon), delta)[0]
        assert exact <= bound + 1e-9
        closest = max(closest, exact / bound)
    assert closest > 0.9


def test_constant_mixing_is_a_promise_of_a_rate():
    np.testing.assert_allclose(constant(0.25, np.array([0, 1, 2])), [1, 0.75, 0.5625], rtol=1e-8)
    assert constant(0.0, AGES).tolist() == [1.0] * 20


@pytest.mark.parametrize("rate", [0.1, 0.4, 0.8])
def test_what_constant_mixing_promises_is_enough_and_to_forget_a_share_is_not(rate):
    rng, most, ages = np.random.default_rng(4), odds(rate), np.array([1, 2, 10])
    bound = constant(rate, ages)
    for size in (2, 3, 5, 20):
        # entries differ by a root of what is promised, and so do the sums of rows
        rows = np.exp(rng.choice([0.0, np.log(most) / 2], size=(size, size)))
        chain = Chain(np.arange(float(size)), rows / rows.sum(axis=1, keepdims=True))
        assert (deltas(chain, ages) <= bound + 1e-9).all()
        assert (forward(chain, ages) <= bound + 1e-9).all()
    two = np.array([[1 - rate / 2, rate / 2], [rate / 2, 1 - rate / 2]])
    np.testing.assert_allclose(deltas(Chain(np.arange(2.0), two), ages), bound, atol=2e-9)
    redrawn = (1 - rate) * np.eye(181) + rate / 181
    assert (deltas(Chain(np.arange(181.0), redrawn), ages) > bound).all()


def test_a_value_redrawn_with_probability_a_tenth_has_nearly_all_left_after_ten_slots():
    redrawn = Chain(np.arange(181.0), 0.9 * np.eye(181) + 0.1 / 181)
    np.testing.assert_allclose(deltas(redrawn, np.array([10])), 0.98, atol=5e-3)
    np.testing.assert_allclose(constant(0.1, np.array([10])), 0.35, atol=5e-3)


def test_forward_needs_no_law():
    chain = birth_death(STATES, 0.5)
    found = forward(chain, AGES)
    assert found[0] == 1.0
    assert (np.diff(found) <= 1e-12).all()


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: Chain(STATES, np.full((4, 4), 0.3)),
        lambda: Chain(STATES, np.eye(3)),
        lambda: Chain(STATES, np.eye(4) * 2 - 0.25),
        lambda: Chain(np.array([1.0, np.nan]), np.eye(2)),
        lambda: cyclic(STATES, 1.5),
        lambda: deltas(cyclic(STATES, 0.1), np.array([-1])),
        lambda: deltas(Chain(STATES, np.eye(4)), AGES, "stationary"),
        lambda: constant(1.0, AGES),
        lambda: constant(0.5, np.array([-1])),
        lambda: classical_epsilon(0.0, np.ones(1), 1.0),
        lambda: classical_epsilon(np.inf, np.ones(1), np.inf),
        lambda: classical_epsilon(0.5, np.ones(1), np.inf),
        lambda: classical_epsilon(2.0, np.ones(1), 1.0),
        lambda: classical_epsilon(0.5, np.array([1.5]), 1.0),
    ],
)
def test_numbers_out_of_range_are_refused(wrong):
    with pytest.raises(ConfigError):
        wrong()


def test_the_sensitivity_of_a_mean_comes_from_the_declared_range():
    assert sensitivity(0.0, 180.0, 100) == 1.8
