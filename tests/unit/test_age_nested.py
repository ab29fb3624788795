"""Composition: nested epsilons hold against brute force where sums of them do not."""

import itertools

import numpy as np
import pytest

from pipeline.methods.age_aware.client import bounded_rounds, repeated_epsilon
from pipeline.methods.age_aware.markov import Chain, deltas, forward
from pipeline.methods.age_aware.schedule import present_epsilon
from tests.nested import Upload, nested_epsilon, table, worst_epsilon

TWO = np.array([0.0, 1.0])
AGES = np.arange(12)


def brute(chain: Chain, law: np.ndarray, uploads: list[Upload], slot: int) -> float:
    """Return the exact largest log ratio of binary releases about the state in one slot."""
    last = max(slot, *(upload.slot for upload in uploads))
    at = {upload.slot: upload.epsilon for upload in uploads}
    chances: dict[tuple[int, ...], np.ndarray] = {}
    for path in itertools.product(range(2), repeat=last + 1):
        chance = law[path[0]] * np.prod(
            [chain.matrix[a, b] for a, b in itertools.pairwise(path)], initial=1.0
        )
        for seen in itertools.product(range(2), repeat=len(at)):
            each = chance
            for (when, epsilon), value in zip(at.items(), seen, strict=True):
                truth = np.exp(epsilon) / (1 + np.exp(epsilon))
                each *= truth if path[when] == value else 1 - truth
            chances.setdefault(seen, np.zeros(2))[path[slot]] += each
    table_of = np.array(list(chances.values()))
    return float(np.abs(np.diff(np.log(table_of / table_of.sum(axis=0)), axis=1)).max())


def mixings(chain: Chain):
    return table(deltas(chain, AGES, "prior-free")), table(forward(chain, AGES))


def test_the_sum_of_present_epsilons_is_too_small_and_the_nested_rule_is_not():
    chain = Chain(TWO, np.array([[0.434, 0.566], [0.0104, 0.9896]]))
    uploads = [Upload(0, 1.69), Upload(1, 1.81)]
    law = chain.stationary
    exact = brute(chain, law, uploads, 2)
    np.testing.assert_allclose(exact, 1.921, atol=5e-4)
    alone = deltas(chain, np.array([2, 1]), "stationary")
    total = present_epsilon(np.array([1.69, 1.81]), alone).sum()
    np.testing.assert_allclose(total, 1.736, atol=5e-4)
    steady = table(deltas(chain, AGES, "stationary"))
    assert nested_epsilon(uploads, 2, steady, table(forward(chain, AGES))) >= exact - 1e-9


def test_nested_epsilons_are_never_below_brute_force_at_any_time():
    rng = np.random.default_rng(9)
    closest = 0.0
    for _ in range(60):
        chain, law = Chain(TWO, rng.dirichlet(np.ones(2), size=2)), rng.dirichlet(np.ones(2))
        slots = sorted(rng.choice(5, size=2, replace=False).tolist())
        uploads = [Upload(slot, float(rng.uniform(0.1, 2))) for slot in slots]
        for slot in range(6):
            exact = brute(chain, law, uploads, slot)
            bound = nested_epsilon(uploads, slot, *mixings(chain))
            assert exact <= bound + 1e-9
            closest = max(closest, exact / bound)
    assert closest > 0.8


def test_the_worst_slot_is_among_those_of_the_releases():
    chain = Chain(TWO, np.array([[0.8, 0.2], [0.3, 0.7]]))
    uploads = [Upload(2, 0.5), Upload(5, 0.7), Upload(9, 0.2)]
    wide = max(nested_epsilon(uploads, slot, *mixings(chain)) for slot in range(30))
    np.testing.assert_allclose(worst_epsilon(uploads, *mixings(chain)), wide, rtol=1e-12)


def test_one_release_is_proposition_1_and_two_in_a_slot_add_up():
    chain = Chain(TWO, np.array([[0.8, 0.2], [0.3, 0.7]]))
    back, ahead = mixings(chain)
    alone = nested_epsilon([Upload(0, 1.0)], 3, back, ahead)
    np.testing.assert_allclose(alone, present_epsilon(np.array(1.0), np.array(back(3))))
    both = nested_epsilon([Upload(4, 1.0), Upload(4, 0.5)], 4, back, ahead)
    np.testing.assert_allclose(both, 1.5)


def test_equal_rounds_stay_bounded_only_while_the_mixing_beats_the_noise():
    delta, epsilon = 0.3, 1.0
    backward = table(np.array([1.0, delta]))
    rounds = [Upload(number, epsilon) for number in range(200)]
    found = nested_epsilon(rounds, 199, backward, backward)
    np.testing.assert_allclose(found, bounded_rounds(delta, epsilon), rtol=1e-9)
    assert bounded_rounds(0.5, 1.0) == float("inf")


@pytest.mark.parametrize("count", [1, 63, 64, 65, pytest.param(10_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("back", "ahead"), [(1.0, 0.3), (0.3, 1.0), (0.3, 0.3), (1.0, 1.0)])
def test_many_equal_rounds_cost_no_less_than_the_worst_slot(count, back, ahead):
    backward, forwards = np.array([1.0, 1.0, back]), np.array([1.0, 1.0, ahead])
    found = repeated_epsilon(count, 0.5, backward, forwards)
    # releases every second slot: Delta of older values must be that of the rounds between
    uploads = [Upload(2 * number, 0.5) for number in range(min(count, 200))]
    worst = worst_epsilon(uploads, table(backward), table(forwards))
    assert found >= worst - 1e-9
    if count <= 63:
        np.testing.assert_allclose(found, worst, rtol=1e-9)
    if max(back, ahead) < 1:
        np.testing.assert_allclose(found, worst, rtol=1e-6)
