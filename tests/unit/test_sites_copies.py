"""Sites that send noisy copies of their fits: noise, budget, estimates and intervals."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property

import mpmath
import numpy as np
import pytest
from scipy.special import ndtr, ndtri

from benchmarks.papers.noisy_runs import alpha, assemble
from pipeline.errors import ConfigError, NumericError, PrivacyError
from pipeline.methods import revision_of, server_of, task_of
from pipeline.methods.noisy_copies import client as copies_task
from pipeline.methods.noisy_copies import client as drawing
from pipeline.methods.noisy_copies import client as site_fit
from pipeline.methods.noisy_copies import estimate as copies_estimate
from pipeline.methods.noisy_copies.accounting import (
    MACHINE,
    Promise,
    least_scale,
    of_linear,
    of_logistic,
)
from pipeline.methods.noisy_copies.client import CopiedPart, CopiesTask, Law, linear_fit
from pipeline.methods.noisy_copies.estimate import FARTHEST as LONGEST
from pipeline.methods.noisy_copies.estimate import lengthened
from pipeline.methods.noisy_copies.infembler import Assembled, Copies, covariance, step, stretched
from pipeline.methods.sites.report import largest_move
from pipeline.methods.sites.state import FIRST, Shape
from pipeline.privacy import accounting as gdp
from pipeline.privacy.accounting import FARTHEST, normal_numbers, total_epsilon
from pipeline.privacy.events import Gaussian, Renyi, TotalVariation, compose, group, parts
from pipeline.privacy.randomness import SecureStream
from pipeline.records.encoder import Arrays
from pipeline.release.model import round_model
from pipeline.stream.in_process import OfflineRun
from pipeline.study_file.load import parse_study
from pipeline.types import Vector
from tests.attacks.copies import EPSILON, FAULTS, drawn, law_of, measure_copies
from tests.builders import SeededStream
from tests.sites import run, study_text

COPIES = "noisy-copies"
ONE = np.ones(1, dtype=np.int64)


def task(method: str = "", **settings: object) -> CopiesTask:
    given = {"p": 3, "loss": "logistic", "records": 100, "epsilon": 4.0} | settings
    made = task_of(parse_study(study_text(method, kind=COPIES, **given)))
    assert isinstance(made, CopiesTask)
    return made


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"neighbours": "replace-one"},
        {"user_records": 3},
        {"loss": "linear", "noise_scale": 0.2},
        {"norm_bound": 1.2},
    ],
)
def test_the_ledger_counts_what_the_study_promises(settings: dict[str, object]) -> None:
    made = task(**settings)
    budget, delta = made.budget, made.promise.delta
    event = budget.of_unit(budget.event)
    curve, distance = sorted((one for one, _ in parts(event)), key=lambda one: type(one).__name__)
    assert isinstance(distance, TotalVariation)
    # half of delta is left to floating point, which the ledger counts as well
    assert total_epsilon([curve], delta / 2) == pytest.approx(4.0, rel=1e-9)
    assert (1 + math.exp(4.0)) * distance.distance == pytest.approx(made.floating_delta)
    assert made.floating_delta <= delta / 2
    assert total_epsilon([curve], delta) < total_epsilon([event], delta) <= 4.0
    # two such studies compose below the sum of their epsilons, and above one of them
    both = total_epsilon([event] * 2, delta)
    assert 4.0 < total_epsilon([curve] * 2, delta) < both < 8.0
    left = delta - 2 * (1 + math.exp(both)) * distance.distance
    assert total_epsilon([curve] * 2, left) == pytest.approx(both, rel=1e-6)
    assert budget.guarantee.mu is None
    assert "floating point" in budget.guarantee.guarantee


def test_a_scale_or_a_ridge_below_the_budget_s_is_refused() -> None:
    least = task()
    for key, value in (("psi", 0.9 * least.scale), ("site_ridge", 0.9 * least.least_ridge)):
        with pytest.raises(PrivacyError, match=f"^estimator.method.{key}: "):
            task(f"{key} = {value}")
    assert task(f"psi = {2 * least.scale}").scale == 2 * least.scale


def test_residuals_too_small_for_any_noise_are_refused_by_their_own_key() -> None:
    with pytest.raises(PrivacyError, match=r"^estimator.noise_scale: 1e-30 is so small"):
        task(loss="linear", noise_scale=1e-30)


@pytest.mark.parametrize("key", ["psi", "site_ridge"])
def test_what_is_no_scale_or_ridge_is_told_what_one_is(key: str) -> None:
    wrong = "it must be a number, more than 0"
    said = rf"estimator.method.{key}: {wrong}; allowed: .*default: .*; example"
    for value in ("0", "nan"):
        with pytest.raises(ConfigError, match=said):
            task(f"{key} = {value}")


@pytest.mark.parametrize("settings", [{"epsilon": 0.001}, {"user_records": 100}])
def test_a_budget_that_no_ridge_keeps_is_refused(settings: dict[str, object]) -> None:
    with pytest.raises(PrivacyError, match=r"^privacy.epsilon: "):
        task(**settings)


def test_a_fit_far_from_its_model_ends_at_its_minimiser() -> None:
    made, count = task(records=100_000, epsilon=2.0), 100_000
    features = np.random.default_rng(3).uniform(-1, 1, (count, 3))
    responses = np.sign(features[:, 0])
    design = np.c_[np.ones(count), features]
    # the values that steps are compared by are about 1e9 there
    model = round_model(2, np.full(4, 4096.0), (1.0, 1.0))
    part = made.query(Arrays(features, responses), model).parts["mean"]
    assert isinstance(part, CopiedPart)
    theta, information = part.law.theta, part.law.information
    slope = made.loss.slope(design @ (model.coefficients + theta), responses)
    pull = design.T @ slope + made.ridge * theta
    error = math.sqrt(pull @ np.linalg.solve(information, pull))
    assert error < 1e-7 * made.change(made.ridge).shift


def test_a_fit_that_does_not_end_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(site_fit, "STEPS", 1)
    window = Arrays(np.ones((1, 3)), np.ones(1))
    with pytest.raises(PrivacyError, match=r"^estimator.method.site_ridge: "):
        task().query(window, round_model(2, np.full(4, -400.0), (1.0, 1.0)))


def test_noise_that_a_version_derives_otherwise_is_another_revision(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = task().revision
    with monkeypatch.context() as patch:
        patch.setattr(copies_task, "FLOATING", 0.4)
        assert task().revision != before
    with monkeypatch.context() as patch:
        patch.setattr(copies_task, "RIDGES", 2.1)
        assert task().revision != before
    found = copies_task.copies.least_scale
    # another libm finds another last digit
    monkeypatch.setattr(copies_task.copies, "least_scale", lambda *a: found(*a) * (1 + 1e-12))
    assert task().revision == before


def test_the_divergence_of_two_laws_is_that_of_their_densities() -> None:
    one = Law(np.array([0.0]), np.array([[1.0]]), 1.0, 1)
    other = Law(np.array([0.7]), np.array([[1.3]]), 1.0, 1)
    x = np.linspace(-18, 18, 200_001)
    densities = [
        np.sqrt(law.information[0, 0] / (2 * np.pi))
        * np.exp(-law.information[0, 0] * (x - law.theta[0]) ** 2 / 2)
        for law in (one, other)
    ]
    order = 2.5
    whole = np.sum(densities[0] ** order * densities[1] ** (1 - order)) * (x[1] - x[0])
    [found] = one.divergences(other, np.array([order]))
    assert found == pytest.approx(math.log(whole) / (order - 1), rel=1e-6)


@pytest.mark.parametrize("count", [0, 2, 30])
@pytest.mark.parametrize("loss", ["logistic", "linear"])
def test_few_and_separated_records_have_a_fit(loss: str, count: int) -> None:
    made = task(loss=loss, noise_scale=0.2 if loss == "linear" else None)
    features = np.linspace(-1, 1, count)[:, None] * np.ones(3)
    window = Arrays(features, np.where(features[:, 0] > 0, 1.0, -1.0))
    part = made.query(window, made.first_model).parts["mean"]
    assert isinstance(part, CopiedPart)
    assert np.linalg.eigvalsh(part.law.information)[0] >= made.ridge * (1 - 1e-12)
    assert np.isfinite(part.law.theta).all()
    assert (np.linalg.norm(part.law.theta) == 0) == (count == 0)


def test_a_linear_fit_stays_in_its_ball() -> None:
    rng = np.random.default_rng(1)
    design = rng.normal(size=(50, 3))
    responses = design @ np.array([3.0, 0.0, -4.0])
    theta, _ = linear_fit(design, responses, 0.1, 1.0, 2.0)
    assert np.linalg.norm(theta) == pytest.approx(2.0, rel=1e-12)
    # the best of the ball: what is left pulls straight outwards
    pull = design.T @ (responses - design @ theta) - 0.1 * theta
    assert pull / np.linalg.norm(pull) == pytest.approx(theta / 2.0, abs=1e-9)


@pytest.mark.parametrize(("bound", "status"), [(0.3, "warming"), (0.6, "ready")])
def test_fits_at_the_bound_of_their_norm_give_no_intervals(bound: float, status: str) -> None:
    # the truth has a norm of 0.45
    method = f"coefficient_bound = {bound}"
    given = {"kind": COPIES, "method": method, "epsilon": 4.0, "noise_scale": 0.15, "windows": 4}
    for seed in range(3):
        found = run("linear", seed=seed, **given)  # type: ignore[arg-type]
        assert found.status == status
        named = "estimator.method.coefficient_bound = 0.3" in found.reason
        assert named == (status == "warming")


@pytest.mark.parametrize("forged", [0.01, 0.0, -1.0, 2.4, 100.0, 1e6])
def test_a_scatter_that_is_none_too_sharp_or_wider_than_any_is_left_out(forged: float) -> None:
    made = task(loss="linear", noise_scale=0.2, p=2)
    server, shape, rng = server_of(made), Shape(3, 0, moving=False), np.random.default_rng(3)
    mean, scatter = made.layout.later
    numbers = np.zeros((8, shape.points - FIRST))
    for site in range(8):
        root = rng.normal(size=(3, 39))
        spread = (root @ root.T) * made.scale / (made.ridge + 100) * (forged if site == 0 else 1)
        numbers[site, :3] = rng.normal(0, 0.01, 3) * 2.0**-mean.exponent
        numbers[site, 3:] = spread[np.triu_indices(3)] * 2.0**-scatter.exponent
    state = server.empty()
    ids = np.arange(1, 17, dtype=np.uint64).reshape(8, 2)
    rows = shape.rows_of(np.zeros((8, 3), dtype=np.int64), numbers.astype(np.int64), ONE)
    state.fold(ids, np.zeros(8, dtype=np.int64), rows)
    found = server.estimate([(1.0, state)], [0])
    others = server.empty()
    others.fold(ids[1:], np.zeros(7, dtype=np.int64), rows[1:])
    alone = server.estimate([(1.0, others)], [0])
    assert found.details["flagged"] == [ids[0].tobytes().hex()]
    assert np.isfinite(found.coefficients).all()
    # one that is wider than a ridge alone leaves once kept intervals away for ever
    assert found.reason == alone.reason


def test_a_median_of_scatters_that_is_none_ends_no_estimate() -> None:
    ways = np.array([[1.0, 1.0, -1.0], [1.0, -1.0, 1.0], [-1.0, 1.0, 1.0]])
    scatters = np.tile([np.outer(way, way) + 0.01 * np.eye(3) for way in ways], (3, 1, 1))
    assert np.linalg.eigvalsh(np.median(scatters, axis=0))[0] < -0.9
    ones = np.ones(9)
    copies = Copies(ones, 39 * ones, ones, ones / 40, np.zeros((9, 3)), 39 * scatters, 1e-3)
    assert copies_estimate._plausible(copies).all()


def test_matrices_that_have_no_inverse_are_no_estimate_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever publishes waits then: anything but a NumericError ends each worker in turn."""
    made = parse_study(study_text(kind=COPIES, p=3, loss="logistic", records=10, epsilon=4.0))
    stream = OfflineRun(task_of(made))
    stream.add("site", Arrays(np.zeros((10, 3)), np.ones(10)))
    singular = np.zeros((2, 2))
    monkeypatch.setattr(copies_estimate, "settled", lambda *_: np.linalg.inv(singular))
    with pytest.raises(NumericError, match="it needs more releases"):
        stream.estimate(0.0)


