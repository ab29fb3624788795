"""Attacks on worst-case neighbours: what they learn must stay below what the study promises.

The adversary sees the releases and knows everything but which value one record has. Its error rates
bound epsilon from below (`tests.attacks`); a right program exceeds its claim with probability ALARM
for each bound, over fresh noise. Noise comes from a seeded stand-in.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Literal

import numpy as np
import pytest
from scipy import stats

from benchmarks.attacks import RESULTS, markdown
from pipeline.errors import PayloadError
from pipeline.messages.model import read_model, write_model
from pipeline.privacy.randomness import SecureStream
from pipeline.privacy.sensitivity import Neighbours
from tests.attacks.bounds import Scores, epsilon_bound, mu_bound, strongest
from tests.attacks.bugs import BOTH, BUGS, HOSTILE, hostile
from tests.attacks.simulation import measure_simulation
from tests.attacks.studies import EPSILON, RELEASES, Mechanism, attack_of, knee
from tests.attacks.windows import Streams, few_at_a_time, measure, one_by_one, side_by_side
from tests.builders import SeededStream

#: Of each release and neighbour; what tells Laplace noise apart is rarer, and cheaper to draw.
DRAWS = {"discrete-gaussian": 20_000, "discrete-laplace": 40_000}
NEIGHBOURS: tuple[Neighbours, ...] = ("zero-out", "replace-one")
#: The least share of the claim that an attack must reach, lest it prove nothing.
STRONG = {"discrete-gaussian": 0.7, "discrete-laplace": 0.6}
#: Where no pair of neighbours comes near the sensitivity: two records have the same intercept, no
#: curvature is below zero, and the slopes of both classes differ by 1 of 2 in logistic regression.
WEAKER = {
    ("start, clipped", "discrete-gaussian", "replace-one"): 0.5,
    ("step, mostly curvature", "discrete-laplace", "replace-one"): 0.35,
    ("step of logistic regression", "discrete-gaussian", "replace-one"): 0.35,
    ("step of logistic regression", "discrete-laplace", "replace-one"): 0.35,
}
#: Those that reach their floor only with twice as many draws.
SLOWER = {
    ("step", "discrete-laplace", "replace-one"),
    ("start, clipped", "discrete-gaussian", "replace-one"),
    ("step, weighted", "discrete-gaussian", "replace-one"),
    ("step, weighted", "discrete-laplace", "replace-one"),
}
every_mechanism = pytest.mark.parametrize("mechanism", BOTH)
every_neighbours = pytest.mark.parametrize("neighbours", NEIGHBOURS)
every_release = pytest.mark.parametrize("name", RELEASES)
#: Each release once, with mechanisms and neighbours in turn; a long run has each with each.
APART = [
    pytest.param(
        name, neighbours, mechanism,
        marks=[pytest.mark.slow] * ((j, k) != ((i // 2) % 2, i % 2)),
    )
    for i, name in enumerate(RELEASES)
    for j, neighbours in enumerate(NEIGHBOURS)
    for k, mechanism in enumerate(BOTH)
]  # fmt: skip


def streams(seed: int) -> Streams:
    return lambda number: SeededStream(1000 * seed + number)


def share_of(mechanism: Mechanism, found: float) -> float:
    return found / EPSILON[mechanism]


@pytest.mark.parametrize(("name", "neighbours", "mechanism"), APART)
def test_no_attack_learns_more_than_was_promised(
    name: str, neighbours: Neighbours, mechanism: Mechanism
) -> None:
    draws = DRAWS[mechanism] * (2 if (name, mechanism, neighbours) in SLOWER else 1)
    found = measure(attack_of(name, mechanism, neighbours), draws, streams(0))
    assert share_of(mechanism, found.events) <= 1
    floor = WEAKER.get((name, mechanism, neighbours), STRONG[mechanism])
    assert floor < share_of(mechanism, found.claimed) <= 1


@pytest.mark.slow
@every_mechanism
@every_neighbours
@every_release
def test_no_attack_with_twenty_times_the_draws_learns_more_than_was_promised(
    name: str, neighbours: Neighbours, mechanism: Mechanism
) -> None:
    found = measure(attack_of(name, mechanism, neighbours), 20 * DRAWS[mechanism], streams(1))
    floor = WEAKER.get((name, mechanism, neighbours), STRONG[mechanism])
    assert floor < share_of(mechanism, found.claimed) <= 1


@pytest.mark.parametrize(
    ("users", "floor", "neighbours", "mechanism"),
    [
        pytest.param(*users, neighbours, mechanism, marks=[pytest.mark.slow] * ((i + j + k) % 2))
        for i, users in enumerate((("together", 0.6), ("spread", 0.35)))
        for j, neighbours in enumerate(NEIGHBOURS)
        for k, mechanism in enumerate(BOTH)
    ],
)
def test_no_attack_learns_more_about_a_user_than_was_promised(
    users: Literal["together", "spread"], floor: float, neighbours: Neighbours, mechanism: Mechanism
) -> None:
    """Spread over windows a user's records move each release less, and noise adds up."""
    found = measure(
        attack_of("step, at a point", mechanism, neighbours, users=users),
        DRAWS[mechanism],
        streams(2),
    )
    assert floor < share_of(mechanism, found.claimed) <= 1


@every_mechanism
@pytest.mark.slow
def test_no_attack_learns_more_from_payloads_made_one_by_one(mechanism: Mechanism) -> None:
    attack = attack_of("step", mechanism, "zero-out")
    found = measure(attack, 2000, streams(3), draw=one_by_one)
    assert 0.3 < share_of(mechanism, found.claimed) <= 1


