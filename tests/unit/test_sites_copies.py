"""Noisy copies of sites' fits: what they cost, how they are drawn, and what is made of them."""

from __future__ import annotations

import math
import time

import numpy as np
import pytest

from pipeline.errors import ConfigError, NumericError, PrivacyError
from pipeline.linalg import packed_indices
from pipeline.methods import revision_of, server_of, task_of
from pipeline.methods.noisy_copies import client as copies_task
from pipeline.methods.noisy_copies import client as site_fit
from pipeline.methods.noisy_copies import estimate as copies_estimate
from pipeline.methods.noisy_copies.client import CopiedPart, CopiesTask, Law, linear_fit
from pipeline.methods.noisy_copies.infembler import Copies
from pipeline.methods.sites.report import largest_move
from pipeline.methods.sites.state import FIRST, Shape
from pipeline.privacy.accounting import FARTHEST, normal_numbers, total_epsilon
from pipeline.privacy.events import TotalVariation, parts
from pipeline.privacy.randomness import SecureStream
from pipeline.records.encoder import Arrays
from pipeline.release.model import round_model
from pipeline.stream.in_process import OfflineRun
from pipeline.study_file.load import parse_study
from tests.attacks.copies import EPSILON, FAULTS, measure_copies
from tests.builders import SeededStream
from tests.sites import name_of, run, study_text

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


def test_what_clients_draw_is_part_of_the_revision() -> None:
    one, other = (
        revision_of(parse_study(study_text(text, kind=COPIES, p=3, loss="logistic")))
        for text in ("", "copies = 41")
    )
    assert one != other


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


def test_normal_numbers_have_their_law() -> None:
    drawn = normal_numbers(200_000, SeededStream(1))
    # five Monte Carlo errors of each moment
    for power, moment, spread in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)):
        assert abs(np.mean(drawn**power) - moment) < 5 * math.sqrt(spread / len(drawn))
    assert np.abs(drawn).max() < FARTHEST
    with pytest.raises(PrivacyError):
        normal_numbers(3, SecureStream(), simulated=True)


def test_mean_and_scatter_are_drawn_with_the_law_of_copies() -> None:
    information = np.array([[4.0, 1.0], [1.0, 3.0]])
    law, runs, exponent = Law(np.array([1.0, -1.0]), information, 2.0, 6), 4000, -30
    stream = SeededStream(2)
    parts = [CopiedPart(law, which, exponent, 2.0**40, False) for which in (False, True)]
    mean, scatter = (
        np.ldexp(np.array([part.noised(stream) for _ in range(runs)], dtype=float), exponent)
        for part in parts
    )
    variance = 2.0 * np.linalg.inv(information)
    error = 4 * np.sqrt(np.diag(variance) / 6 / runs)
    assert np.all(np.abs(mean.mean(axis=0) - law.theta) < error)
    # a Wishart matrix with five degrees of freedom
    spread = (np.outer(np.diag(variance), np.diag(variance)) + variance**2) * 5
    found = scatter[:, packed_indices(2)].mean(axis=0)
    assert np.all(np.abs(found - 5 * variance) < 4 * np.sqrt(spread / runs))


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
    assert one.divergence(other, order) == pytest.approx(math.log(whole) / (order - 1), rel=1e-6)


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


@pytest.mark.parametrize(
    ("loss", "settings"),
    [("logistic", {}), ("linear", {"noise_scale": 0.15, "windows": 2})],
    ids=["logistic", "linear"],
)
def test_an_estimate_settles_in_few_rounds(loss: str, settings: dict[str, object]) -> None:
    """How often intervals hold the truth: tests/consistency/test_copies_coverage.py."""
    found = [run(loss, seed=s, kind=COPIES, epsilon=4.0, **settings) for s in range(3)]  # type: ignore[arg-type]
    assert {estimate.status for estimate in found} == {"ready"}
    assert max(estimate.details["rounds"] for estimate in found) <= 10


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


@pytest.mark.parametrize("loss", ["logistic", "linear"])
def test_a_site_that_lies_is_named_and_moves_nothing(loss: str) -> None:
    given: dict[str, object] = {"kind": COPIES, "epsilon": 8.0, "noise_scale": None}
    if loss == "linear":
        given["noise_scale"] = 0.15
    honest, lied = (run(loss, seed=5, liars=liars, **given) for liars in (0, 1))  # type: ignore[arg-type]
    assert honest.details["flagged"] == []
    assert lied.details["flagged"] == [name_of(0)]
    errors = honest.standard_errors()
    assert errors is not None
    assert np.all(np.abs(lied.coefficients - honest.coefficients) < 2.5 * errors[0])


@pytest.mark.parametrize("forged", [0.01, 0.0, -1.0, 100.0, 1e6])
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


def test_ridges_draw_to_the_newest_model() -> None:
    made, rng = task(), np.random.default_rng(4)
    features = rng.uniform(-1, 1, (100, 3))
    window = Arrays(features, np.where(rng.random(100) < 0.5, 1.0, -1.0))
    point = np.array([0.3, -0.2, 0.1, 0.0])
    model = round_model(3, point, (1.0, 1.0))
    fits = []
    for at in (made.first_model, model):
        part = made.query(window, at).parts["mean"]
        assert isinstance(part, CopiedPart)
        fits.append(at.coefficients + part.law.theta)
    assert np.linalg.norm(fits[1] - model.coefficients) < np.linalg.norm(
        fits[0] - model.coefficients
    )


def test_ten_thousand_sites_of_copies_at_once_are_one_estimate() -> None:
    made, rng, many = task(records=400, ridge=0.0), np.random.default_rng(1), 10_000
    size, (mean, scatter) = made.size, made.layout.later
    information = 400 * 0.25 * np.diag([1, 1 / 3, 1 / 3, 1 / 3]) + made.ridge * np.eye(size)
    spread = np.linalg.inv(information)
    root = np.linalg.cholesky(spread)
    truth = np.array([0.2, 0.5, -0.4, 0.3])
    held = information - made.ridge * np.eye(size)
    fits = (
        truth @ (held @ spread).T
        + rng.standard_normal((many, size)) @ (root * math.sqrt(1 + made.scale / made.copies)).T
    )
    normal = rng.standard_normal((many, made.copies - 1, size)) @ root.T
    scatters = made.scale * np.einsum("mki,mkj->mij", normal, normal)
    numbers = np.concatenate(
        [
            np.ldexp(fits, -mean.exponent),
            np.ldexp(scatters, -scatter.exponent)[:, *np.triu_indices(size)],
        ],
        axis=1,
    ).astype(np.int64)
    server, shape = server_of(made), Shape(size, 0)
    rows = shape.rows_of(np.zeros((many, size), dtype=np.int64), numbers, ONE)
    state = server.empty()
    state.fold(rng.integers(0, 2**63, (many, 2)).astype(np.uint64), np.ones(many, dtype=int), rows)
    began = time.process_time()
    found = server.estimate([(1.0, state)], [0])
    # .4 s on a slow core; a step that took the sites one by one would take tens of seconds
    assert time.process_time() - began < 10
    assert np.abs(found.coefficients - truth).max() < 0.05
    assert (found.details["count"], len(found.details["sites"])) == (many, 50)


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
        assert measure_copies(loss, 3000, SeededStream).events < EPSILON
    for fault in FAULTS:
        with fault.plant():
            assert measure_copies(fault.loss, 6000, SeededStream).events > EPSILON, fault.name


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