@pytest.mark.parametrize("ridge", [0.0, 0.01])
def test_a_ridge_of_the_study_draws_as_in_a_fit_of_all_records(ridge: float) -> None:
    """Sites of unequal features: their posteriors are drawn to a common information."""
    widths = np.array([[1.0, 1.0, 1.0], [0.2, 1.0, 1.0], [1.0, 0.2, 0.4], [0.5, 0.3, 1.0]])
    truth, errors = np.array([0.1, 0.3, -0.25, 0.2]), []
    # the mean x x' of all records
    rows = np.diag([1.0, *np.mean(widths**2, axis=0) / 3])
    penalised = np.linalg.solve(rows + ridge * np.diag([0.0, 1.0, 1.0, 1.0]), rows @ truth)
    for seed in range(4):
        made = task(
            loss="linear", records=20_000, epsilon=8.0, noise_scale=0.15, ridge=ridge, seed=seed,
            mechanism="insecure-simulation",
        )  # fmt: skip
        run, rng = OfflineRun(made), np.random.default_rng(seed)
        for site in range(8):
            features = rng.uniform(-1, 1, (20_000, 3)) * widths[site % 4]
            responses = truth[0] + features @ truth[1:] + 0.15 * rng.standard_normal(20_000)
            window = Arrays(features, np.clip(responses, -1.0, 1.0))
            run.fold(f"site-{site}", run.release(f"site-{site}", window, run.model))
        estimate, _ = run.estimate(0.0)
        assert estimate.covariance is not None
        errors.append((estimate.coefficients - penalised) / np.sqrt(np.diag(estimate.covariance)))
    # once 5 standard errors; four of a mean of four streams, 1 in 4,000
    assert np.abs(np.mean(errors, axis=0)).max() < 4 / math.sqrt(4)


