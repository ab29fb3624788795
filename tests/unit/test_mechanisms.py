"""Mechanisms and releases: budgets add up, noise has its size, and integers fit."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import mpmath
import numpy as np
import pytest
from scipy import stats

from pipeline.errors import PrivacyError
from pipeline.linalg import upper_is_diagonal
from pipeline.messages.release import seal
from pipeline.methods.renewable.client import RenewableTask, query_of, summarise_bounded
from pipeline.privacy import accounting as gdp
from pipeline.privacy import mechanism as channel
from pipeline.privacy import memory
from pipeline.privacy.events import Gaussian, NonPrivate, Pure
from pipeline.privacy.mechanism import (
    INTEGER_LIMIT,
    Channel,
    GaussianMechanism,
    LaplaceMechanism,
    Mechanism,
    Simulation,
    slack,
)
from pipeline.privacy.randomness import SecureStream, SimulatedGaussian
from pipeline.privacy.randomness import SeededStream as Simulated
from pipeline.privacy.samplers import DiscreteGaussian, DiscreteLaplace
from pipeline.release.model import start_model
from pipeline.release.privatise import Answer, privatise
from pipeline.stream.fold import Reducer
from pipeline.stream.partition import Partition
from pipeline.types import Integers
from tests.builders import LogEntry, SeededStream, simulate, some_model, task_of
from tests.compliance.mechanisms import CHECKS
from tests.neighbours import cost_of, first_deviation

MECHANISMS = ("discrete-gaussian", "discrete-laplace", "insecure-simulation")
REAL = MECHANISMS[:2]
SETTINGS: list[dict[str, object]] = [
    {},
    {"p": 1, "norm_bound": 1.2},
    {"maximum": 5.0, "neighbours": "replace-one"},
    {"user_records": 30, "epsilon": 0.1},
    {"split": "gradient = 0.2, curvature = 0.2, counts = 0.1"},
    {"epsilon": 1e-4, "records": 1000},
    {"epsilon": 20.0, "delta": 1e-6},
]
#: A right release fails a test of noise with at most this probability, over fresh noise.
ALARM = 1e-7
DRAWS = 1000


def stream_for(mechanism: str, seed: int = 3) -> SecureStream:
    return Simulated(1, "c", seed) if mechanism == "insecure-simulation" else SeededStream(seed)


# --- budgets ---------------------------------------------------------------------------------

#: Shares that are scaled by their sum, since they say nothing of a middle.
PLAIN = "gradient = 0.665, curvature = 0.285, counts = 0.05"


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_the_parts_of_a_gaussian_release_add_up_as_squares_and_never_beyond_the_budget(
    settings: dict[str, object],
) -> None:
    task = task_of(**{"split": PLAIN, **settings})
    with mpmath.workdps(50):
        for channels in (task.initial_channels, task.update_channels):
            square = sum(cost_of(part, 2) for part in channels.parts.values())
            whole = mpmath.mpf(task.budget.per_record)
            assert whole * (1 - mpmath.mpf("1e-12")) <= mpmath.sqrt(square) <= whole
    assert task.budget.event == Gaussian(task.budget.per_record)


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_the_parts_of_a_laplace_release_add_up_plainly_and_never_beyond_the_budget(
    settings: dict[str, object],
) -> None:
    task = task_of(**{"split": PLAIN, "mechanism": "discrete-laplace", **settings})
    records = task.study.privacy.records or 1
    assert task.study.privacy.epsilon is not None
    with mpmath.workdps(50):
        for channels in (task.initial_channels, task.update_channels):
            total = sum(cost_of(part, 1) for part in channels.parts.values())
            whole = mpmath.mpf(task.study.privacy.epsilon) / records
            assert whole * (1 - mpmath.mpf("1e-12")) <= total
            # the shares themselves are floats
            assert total <= whole * (1 + mpmath.mpf(2) ** -52)
    assert task.budget.event == Pure(task.budget.per_record)


def test_a_gaussian_mechanism_has_the_mu_of_its_budget_less_what_the_discrete_law_costs() -> None:
    mechanism = GaussianMechanism(1.0, 1e-6)
    exact = gdp.mu_of(1.0, 1e-6)
    for numbers in (1, 5000, 10**6):
        mu = mechanism.budget(numbers)
        assert exact * (1 - 1e-7) < mu < exact
    assert mechanism.budget(10**6) < mechanism.budget(1)
    assert mechanism.event(0.5) == Gaussian(0.5)


@pytest.mark.parametrize(
    ("epsilon", "delta", "numbers"), [(1.0, 1e-30, 10**3), (20.0, 1e-22, 10**6)]
)
def test_a_delta_below_the_discrete_law_s_difference_is_refused_with_one_that_is_not(
    epsilon: float, delta: float, numbers: int
) -> None:
    with pytest.raises(PrivacyError, match=r"privacy\.delta") as caught:
        GaussianMechanism(epsilon, delta).budget(numbers)
    [advice] = re.findall(r"at least ([0-9.e-]+)", str(caught.value))
    assert GaussianMechanism(epsilon, 1.1 * float(advice)).budget(numbers) > 0


@pytest.mark.parametrize(("epsilon", "numbers"), [(1e-4, 10**5), (1e-9, 10), (1.0, 10**9)])
def test_an_epsilon_that_the_discrete_law_s_difference_shows_in_is_refused_too(
    epsilon: float, numbers: int
) -> None:
    with pytest.raises(PrivacyError, match=r"privacy\.epsilon") as caught:
        GaussianMechanism(epsilon, 1e-6).budget(numbers)
    [advice] = re.findall(r"at least ([0-9.e-]+),", str(caught.value))
    assert GaussianMechanism(1.1 * float(advice), 1e-6).budget(numbers) > 0


def test_a_laplace_mechanism_spends_its_epsilon_and_a_simulation_protects_nobody() -> None:
    laplace, real = LaplaceMechanism(0.7), GaussianMechanism(1.0, 1e-6)
    assert laplace.budget(10**6) == 0.7
    assert laplace.event(0.7) == Pure(0.7)
    simulation = Simulation(real)
    assert simulation.budget(10) == real.budget(10)
    assert simulation.event(0.5) == NonPrivate()
    assert (laplace.order, real.order, simulation.order) == (1, 2, 2)


@pytest.mark.parametrize("calibrate", [channel.gaussian, channel.laplace])
@pytest.mark.parametrize(
    ("sensitivity", "budget"), [(1e300, 1.0), (1e-300, 1.0), (1e200, 1e-100), (1.0, 1e-280)]
)
def test_a_sensitivity_too_large_or_small_for_any_lattice_is_refused(
    calibrate: object, sensitivity: float, budget: float
) -> None:
    with pytest.raises(PrivacyError, match="lattice"):
        calibrate(sensitivity, 1.0, budget)  # type: ignore[operator]


def test_a_study_whose_sums_do_not_fit_its_lattice_is_refused() -> None:
    """L1 distances of a thousand features need a lattice too fine for the longest windows."""
    settings: dict[str, object] = {"p": 900, "epsilon": 20.0, "records": 100_000, "growth": 0}
    with pytest.raises(PrivacyError, match=r"window\.records"):
        task_of(mechanism="discrete-laplace", **settings)
    with pytest.raises(PrivacyError, match=r"window\.most"):
        task_of(mechanism="discrete-laplace", **{**settings, "records": 10_000, "growth": 0.1})
    task = task_of(mechanism="discrete-laplace", **{**settings, "records": 10_000})
    for other in (task, task_of(**settings)):
        for channels in (other.initial_channels, other.update_channels):
            assert all(p.largest(other.slots) < INTEGER_LIMIT for p in channels.parts.values())


# --- noise -----------------------------------------------------------------------------------

FEATURES, RESPONSES = simulate(np.random.default_rng(0), 50, 2)


def noise_of(task: RenewableTask, version: int, mechanism: str) -> dict[str, np.ndarray]:
    """Release one window many times; return the noise of each part, shape (DRAWS, numbers)."""
    model = some_model(task, version)
    sums = summarise_bounded(task, FEATURES, RESPONSES, model)
    stream, channels = stream_for(mechanism), task.channels(version)
    query = query_of(task, sums)
    releases = [privatise(task, query, stream).parts for _ in range(DRAWS)]
    found = {}
    for name, part in channels.parts.items():
        exact = getattr(sums, name)
        lattice = part.round(exact.integers, exact.exponents)
        found[name] = np.array([release[name] for release in releases]) - lattice
    return found


def check_scale(noise: np.ndarray, deviation: float, fourth: float) -> None:
    """Mean and variance within their Monte Carlo errors; `fourth` is E X^4 / sigma^4."""
    reach = stats.norm.isf(ALARM / 2)
    assert abs(noise.mean()) < reach * deviation / math.sqrt(noise.size)
    error = math.sqrt((fourth - 1) / noise.size)
    assert abs(noise.var() / deviation**2 - 1) < reach * error


@pytest.mark.parametrize("version", [0, 1])
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_each_part_has_noise_of_its_channel_s_scale_and_the_matrix_alike_in_all_directions(
    mechanism: str, version: int
) -> None:
    task = task_of(p=2, mechanism=mechanism)
    channels, noise = task.channels(version), noise_of(task, version, mechanism)
    fourth = 6.0 if mechanism == "discrete-laplace" else 3.0
    for name in ("gradient", "counts"):
        check_scale(noise[name], first_deviation(channels.parts[name]), fourth)
    everything = np.concatenate(list(noise.values()), axis=1)
    correlation = np.corrcoef(everything.T) - np.eye(everything.shape[1])
    assert np.abs(correlation).max() < stats.norm.isf(ALARM) / math.sqrt(DRAWS)
    if not version:
        assert list(noise) == ["gradient", "counts"]
        return
    diagonal = upper_is_diagonal(task.size)
    for name in ("curvature", "middle"):
        deviation = first_deviation(channels.parts[name])
        check_scale(noise[name][:, diagonal], deviation, fourth)
        # numbers beside the diagonal count sqrt 2 in either norm, so their noise is as much smaller
        check_scale(math.sqrt(2) * noise[name][:, ~diagonal], deviation, fourth)


def test_the_noise_of_each_mechanism_has_the_deviation_of_its_budget() -> None:
    """tau = sensitivity / mu for Gaussian noise, sqrt 2 sensitivity / epsilon for Laplace noise."""
    for sensitivity in (1e-3, 1.0, 700.0):
        for budget in (0.01, 1.0, 8.0):
            part = channel.gaussian(sensitivity, 2.0, budget)
            assert part.standard_deviation == pytest.approx(part.sensitivity / budget, rel=1e-9)
            part = channel.laplace(sensitivity, 2.0, budget)
            wanted = math.sqrt(2) * part.sensitivity / budget
            assert part.standard_deviation == pytest.approx(wanted, rel=1e-9)
            assert sensitivity <= part.sensitivity <= sensitivity * (1 + 1 / 256)


@pytest.mark.parametrize("noise", [DiscreteGaussian(2.0**14), DiscreteLaplace(2.0**14)])
def test_noise_does_not_depend_on_what_it_is_added_to(noise: object) -> None:
    part = Channel(0, 1e6, noise)  # type: ignore[arg-type]
    zeros, values = np.zeros(5000, dtype=np.int64), np.arange(5000) * 17 - 40_000
    one, _ = part.noised(zeros, 50, SeededStream(4))
    two, _ = part.noised(values, 50, SeededStream(4))
    assert np.array_equal(two - one, values)


# --- integers that fit -----------------------------------------------------------------------


def check_release(task: RenewableTask, release: Answer, version: int) -> None:
    parts = task.channels(version).parts
    assert parts.keys() == release.parts.keys()
    for name, part in parts.items():
        values = release.parts[name]
        assert values.dtype == np.int64
        assert np.abs(values).max() <= part.largest(task.slots) < INTEGER_LIMIT


@pytest.mark.parametrize(
    ("mechanism", "settings"),
    [
        # each mechanism and each setting; a long run has each with each
        pytest.param(mechanism, settings, marks=[pytest.mark.slow] * (k > 0 and k % 3 != i))
        for i, mechanism in enumerate(MECHANISMS)
        for k, settings in enumerate(SETTINGS)
    ],
    ids=str,
)
def test_every_released_number_is_an_integer_within_the_public_bound(
    mechanism: str, settings: dict[str, object]
) -> None:
    task = task_of(mechanism=mechanism, **settings)
    features, responses = simulate(np.random.default_rng(1), task.slots, task.size - 1)
    for version in (0, 3):
        model = some_model(task, version) if version else start_model(task.size)
        query = query_of(task, summarise_bounded(task, features, responses, model))
        check_release(task, privatise(task, query, stream_for(mechanism, version)), version)


@pytest.mark.parametrize("noise", [DiscreteGaussian, DiscreteLaplace, SimulatedGaussian])
@pytest.mark.parametrize("huge", [2**60, -(2**60)])
def test_noise_beyond_all_likelihood_leaves_within_the_bound_and_is_folded(
    noise: type, huge: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def draw(self: object, count: int, stream: SecureStream) -> Integers:
        return np.full(count, huge, dtype=np.int64)

    monkeypatch.setattr(noise, "draw", draw)
    mechanism = MECHANISMS[(DiscreteGaussian, DiscreteLaplace, SimulatedGaussian).index(noise)]
    task = task_of(p=2, mechanism=mechanism)
    entries = []
    for version in (0, 1):
        model = some_model(task, version) if version else start_model(task.size)
        query = query_of(task, summarise_bounded(task, FEATURES, RESPONSES, model))
        release = privatise(task, query, stream_for(mechanism))
        check_release(task, release, version)
        value = seal(task, release, client="c", ledger="l", seq=version)
        entries.append(LogEntry(version, b"c", value))
    assert Reducer(task).fold(Partition.empty(task), entries) == []


@pytest.mark.parametrize("mechanism", REAL)
def test_a_real_mechanism_draws_from_the_cryptographic_stream_alone(
    mechanism: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever numpy's generators do, two releases differ; their streams share nothing."""
    task = task_of(p=2, mechanism=mechanism)
    query = query_of(task, summarise_bounded(task, FEATURES, RESPONSES, some_model(task, 1)))

    def refuse(*arguments: object) -> None:
        raise AssertionError("noise from a generator that is not cryptographic")

    monkeypatch.setattr(np.random, "default_rng", refuse)
    monkeypatch.setattr(np.random, "normal", refuse)
    one, two = (privatise(task, query, SecureStream()).parts["gradient"] for _ in range(2))
    assert not np.any(one == two)


