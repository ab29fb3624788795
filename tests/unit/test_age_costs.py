"""What releases of some age cost, by cards, chains and schedules, beside brute force."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from benchmarks.papers import age
from benchmarks.papers.cells import judged
from pipeline.errors import ConfigError, DataError, PrivacyError
from pipeline.methods import method_of
from pipeline.methods.age_aware import card
from pipeline.methods.age_aware.client import bounded_rounds, repeated_epsilon
from pipeline.methods.age_aware.markov import (
    Chain,
    Start,
    birth_death,
    constant,
    cyclic,
    deltas,
    forward,
    known_law,
    laws,
    moments,
    odds,
    safe_deltas,
)
from pipeline.methods.age_aware.schedule import (
    classical_epsilon,
    expected_loss,
    present_epsilon,
    sensitivity,
)
from pipeline.privacy.randomness import SecureStream
from tests import ages
from tests.nested import Upload, nested_epsilon, table, worst_epsilon

STATES = np.array([0.0, 60.0, 120.0, 180.0])
SLOTS = 24
NUMBERS = np.arange(SLOTS + 1)


def test_delta_with_an_error_holds_for_every_chain_that_is_so_near() -> None:
    rng, tight = np.random.default_rng(8), []
    for _ in range(100):
        size, error = int(rng.integers(2, 5)), float(rng.uniform(0, 0.06))
        states = np.arange(size, dtype=float)
        told = Chain(states, rng.dirichlet(np.full(size, 4.0), size=size))
        true = np.array([_at_distance(row, error, rng) for row in told.matrix])
        back, ahead = safe_deltas(told, SLOTS, error)
        real = Chain(states, true)
        assert (back >= deltas(real, NUMBERS) - 1e-9).all()
        assert (ahead >= forward(real, NUMBERS) - 1e-9).all()
        tight.append(float(back[1] - deltas(real, NUMBERS)[1]))
    # a bound of 1 for everything would hold as well
    assert np.median(tight) < 0.3


def test_without_an_error_it_is_the_card_s_own() -> None:
    chain = Chain(STATES, np.random.default_rng(1).dirichlet(np.full(4, 3.0), size=4))
    back, ahead = safe_deltas(chain, SLOTS, 0.0)
    assert (back <= deltas(chain, NUMBERS)).all()
    np.testing.assert_allclose(back[:3], deltas(chain, NUMBERS)[:3], rtol=1e-12)
    np.testing.assert_allclose(ahead, forward(chain, NUMBERS), rtol=1e-8, atol=1e-11)


@pytest.mark.parametrize("epsilon", [0.5, 2.0])
def test_rows_are_as_near_to_the_truth_as_the_card_says(epsilon: float) -> None:
    rng, stream, worst = np.random.default_rng(4), SecureStream(), []
    matrix = rng.dirichlet(np.full(4, 5.0), size=4)
    pool = [_history(matrix, 2000, 24, rng) for _ in range(3)]
    for _ in range(25):
        found = card.estimate(pool, STATES, 2000, epsilon, stream)
        off = np.abs(found.matrix - matrix).sum(axis=1).max() / 2
        np.testing.assert_allclose(found.matrix.sum(axis=1), 1, atol=1e-9)
        assert off <= found.error
        worst.append(off / found.error)
    # and by no more than the rare worst case needs: noise of nine tenths of all draws is a quarter
    assert np.median(worst) > 0.05


def test_one_record_s_history_moves_the_counts_by_two_for_each_step_at_most() -> None:
    rng = np.random.default_rng(2)
    for _ in range(50):
        values = STATES[rng.integers(0, 4, (9, 5))]
        values[rng.random(values.shape) < 0.2] = np.nan
        other = values.copy()
        other[:, 3] = STATES[rng.integers(0, 4, 9)]
        moved = np.abs(card._steps(values, STATES) - card._steps(other, STATES)).sum()
        assert moved <= 2 * 8
    alone = np.zeros((9, 1)), np.full((9, 1), 180.0)
    moved = np.abs(card._steps(alone[0], STATES) - card._steps(alone[1], STATES)).sum()
    assert moved == 2 * 8


def test_steps_are_counted_by_the_nearest_states_in_the_card_s_order() -> None:
    values = np.array([[5.0, 170.0], [61.0, np.nan], [119.0, 10.0]])
    counts = card._steps(values, np.array([120.0, 0.0, 60.0, 180.0]))
    assert counts[1, 2] == counts[2, 0] == 1
    assert counts.sum() == 2


def test_noise_is_that_of_whole_histories() -> None:
    stream, epsilon, slots = SecureStream(), 1.0, 40
    still = np.repeat(STATES[np.arange(4000) % 4][None], slots, axis=0).ravel()
    totals = 1000 * (slots - 1)
    # of each row three counts are noise alone, of which nothing below zero is left
    found = np.array(
        [card.estimate([still], STATES, 4000, epsilon, stream).matrix for _ in range(75)]
    )
    away = found[:, ~np.eye(4, dtype=bool)] * totals
    scale = 2 * (slots - 1) / epsilon
    # E max(L, 0) = scale / 2, with a deviation of scale sqrt(3 / 4); rows' totals vary by a percent
    error = scale * np.sqrt(0.75 / away.size)
    np.testing.assert_allclose(away.mean(), scale / 2, atol=5 * error + 0.01 * scale)


def test_a_history_that_is_named_twice_is_refused_before_anything_is_drawn() -> None:
    """Its records would be counted twice, and cost twice the epsilon that the card says."""
    rng = np.random.default_rng(5)
    pool = [_history(np.full((4, 4), 0.25), 2000, 24, rng) for _ in range(3)]
    with pytest.raises(DataError, match="client once"):
        card.estimate([*pool, pool[0].copy()], STATES, 2000, 2.0, None)  # type: ignore[arg-type]
    # of those that never change many may be alike
    still = np.zeros(48_000)
    card.estimate([*pool, still, still.copy()], STATES, 2000, 2.0, SecureStream())


def test_too_little_is_refused_before_anything_is_drawn() -> None:
    with pytest.raises(PrivacyError, match="pool more clients"):
        card.estimate([np.zeros(4800)], STATES, 100, 2.0, None)  # type: ignore[arg-type]
    with pytest.raises(DataError, match="longer histories"):
        card.estimate([np.zeros(150)], STATES, 100, 2.0, None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("mixing", "method"),
    [
        ('mixing = "cyclic"\nstates = [0, 180]\nq = 0.4', ""),
        ('mixing = "matrix"\nstates = [0, 180]\nmatrix = [[0.6, 0.4], [0.4, 0.6]]',
         'delta = "stationary"'),
    ],
)  # fmt: skip
def test_an_error_goes_with_a_matrix_and_what_anybody_knows(mixing: str, method: str) -> None:
    groups = f'[estimator.method.groups.all]\nclients = ["c"]\n{mixing}\nerror = 0.02\n'
    with pytest.raises(ConfigError, match=r"all\.error"):
        ages.task_of(ages.study_text(groups=groups, method=method))


def test_a_plan_has_more_noise_with_an_error_and_pays_for_the_card() -> None:
    groups = (
        '[estimator.method.groups.all]\nclients = ["c"]\nmixing = "matrix"\nstates = [0, 180]\n'
        "matrix = [[0.6, 0.4], [0.4, 0.6]]\ncard_epsilon = 0.5\n"
    )
    exact = ages.task_of(ages.study_text(groups=groups)).plan
    task = ages.task_of(ages.study_text(groups=groups + "error = 0.05\n"))
    assert (task.plan.cards["all"].backward >= exact.cards["all"].backward).all()
    assert task.plan.cards["all"].backward[1] > exact.cards["all"].backward[1]
    assert [event.epsilon for event in task.of_client("c").budget.beforehand.values()] == [0.5]
    unpaid = groups.replace("card_epsilon = 0.5", "error = 0.05")
    free = ages.task_of(ages.study_text(groups=unpaid))
    told = [" ".join(method_of(one.study).plan(one, 10_000, 4).warnings) for one in (free, task)]
    assert ["has an error and no card_epsilon" in words for words in told] == [True, False]


def _at_distance(row: np.ndarray, error: float, rng: np.random.Generator) -> np.ndarray:
    """Return a law whose total variation distance from a row is at most `error`, mostly near it."""
    other = rng.dirichlet(np.full(len(row), 0.5))
    distance = np.abs(other - row).sum() / 2
    return row + (other - row) * min(1.0, error / distance)


def _history(matrix: np.ndarray, records: int, slots: int, rng: np.random.Generator) -> np.ndarray:
    edges, places = np.cumsum(matrix, axis=1), rng.integers(0, len(matrix), records)
    found = [places]
    for _ in range(slots - 1):
        places = (rng.random(records)[:, None] > edges[places]).sum(axis=1)
        found.append(places)
    return STATES[np.concatenate(found)]


AGES = np.arange(20)
KINDS = ("prior-free", "stationary", "spectral")


def random_chain(rng: np.random.Generator, size: int, sparse: bool = False) -> Chain:
    matrix = rng.dirichlet(np.full(size, 0.7), size=size)
    if sparse:
        matrix[rng.random((size, size)) < 0.3] = 0.0
        matrix[matrix.sum(axis=1) == 0] = 1.0
        matrix /= matrix.sum(axis=1, keepdims=True)
    return Chain(np.arange(size, dtype=float), matrix)


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
        lambda: Chain(np.array([1.0, np.nan]), np.eye(2)),
        lambda: cyclic(STATES, 1.5),
        lambda: deltas(cyclic(STATES, 0.1), np.array([-1])),
        lambda: deltas(Chain(STATES, np.eye(4)), AGES, "stationary"),
        lambda: constant(1.0, AGES),
        lambda: classical_epsilon(0.0, np.ones(1), 1.0),
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


TWO = np.array([0.0, 1.0])
FIRST_AGES = np.arange(12)


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
    return table(deltas(chain, FIRST_AGES, "prior-free")), table(forward(chain, FIRST_AGES))


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


@pytest.mark.parametrize("start", ["collection", "round", "stationary"])
@pytest.mark.parametrize("use", ["debiased", "wiener"])
def test_the_expected_loss_is_what_a_simulation_finds(start: Start, use: str) -> None:
    rng = np.random.default_rng(14)
    records, runs, age, horizon, scale = 4, 40_000, 2, 4, 30.0
    chain, law = cyclic(STATES, 0.3), rng.dirichlet(np.ones(4))
    then_law = {
        "collection": law,
        "round": law @ np.linalg.matrix_power(chain.matrix, horizon - age),
        "stationary": chain.stationary,
    }[start]
    kernel = np.linalg.matrix_power(chain.matrix, age)
    ages = np.array([age])
    about = moments(STATES, laws(chain, law, ages, start, horizon), chain.powers(ages))
    found = expected_loss(about, records, np.array([scale]), use)[0]
    then = rng.choice(4, size=(runs, records), p=then_law / then_law.sum())
    now = (rng.random((runs, records, 1)) > kernel[then].cumsum(axis=2)).sum(axis=2).clip(0, 3)
    upload = STATES[then].mean(1) + rng.laplace(0, scale, runs)
    a, b = then_law @ STATES, then_law @ kernel @ STATES
    variance = then_law @ STATES**2 - a * a
    covariance = (then_law * STATES) @ kernel @ STATES - a * b
    gain = (covariance / records) / (variance / records + 2 * scale**2) if use == "wiener" else 1.0
    squares = (b + gain * (upload - a) - STATES[now].mean(1)) ** 2
    np.testing.assert_allclose(found, squares.mean(), atol=4 * squares.std() / np.sqrt(runs))


def test_better_use_of_the_model_is_never_worse() -> None:
    rng, ages = np.random.default_rng(15), np.arange(10)
    for q in (0.1, 0.3, 0.4):
        chain, law = cyclic(STATES, q), rng.dirichlet(np.ones(4))
        about = moments(STATES, laws(chain, law, ages, "collection", 9), chain.powers(ages))
        debiased, wiener = (expected_loss(about, 100, 1.8 / (ages + 1), use)
                            for use in ("debiased", "wiener"))  # fmt: skip
        assert (wiener <= debiased * (1 + 1e-12)).all()
        assert (wiener <= about.variance_now / 100 * (1 + 1e-12)).all()


def test_a_law_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigError, match="law"):
        laws(cyclic(STATES, 0.1), np.full(4, 0.5), np.arange(3), "collection", 2)


def test_all_that_follows_from_printed_inputs_agrees() -> None:
    gated = [cell for cell in judged([*age.stated()]) if cell.gated]
    assert len(gated) == 15
    assert [cell for cell in gated if not cell.within] == []


@pytest.mark.parametrize("factor", [0.9, 1.1])
def test_a_wrong_delta_is_seen(monkeypatch: pytest.MonkeyPatch, factor: float) -> None:
    right = age.deltas
    monkeypatch.setattr(age, "deltas", lambda *given: right(*given) ** factor)
    wrong = {cell.row.partition(",")[0] for cell in judged([*age.stated()]) if cell.within is False}
    assert wrong == {
        "gamma*", "epsilon at collection", "two releases", "Delta(10) of a mixed population",
    }  # fmt: skip