def test_one_site_with_nearly_all_records_is_bounded() -> None:
    assert largest_move(task()) == largest_move(task("site_ridge = 900.0"))


@pytest.mark.takes("an attack needs many draws")
def test_the_best_attack_stays_below_the_claim_and_sees_faults() -> None:
    for loss in ("linear", "logistic"):
        assert measure_copies(loss, 2000, SeededStream).events < EPSILON
    for fault in FAULTS:
        with fault.plant():
            assert measure_copies(fault.loss, 4000, SeededStream).events > EPSILON, fault.name


def test_a_release_is_one_mean_and_one_scatter_of_one_law() -> None:
    made, rng = task(), np.random.default_rng(1)
    parts_of = made.query(
        Arrays(rng.uniform(-1, 1, (100, 3)), np.ones(100)), made.first_model
    ).parts
    mean, scatter = parts_of["mean"], parts_of["scatter"]
    assert isinstance(mean, CopiedPart)
    assert isinstance(scatter, CopiedPart)
    assert (len(parts_of), mean.scatter, scatter.scatter) == (2, False, True)
    assert mean.law is scatter.law


#: How far inside a limit estimates are that are shown, in standard errors.
CLEAR = np.linspace(1e-3, 10, 800)
#: Shares of streams that are shown, and of a coefficient's variance along what decides it.
SHOWN, ALONG = (1 / 160, 0.04, 0.1, 0.4, 0.84, 0.98, 0.9999), (1.0, 0.5, 0.25, 0.1, 0.0)