@every_mechanism
@pytest.mark.slow
def test_no_attack_learns_more_from_short_vectors_of_noise(mechanism: Mechanism) -> None:
    attack = attack_of("step", mechanism, "zero-out")
    found = measure(attack, DRAWS[mechanism], streams(4), draw=few_at_a_time)
    assert STRONG[mechanism] < share_of(mechanism, found.claimed) <= 1


@every_mechanism
@pytest.mark.parametrize("name", ["start", "step"])
def test_releases_side_by_side_are_those_that_a_client_makes(
    name: str, mechanism: Mechanism
) -> None:
    attack = attack_of(name, mechanism, "zero-out")
    ways = (side_by_side, one_by_one)
    one, two = (
        draw(attack.task, attack.left[0], attack.model, 1, SeededStream(4)) for draw in ways
    )
    assert np.array_equal(one, two)


#: Each fault with one mechanism, in the release that shows it first; a long run has all of them.
PLANTED = [
    pytest.param(
        bug.name, release, mechanism, id=f"{bug.name}-{release}-{mechanism}",
        marks=[pytest.mark.slow]
        * ((release, mechanism) != (bug.releases[0], bug.mechanisms[number % len(bug.mechanisms)])),
    )
    for number, bug in enumerate(BUGS.values())
    for release in bug.releases
    for mechanism in bug.mechanisms
]  # fmt: skip


@pytest.mark.parametrize(("name", "release", "mechanism"), PLANTED)
def test_the_attack_finds_a_planted_fault(name: str, release: str, mechanism: Mechanism) -> None:
    bug = BUGS[name]
    draws = 2 * DRAWS[mechanism]
    with bug.plant():
        found = measure(bug.attack(release, mechanism), draws, streams(5))
    if not bug.harmless:
        assert share_of(mechanism, found.claimed) > 1
        return
    # too much noise breaks no promise, but the attack is weaker than on the right program
    right = measure(attack_of(release, mechanism, bug.neighbours), draws, streams(5))
    assert share_of(mechanism, found.claimed) < 0.82 < share_of(mechanism, right.claimed)


@every_mechanism
def test_the_attack_finds_one_noise_in_two_windows_of_the_clients_own_generator(
    mechanism: Mechanism,
) -> None:
    """The real generator never repeats itself, so the fault must repeat it."""
    attack = BUGS["the same noise in two windows"].attack("step", mechanism)
    found = measure(attack, 10_000, lambda _: SecureStream())
    assert share_of(mechanism, found.claimed) > 1


@pytest.mark.parametrize(
    ("name", "mechanism"),
    [
        pytest.param(name, mechanism, marks=[pytest.mark.slow] * ((i + k) % 2))
        for i, name in enumerate(HOSTILE)
        for k, mechanism in enumerate(BOTH)
    ],
)
def test_a_hostile_model_does_not_help_the_attack(name: str, mechanism: Mechanism) -> None:
    # slopes and curvatures of no number are zero at the client, which NumPy warns about on its way
    with np.errstate(invalid="ignore"):
        found = measure(hostile(name, mechanism), DRAWS[mechanism], streams(6))
    assert share_of(mechanism, found.claimed) <= 1
    # and it is no weak attack, unless no slope is left
    assert name == "coefficients NaN" or share_of(mechanism, found.claimed) > 0.5


@pytest.mark.parametrize("value", ["NaN", "Infinity", "1e999", "4097", "null"])
@pytest.mark.parametrize("place", ["coefficient", "weight"])
def test_a_hostile_model_is_not_read(place: str, value: str) -> None:
    task = attack_of("step, weighted", "discrete-gaussian", "zero-out").task
    message = json.loads(write_model(task, knee(task), "2026-01-01T00:00:00Z"))
    if place == "weight":
        message["class_weights"]["positive"] = "?"
    else:
        message["coefficients"][0]["value"] = "?"
    with pytest.raises(PayloadError):
        read_model(task, json.dumps(message).replace('"?"', value).encode())


def test_whoever_has_the_seed_of_a_simulation_learns_all() -> None:
    assert measure_simulation(300).claimed > 3 * EPSILON["discrete-gaussian"]


def test_the_document_holds_the_committed_results() -> None:
    result = json.loads(RESULTS.read_text())
    document = RESULTS.parents[2] / "docs" / "privacy" / "attacks.md"
    assert markdown(result) in document.read_text(encoding="utf-8")
    assert all(row["measured"] <= row["epsilon"] for row in result["rows"] if row["right"])


def _normal(rng: np.random.Generator) -> Scores:
    return Scores(rng.normal(1.0, 1.0, 600), rng.normal(0.0, 1.0, 600))


def _laplace(rng: np.random.Generator) -> Scores:
    return Scores(rng.laplace(1.0, 1.0, 600), rng.laplace(0.0, 1.0, 600))


@pytest.mark.parametrize(
    ("law", "bound", "truth"),
    [(_normal, mu_bound, 1.0), (_laplace, lambda alarm: epsilon_bound(0.0, alarm), 1.0)],
)
@pytest.mark.slow
def test_a_bound_exceeds_the_truth_no_more_often_than_stated(
    law: Callable[[np.random.Generator], Scores],
    bound: Callable[[float], object],
    truth: float,
) -> None:
    """At a level at which errors can be counted; thresholds are learnt as in the attacks."""
    alarm, runs = 0.2, 300
    rng = np.random.default_rng(7)
    found = [strongest([law(rng)], bound(alarm)) for _ in range(runs)]  # type: ignore[arg-type]
    assert sum(value > truth for value in found) <= stats.binom.isf(1e-6, runs, alarm)
    # and is not idle
    assert math.fsum(found) / runs > 0.5 * truth
