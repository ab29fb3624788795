"""Cards that are estimated: their error holds the truth, their Delta is never below it."""

from __future__ import annotations

import numpy as np
import pytest

from pipeline.errors import ConfigError, DataError, PrivacyError
from pipeline.methods import method_of
from pipeline.methods.age_aware import card
from pipeline.methods.age_aware.markov import Chain, deltas, forward, safe_deltas
from pipeline.privacy.randomness import SecureStream
from tests import ages

STATES = np.array([0.0, 60.0, 120.0, 180.0])
SLOTS = 24
NUMBERS = np.arange(SLOTS + 1)


def test_delta_with_an_error_holds_for_every_chain_that_is_so_near() -> None:
    rng, tight = np.random.default_rng(8), []
    for _ in range(300):
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
    for _ in range(60):
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
        [card.estimate([still], STATES, 4000, epsilon, stream).matrix for _ in range(150)]
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