def coverage(shown: float, along: float, longer: Callable[[float], float], level: float) -> float:
    """Return how many of the intervals that are shown hold the truth, by quadrature.

    Of an estimate that has `along` of its variance in a normal number with variance 1 that is
    shown below the limit, and the rest apart from it.
    """
    limit, usual = float(ndtri(shown)), -float(ndtri((1 - level) / 2))
    off = limit - CLEAR
    weights = np.exp(-(off**2) / 2)
    half = usual * np.sqrt(1 - along + along * np.array([longer(clear) for clear in CLEAR]) ** 2)
    if along == 1:
        held = (np.abs(off) <= half).astype(float)
    else:
        middle, deviation = np.sqrt(along) * off, np.sqrt(1 - along)
        held = ndtr((half - middle) / deviation) - ndtr((-half - middle) / deviation)
    return float(weights @ held / weights.sum())


@pytest.mark.parametrize("level", [0.8, 0.95])
def test_whatever_share_is_shown_intervals_hold_what_they_say(level: float) -> None:
    def longer(clear: float) -> float:
        return lengthened(clear, level)

    # from 93 to 97.5 % of 95 %
    miss = 1 - level
    for shown in SHOWN:
        for along in ALONG:
            found = coverage(shown, along, longer, level)
            assert 1 - 1.4 * miss <= found <= 1 - 0.5 * miss, (shown, along)
    # what these intervals would hold if they were no longer
    assert coverage(0.1, 1.0, lambda clear: 1.0, level) < level - 0.1 * level