CHECKED: dict[str, Mechanism] = {
    "discrete-gaussian": GaussianMechanism(1.0, 1e-6),
    "discrete-laplace": LaplaceMechanism(1.0),
}


@pytest.mark.parametrize("name", CHECKED)
@pytest.mark.parametrize("check", CHECKS, ids=[check.__name__ for check in CHECKS])
def test_a_mechanism_keeps_what_is_asked(check: Callable[[Mechanism], None], name: str) -> None:
    check(CHECKED[name])


class Third(GaussianMechanism):
    """Takes a third of the sensitivity."""

    def channel(self, sensitivity: float, *rest: Any) -> Channel:
        return super().channel(sensitivity / 3, *rest)


class Greedy(GaussianMechanism):
    """Lets its parts cost more than the budget together."""

    def part(self, budget: float, share: float) -> float:
        return budget * share**0.4


class Wasteful(LaplaceMechanism):
    """Has twice the noise that its budget asks for."""

    def channel(self, sensitivity: float, *rest: Any) -> Channel:
        return super().channel(2 * sensitivity, *rest)


@pytest.mark.parametrize(
    "wrong", [Third(1.0, 1e-6), Greedy(1.0, 1e-6), Wasteful(1.0)], ids=lambda w: type(w).__name__
)
def test_a_wrong_mechanism_is_found(wrong: Mechanism) -> None:
    found = 0
    for check in CHECKS:
        try:
            check(wrong)
        except AssertionError:
            found += 1
    assert found


