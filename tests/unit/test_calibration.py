"""Calibration as a tool: every question, answered in all directions, and what is no question."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import PrivacyError
from pipeline.privacy import channel, curves, gdp
from pipeline.privacy.accounting import mu_of_pure
from pipeline.privacy.calibration import Answer, Name, Question, solve

NAMES: tuple[Name, ...] = get_args(Name)
GAUSSIAN = Question("gaussian", 1.0)
LAPLACE = Question("laplace", 1.0)
COUNT = Question("discrete-gaussian", 1.0, lattice=1.0)
LAPLACE_COUNT = Question("discrete-laplace", 1.0, lattice=1.0)

lengths = st.floats(1e-3, 1e3)
epsilons = st.floats(1e-3, 15.0)
deltas = st.floats(1e-12, 0.3)
counts = st.integers(1, 50)


def test_the_gaussian_mechanism_has_its_known_scale() -> None:
    """Balle and Wang 2018: epsilon 1, delta 1e-5, sensitivity 1."""
    answer = solve(GAUSSIAN, epsilon=1.0, delta=1e-5)
    assert answer.scale == pytest.approx(3.730631634, abs=1e-9)
    assert answer.mu == pytest.approx(1 / answer.scale, rel=1e-15)
    assert answer.how.startswith("exact")


def test_the_laplace_mechanism_has_its_known_scale() -> None:
    answer = solve(Question("laplace", 2.0), epsilon=0.5)
    assert (answer.scale, answer.epsilon, answer.delta) == (4.0, 0.5, 0.0)
    assert answer.mu == mu_of_pure(0.5)


@given(lengths, epsilons, deltas, counts, counts)
def test_gaussian_round_trips_return_in_all_three_directions(
    sensitivity: float, epsilon: float, delta: float, records: int, releases: int
) -> None:
    question = Question("gaussian", sensitivity, records=records, releases=releases)
    scale = solve(question, epsilon=epsilon, delta=delta).scale
    assert solve(question, scale=scale, delta=delta).epsilon == pytest.approx(epsilon, rel=1e-6)
    assert solve(question, scale=scale, epsilon=epsilon).delta == pytest.approx(delta, rel=1e-6)


@given(lengths, epsilons, counts, counts)
def test_laplace_round_trips_return_in_both_directions(
    sensitivity: float, epsilon: float, records: int, releases: int
) -> None:
    for question in (
        Question("laplace", sensitivity, records=records, releases=releases),
        Question("discrete-laplace", 3.0, records=records, releases=releases, lattice=1.0),
    ):
        scale = solve(question, epsilon=epsilon).scale
        assert solve(question, scale=scale).epsilon == pytest.approx(epsilon, rel=1e-12)


@pytest.mark.takes("sums over the lattice, for each example thrice; `make test-slow` has many")
@given(st.integers(1, 40), epsilons, deltas, st.integers(1, 5), st.sampled_from([0.25, 1.0, 3.0]))
def test_discrete_gaussian_round_trips_return_in_all_three_directions(
    steps: int, epsilon: float, delta: float, dimension: int, lattice: float
) -> None:
    question = Question("discrete-gaussian", steps * lattice, dimension, lattice=lattice)
    answer = solve(question, epsilon=epsilon, delta=delta)
    assert answer.scale == pytest.approx((answer.lattice_scale or 0) * lattice, rel=1e-15)
    back = solve(question, scale=answer.scale, delta=delta).epsilon
    # a tiny discrete sigma: many epsilons have nearly the same delta
    assert back <= epsilon * (1 + 1e-6)
    assert solve(question, scale=answer.scale, epsilon=epsilon).delta <= delta * (1 + 1e-6)
    less = solve(question, scale=answer.scale * (1 - 1e-6), epsilon=epsilon).delta
    assert less > delta * (1 - 1e-4)


def test_one_integer_on_a_lattice_has_the_exact_discrete_curve() -> None:
    answer = solve(replace(COUNT, sensitivity=3.0), epsilon=0.7, delta=1e-4)
    assert answer.lattice_scale is not None
    found = curves.discrete_gaussian_delta(answer.lattice_scale, 3, 0.7)
    assert found == pytest.approx(1e-4, rel=1e-9)
    assert answer.how.startswith("exact")


@pytest.mark.parametrize("more", [{"dimension": 4}, {"releases": 9}])
def test_vectors_and_several_releases_on_a_lattice_have_the_concentrated_bound(
    more: dict[str, int],
) -> None:
    question = replace(COUNT, **more)
    answer = solve(question, scale=5.0, epsilon=1.0)
    rho = more.get("releases", 1) / (2 * 5.0**2)
    assert answer.delta == curves.concentrated_delta(rho, 1.0)
    assert answer.how.startswith("bound")
    assert answer.delta >= solve(COUNT, scale=5.0, epsilon=1.0).delta


def test_a_group_is_as_far_apart_as_all_its_records() -> None:
    group = solve(replace(COUNT, records=6), epsilon=1.0, delta=1e-6)
    assert group.scale == solve(replace(COUNT, sensitivity=6.0), epsilon=1.0, delta=1e-6).scale
    for name in ("gaussian", "laplace"):
        question = Question(name, 1.0)  # type: ignore[arg-type]
        budget = {"epsilon": 1.0} if name == "laplace" else {"epsilon": 1.0, "delta": 1e-6}
        alone = solve(question, **budget).scale
        assert solve(replace(question, records=6), **budget).scale == pytest.approx(6 * alone)


def test_releases_add_up_as_squares_for_gaussian_and_plainly_for_laplace_noise() -> None:
    alone = solve(GAUSSIAN, epsilon=1.0, delta=1e-6).scale
    nine = solve(replace(GAUSSIAN, releases=9), epsilon=1.0, delta=1e-6)
    assert nine.scale == pytest.approx(3 * alone, rel=1e-12)
    assert solve(replace(LAPLACE, releases=9), epsilon=1.0).scale == pytest.approx(9.0)


@pytest.mark.parametrize("dimension", [1, 10, 5000])
@pytest.mark.parametrize(("records", "releases"), [(1, 1), (7, 1), (1, 16)])
def test_without_a_lattice_the_answer_is_the_channel_of_this_project(
    dimension: int, records: int, releases: int
) -> None:
    question = Question("discrete-gaussian", 2.5, dimension, records, releases)
    answer = solve(question, epsilon=1.0, delta=1e-6)
    assert answer.mu is not None
    part = channel.gaussian(2.5, math.sqrt(dimension), answer.mu / records / math.sqrt(releases))
    assert (answer.lattice, answer.lattice_scale) == (part.unit, part.noise.standard_deviation)
    # nearly the continuous mechanism's: rounding and the discrete law cost well under a percent
    smooth = solve(replace(question, mechanism="gaussian"), epsilon=1.0, delta=1e-6)
    assert 1 <= answer.scale / smooth.scale < 1.005
    assert answer.mu <= gdp.mu_of(1.0, 1e-6)
    pure = Question("discrete-laplace", 2.5, dimension, records, releases)
    answer = solve(pure, epsilon=1.0)
    exact = solve(replace(pure, mechanism="laplace"), epsilon=1.0).scale
    assert 1 <= answer.scale / exact < 1.005
    assert answer.lattice is not None
    assert answer.lattice_scale == pytest.approx(answer.scale / answer.lattice)


@given(epsilons, deltas, st.floats(1.0, 2.0), st.sampled_from(NAMES), st.booleans())
def test_a_larger_budget_never_asks_for_more_noise(
    epsilon: float, delta: float, factor: float, name: Name, chosen: bool
) -> None:
    question = Question(name, 2.0, lattice=1.0 if chosen and "discrete" in name else None)

    def scale(epsilon: float, delta: float) -> float:
        if question.gaussian:
            return solve(question, epsilon=epsilon, delta=delta).scale
        return solve(question, epsilon=epsilon).scale

    assert scale(epsilon * factor, delta) <= scale(epsilon, delta) * (1 + 1e-9)
    assert scale(epsilon, min(0.9, delta * factor)) <= scale(epsilon, delta) * (1 + 1e-9)


@given(st.sampled_from(NAMES), counts, counts, epsilons, deltas)
def test_more_records_and_more_releases_never_ask_for_less_noise(
    name: Name, records: int, releases: int, epsilon: float, delta: float
) -> None:
    def scale(question: Question) -> float:
        gaussian = {"delta": delta} if question.gaussian else {}
        return solve(question, epsilon=epsilon, **gaussian).scale

    question = Question(
        name, 2.0, 3, records, releases, lattice=1.0 if "discrete" in name else None
    )
    base = scale(question) * (1 - 1e-9)
    assert scale(replace(question, records=records + 1)) >= base
    assert scale(replace(question, releases=releases + 1)) >= base
    assert scale(replace(question, sensitivity=3.0)) >= base


# --- refusals --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("sensitivity", (0.0, -1.0, math.nan, math.inf, 1e-101, 1e101)),
        ("lattice", (0.0, -1.0, math.nan, math.inf)),
        ("dimension", (0, -3, 10**10)),
        ("records", (0, -3, 10**400)),
        ("releases", (0, -3, 10**10)),
        ("mechanism", ("exponential", "")),
    ],
)
def test_a_question_out_of_range_is_refused_by_name(field: str, values: tuple[object, ...]) -> None:
    for value in values:
        with pytest.raises(PrivacyError, match=f"^{field} must"):
            replace(COUNT, **{field: value})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("sensitivity", "lattice", "words"),
    [
        (1.0, 2.0, "between 1 and 2"),
        (2.0**41, 1.0, "between 1 and 2"),
        (1.5, 1.0, "whole number of lattice units"),
        (1.0, 0.3, "whole number of lattice units"),
    ],
)
def test_a_lattice_that_does_not_fit_the_sensitivity_is_refused(
    sensitivity: float, lattice: float, words: str
) -> None:
    for name in ("discrete-gaussian", "discrete-laplace"):
        with pytest.raises(PrivacyError, match=words):
            Question(name, sensitivity, lattice=lattice)  # type: ignore[arg-type]


def test_a_vector_s_length_need_not_be_a_whole_number_of_lattice_units() -> None:
    assert Question("discrete-gaussian", math.sqrt(2), 2, lattice=1.0).lattice == 1.0
    assert Question("discrete-gaussian", 0.3, lattice=0.1).lattice == 0.1


@pytest.mark.parametrize("name", ["gaussian", "laplace"])
def test_a_continuous_law_has_no_lattice(name: Name) -> None:
    with pytest.raises(PrivacyError, match="discrete mechanisms"):
        Question(name, 1.0, lattice=1.0)


@pytest.mark.parametrize(
    "given_",
    [{}, {"epsilon": 1.0}, {"scale": 1.0}, {"epsilon": 1.0, "delta": 0.1, "scale": 1.0}],
)
@pytest.mark.parametrize("question", [GAUSSIAN, COUNT])
def test_exactly_one_of_three_must_be_missing(question: Question, given_: dict[str, float]) -> None:
    with pytest.raises(PrivacyError, match="exactly one of epsilon, delta, scale"):
        solve(question, **given_)


@pytest.mark.parametrize("given_", [{}, {"epsilon": 1.0, "scale": 1.0}])
@pytest.mark.parametrize("question", [LAPLACE, LAPLACE_COUNT])
def test_exactly_one_of_two_must_be_missing_for_laplace_noise(
    question: Question, given_: dict[str, float]
) -> None:
    with pytest.raises(PrivacyError, match="exactly one of epsilon, scale"):
        solve(question, **given_)


@pytest.mark.parametrize("delta", [1e-6, -1.0, math.nan, 1.0])
def test_laplace_noise_has_no_delta(delta: float) -> None:
    with pytest.raises(PrivacyError, match="delta"):
        solve(LAPLACE, epsilon=1.0, delta=delta)
    assert solve(LAPLACE, epsilon=1.0, delta=0.0).delta == 0.0


BAD = [
    *(("epsilon", value) for value in (0.0, -1.0, math.nan, math.inf, 1e-13, 1e5)),
    *(("delta", value) for value in (0.0, -1.0, 1.0, 2.0, math.nan, math.inf)),
    *(("scale", value) for value in (0.0, -1.0, math.nan, math.inf, 1e-101, 1e101)),
]


@pytest.mark.parametrize(("name", "value"), BAD)
def test_a_budget_or_scale_out_of_range_is_refused_by_name(name: str, value: float) -> None:
    rest = {"epsilon": 1.0, "delta": 1e-6, "scale": 1.0}
    for question in (GAUSSIAN, COUNT):
        for missing in set(rest) - {name}:
            given_ = {**rest, name: value}
            del given_[missing]
            with pytest.raises(PrivacyError, match=f"^{name} must"):
                solve(question, **given_)
    if name != "delta":
        for question in (LAPLACE, LAPLACE_COUNT):
            with pytest.raises(PrivacyError, match=f"^{name} must"):
                solve(question, **{name: value})


@pytest.mark.parametrize("name", ["discrete-gaussian", "discrete-laplace"])
def test_noise_without_a_lattice_has_no_epsilon(name: Name) -> None:
    budget = {"delta": 1e-6} if name == "discrete-gaussian" else {}
    with pytest.raises(PrivacyError, match="lattice: it must be given"):
        solve(Question(name, 1.0), scale=2.0, **budget)


def test_a_budget_below_what_discrete_noise_can_promise_is_refused() -> None:
    for epsilon, delta in ((1.0, 1e-33), (80.0, 1e-6), (1e-10, 1e-6)):
        with pytest.raises(PrivacyError, match="below what discrete noise can promise"):
            solve(Question("discrete-gaussian", 1.0, 1_000_000), epsilon=epsilon, delta=delta)


@pytest.mark.parametrize("sigma", [2.0**-11, 2.0**81])
def test_a_scale_far_from_its_lattice_is_refused(sigma: float) -> None:
    with pytest.raises(PrivacyError, match=r"between 2\^-10 and 2\^80 lattice units"):
        solve(COUNT, scale=sigma, delta=1e-6)


def test_noise_that_keeps_nothing_is_refused_and_noise_beyond_all_floats_keeps_some_delta() -> None:
    with pytest.raises(PrivacyError, match="any finite epsilon"):
        solve(Question("gaussian", 1e100), scale=1e-100, delta=1e-6)
    answer = solve(Question("gaussian", 1.0), scale=1e9, epsilon=1.0)
    assert answer.delta == 1e-300


EXTREME = [
    (question, budget)
    for question in (
        *(Question(name, s) for name in NAMES for s in (1e-100, 1.0, 1e100)),
        *(Question(name, 2.0**39 * u, 1, 10**9, 10**9) for name in NAMES for u in (1e-50, 1e50)),
        *(Question(n, 2.0**39, lattice=1.0) for n in NAMES if "discrete" in n),
        *(Question(n, 1e-90, 3, lattice=1e-100) for n in NAMES if "discrete" in n),
        *(Question(n, 1.0, 10**9, lattice=1.0) for n in NAMES if "discrete" in n),
        *(Question(n, 1.0, 1, 10**9, 10**9, lattice=1.0) for n in NAMES if "discrete" in n),
    )
    for budget in (
        {"epsilon": 1e-12, "delta": 1e-300},
        {"epsilon": 1e4, "delta": 0.999999},
        {"epsilon": 800.0, "scale": 1e-3},
        {"epsilon": 1e-12, "scale": 1e100},
        {"delta": 1e-300, "scale": 1e-100},
        {"delta": 0.5, "scale": 1e3},
        {"delta": 1e-15, "scale": 1e100},
    )
]


@pytest.mark.parametrize(("question", "budget"), EXTREME)
def test_extreme_questions_have_finite_answers_or_a_reason(
    question: Question, budget: dict[str, float]
) -> None:
    if not question.gaussian:
        budget = {k: v for k, v in budget.items() if k != "delta"}
        budget = budget if len(budget) == 1 else {"epsilon": budget["epsilon"]}
    answer: Answer | None = None
    reason = ""
    try:
        answer = solve(question, **budget)
    except PrivacyError as error:
        reason = str(error)
    if answer is None:
        assert len(reason) > 20
        return
    numbers = (answer.scale, answer.epsilon, answer.delta, answer.mu or 0.0)
    assert all(map(math.isfinite, numbers))
    assert answer.scale > 0
    assert answer.epsilon >= 0
    assert 0 <= answer.delta <= 1