def test_far_from_a_limit_nothing_is_longer_and_near_it_nothing_is_without_end() -> None:
    factors = [lengthened(clear, 0.95) for clear in (1e-9, 0.5, 1.0, 2.0, 4.0, 1e6)]
    assert factors == sorted(factors, reverse=True)
    assert factors[0] == pytest.approx(LONGEST / 1.959964, rel=1e-6)
    assert factors[-1] == 1.0


RNG = np.random.default_rng(20)


class Words(SecureStream):
    """A stream of given words."""

    def __init__(self, words: np.ndarray) -> None:
        super().__init__()
        self.words = words

    def uint64(self, count: int) -> np.ndarray:
        return self.words[:count]


def exact_normals(words: np.ndarray) -> list[mpmath.mpf]:
    """Return the quantiles of words with all digits."""
    found = []
    for word in words.tolist():
        tail = mpmath.ldexp(mpmath.mpf(word >> 1) + mpmath.mpf(0.5), -64)
        z = mpmath.sqrt(2) * mpmath.erfinv(1 - 2 * tail)
        found.append(-z if word & 1 else z)
    return found


def hard_words(count: int) -> np.ndarray:
    """Return random words, half of them of tails of all lengths."""
    words = RNG.integers(0, 2**64, count, dtype=np.uint64)
    words[::2] >>= RNG.integers(0, 63, len(words[::2]), dtype=np.uint64)
    return words


def test_quantiles_are_as_exact_as_the_proof_takes_them() -> None:
    words = np.r_[hard_words(300), np.array([0, 1, 2**63 - 1, 2**64 - 2, 2**64 - 1], np.uint64)]
    with mpmath.workdps(60):
        errors = [
            abs(mpmath.mpf(z) - exact) / max(abs(exact), 1)
            for z, exact in zip(
                normal_numbers(len(words), Words(words)).tolist(), exact_normals(words), strict=True
            )
        ]
    assert max(errors) < 8 * MACHINE


def errors_of(part: CopiedPart, words: np.ndarray) -> float:
    """Return how far what is drawn of words is from what exact arithmetic makes of them."""
    law = part.law
    size, columns = len(law.theta), law.copies - 1 if part.scatter else 1
    found = np.ldexp(part.noised(Words(words)).astype(float), part.exponent)
    with mpmath.workdps(40):
        z = mpmath.matrix(size, columns)
        for place, number in enumerate(exact_normals(words[: size * columns])):
            z[divmod(place, columns)] = number
        moved = mpmath.matrix(law.root.tolist()) * z
        if part.scatter:
            square = moved * moved.T
            exact = [square[i, j] for i in range(size) for j in range(i, size)]
        else:
            scaled = moved / mpmath.sqrt(law.copies)
            exact = [mpmath.mpf(theta) + scaled[i] for i, theta in enumerate(law.theta)]
        return float(max(abs(a - b) for a, b in zip(found.tolist(), exact, strict=True)))


def coarse(count: int, stream: SecureStream, *, simulated: bool = False) -> Vector:
    return normal_numbers(count, stream, simulated=simulated).astype(np.float32).astype(float)