PRIVATE = task_of(p=2)
MODEL = some_model(PRIVATE, 1)
SUMS = summarise_bounded(PRIVATE, FEATURES, RESPONSES, MODEL)


def test_every_sampler_is_covered_by_the_proof_and_by_the_slack(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each coordinate must cover a Gaussian of its share, and the slack all their deviations.

    In svec form, where an off-diagonal number counts sqrt 2 times, every coordinate of a part
    needs tau = sensitivity / unit / mu, so the number itself needs the variance
    tau_number^2 + 1/12 of `channel.gaussian`, with tau_number = tau / sqrt 2 off the diagonal.
    """
    used: list[tuple[float, int]] = []
    draw = DiscreteGaussian.draw

    def noting(self: DiscreteGaussian, count: int, stream: SecureStream) -> np.ndarray:
        used.append((self.sigma, count))
        return draw(self, count, stream)

    monkeypatch.setattr(DiscreteGaussian, "draw", noting)
    task = task_of(p=2)
    privatise(task, query_of(task, SUMS), SeededStream(0))
    mu, needed = task.budget.event.mu, []
    shares = task.split.shares
    # the whole that shares are of: what one record can use up of them
    [whole] = {
        round(shares[name] * mu**2 / float(cost_of(part, 2)), 9)
        for name, part in task.update_channels.parts.items()
    }
    # the draws of noise that remembers are 2^11 times finer, and larger by |c|
    finer = math.sqrt(sum(c * c for c in memory.COEFFICIENTS))
    for name, part in task.update_channels.parts.items():
        tau = finer * part.sensitivity / part.unit / (mu * math.sqrt(shares[name] / whole))
        needed += {
            "gradient": [(tau, 3)],
            "curvature": [(tau, 3), (tau / math.sqrt(2), 3)],
            "middle": [(tau, 3), (tau / math.sqrt(2), 3)],
            "counts": [(tau, 2)],
        }[name]
    numbers = 3 + 6 + 6 + 2
    assert sum(count for _, count in used) == numbers
    # no smaller than needed, and no larger than float64 and the rounding of `whole` make it
    for (sigma, count), (tau, wanted) in zip(sorted(used), sorted(needed), strict=True):
        assert count == wanted
        assert abs(sigma**2 / (tau**2 + 1 / 12) - 1) < 1e-8
    assert 1 <= whole < 1 + 1 / 256
    # a record meets eight draws of each
    epsilon, delta = slack(8 * numbers, 1.0)
    assert epsilon >= 2 * 8 * sum(count * 16 / sigma**4 for sigma, count in used)
    with mpmath.workdps(60):
        # beyond 12 sigma, where the factor of the proof is not shown
        beyond = mpmath.erfc(12 / mpmath.sqrt(2)) * 1.01
        assert delta >= (1 + mpmath.e) * 8 * numbers * beyond