@pytest.mark.parametrize("sound", [True, False], ids=["sound", "single-precision"])
def test_what_is_drawn_is_as_near_to_exact_arithmetic_as_is_paid_for(
    monkeypatch: pytest.MonkeyPatch, *, sound: bool
) -> None:
    if not sound:
        monkeypatch.setattr(drawing, "normal_numbers", coarse)
    size, copies = 3, 12
    root = RNG.normal(size=(size, size))
    law = Law(np.array([0.5, -1.0, 0.25]), root @ root.T * 50 + np.eye(size), 4.0, copies)
    spread = 4.0
    moved = (size + 8) * MACHINE * math.sqrt(size * spread / copies) * FARTHEST + MACHINE * 2
    bent = (copies + 2 * size + 24) * MACHINE * (math.sqrt(size * copies) + 16) ** 2 * spread
    # so fine a lattice that rounding to it hides nothing
    exponent = -46
    for scatter, most in ((False, moved), (True, bent)):
        part = CopiedPart(law, scatter, exponent, 2.0**62, False)
        found = max(errors_of(part, hard_words(size * copies)) for _ in range(8))
        assert (found < most + 2.0**exponent) == sound


def reached(**settings: object) -> CopiesTask:
    """Return a task whose bounds one record reaches: its fit stays far inside its ball."""
    method = "copies = 20, coefficient_bound = 0.002, site_ridge = 3000.0"
    given = {"p": 1, "records": 2, "loss": "linear", "epsilon": 4.0, "noise_scale": 1.0}
    study = parse_study(study_text(method, kind="noisy-copies", **(given | settings)))
    return CopiesTask(study, revision_of(study))


WITH, WITHOUT = Arrays(np.ones((1, 1)), np.ones(1)), Arrays(np.zeros((0, 1)), np.zeros(0))


@pytest.mark.parametrize(("scale", "below"), [(1.0, True), (0.9, False)])
def test_a_scale_that_is_a_tenth_too_small_costs_more_than_the_ledger_says(
    scale: float, *, below: bool
) -> None:
    made = reached()
    laws = [law_of(made, window) for window in (WITH, WITHOUT)]
    one, other = (replace(law, scale=scale * law.scale) for law in laws)
    [curve] = [one for one, _ in parts(made.budget.event) if isinstance(one, Renyi)]
    orders = np.array(curve.orders)
    costs = np.maximum(one.divergences(other, orders), other.divergences(one, orders))
    assert (costs <= np.array(curve.epsilons)).all() == below


@pytest.mark.parametrize(("scale", "seen"), [(1.0, False), (0.9, True)])
@pytest.mark.takes("a tenth of a variance needs thousands of draws")
def test_what_is_drawn_has_the_scale_that_is_charged(
    monkeypatch: pytest.MonkeyPatch, scale: float, *, seen: bool
) -> None:
    made, draws = reached(), 4000
    root = Law.root.func  # type: ignore[attr-defined]
    shrunk = cached_property(lambda law: math.sqrt(scale) * root(law))
    shrunk.__set_name__(Law, "root")
    monkeypatch.setattr(Law, "root", shrunk)
    information = made.ridge * np.eye(2) + np.ones((2, 2))
    variance = made.scale * np.linalg.inv(information)
    means, scatters = drawn(made, WITH, draws, SeededStream(3))
    centre = np.linalg.solve(information, np.ones(2))
    # per coordinate: a mean chi-square with `draws` degrees, and one with K - 1 times as many
    of_means = np.mean((means - centre) ** 2, axis=0) / np.diag(variance) * made.copies
    diagonal = np.arange(2)
    of_scatters = scatters[:, diagonal, diagonal].mean(axis=0) / np.diag(variance)
    # what rounding adds to the first, at most: a 192nd
    errors = [
        np.abs(of_means - 1).max() / math.sqrt(2 / draws) > 4 + math.sqrt(draws / 2) / 192,
        np.abs(of_scatters / (made.copies - 1) - 1).max()
        > 4 * math.sqrt(2 / (draws * (made.copies - 1))),
    ]
    assert errors == [seen, seen]


def test_what_a_distance_costs_is_counted() -> None:
    """A release that shows a record once in 1 / T times is at a distance of T from a sound one."""
    delta, law, distance = 1e-6, Gaussian(0.5), TotalVariation(4e-8)
    for times in (1, 3):
        event = compose({compose([law, distance]): times})
        epsilon = total_epsilon([event], delta)
        shown = 1 - (1 - distance.distance) ** times
        mu = math.sqrt(times) * law.mu

        def spent(at: float, shown: float = shown, mu: float = mu) -> float:
            return shown + (1 - shown) * gdp.delta_of(mu, at)

        assert spent(epsilon) <= delta < spent(total_epsilon([compose({law: times})], delta))
    assert total_epsilon([compose({distance: 25})], delta) == math.inf
    assert total_epsilon([distance], 0.0) == math.inf
    assert total_epsilon([distance], delta) == 0
    assert group(distance, 3) == TotalVariation(3 * distance.distance)
    assert group(TotalVariation(0.5), 3) == TotalVariation(1.0)


#: Reference values have ten digits.
DIGITS = 1e-9
CENTRE = 100.0, np.array([1.0, -0.5]), np.array([[50.0, 10.0], [10.0, 40.0]])
SITES = Copies(
    records=np.array([120.0, 80.0]),
    degrees=np.array([19.0, 29.0]),
    scales=np.array([10.0, 12.0]),
    noise=np.array([10.0, 12.0]) / np.array([20.0, 30.0]),
    means=np.array([[0.8, -0.3], [1.4, -0.9]]),
    scatters=np.array([[[4.0, -1.0], [-1.0, 6.0]], [[9.0, 2.0], [2.0, 5.0]]]),
)


def test_the_paper_s_calibration() -> None:
    found = [alpha(*one) for one in ((4, 1 / 160), (1, 1e-5))]
    assert found == pytest.approx([0.5777613700, 0.1002843434], abs=DIGITS)
    given = ((1, 1e-5), (4, 1 / 160), (8, 1e-5))
    assert [1 / gdp.mu_of(*one) for one in given] == pytest.approx(
        [3.730631635, 0.702362014, 0.600229072], abs=DIGITS
    )


def test_a_public_scale() -> None:
    promise = Promise(4, 1e-5)
    linear, logistic = of_linear(1.0, 3.0, 16.0), of_logistic(1.0, 32.0)
    assert least_scale(linear, 8, 40, promise) == pytest.approx(48.76285759, rel=DIGITS)
    assert least_scale(logistic, 8, 40, promise) == pytest.approx(2.978774076, rel=DIGITS)
    # a smaller ridge than the copies allow
    assert least_scale(of_linear(1.0, 3.0, 1.0), 8, 40, promise) == math.inf


def test_infembler_with_central_records() -> None:
    found = assemble(SITES, *CENTRE, tolerance=1e-13)
    assert found.rounds == 45
    assert found.theta == pytest.approx([1.0375825276, -0.5534650665], abs=DIGITS)
    assert found.information[np.triu_indices(2)] == pytest.approx(
        [0.4660753311, 0.0800097364, 0.4000867668], abs=DIGITS
    )
    inverse = np.linalg.inv(found.whole)
    errors = np.sqrt(np.diag(inverse))
    assert errors == pytest.approx([0.0960037022, 0.1040192504], abs=DIGITS)
    sandwich = covariance(SITES, found)[0] + inverse @ CENTRE[2] @ inverse.T
    assert np.sqrt(np.diag(sandwich)) == pytest.approx([0.0962001625, 0.1025732905], abs=DIGITS)
    one = assemble(SITES, *CENTRE, tolerance=math.inf)
    assert one.theta == pytest.approx([1.0365254647, -0.5518385739], abs=DIGITS)


def test_infembler_without_central_records_and_stretched() -> None:
    one = np.eye(2)
    found = quick = Assembled(SITES.means.mean(axis=0), one, one, SITES.scatters)
    for _ in range(300):
        found = step(SITES, found)
    assert found.theta == pytest.approx([1.0692703735, -0.5927073749], abs=DIGITS)
    for _ in range(12):
        quick = stretched(SITES, quick, step(SITES, quick))
    assert quick.theta == pytest.approx(found.theta, abs=DIGITS)
