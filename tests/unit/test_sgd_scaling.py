"""Steps scaled by the released curvature, the average that is moved by it, and who has mixed."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from numpy.testing import assert_allclose

from benchmarks.sgd_designs import Row, design_of
from benchmarks.sgd_intervals import summed
from benchmarks.sgd_stream import GradientStream
from benchmarks.sgd_streams import Streams
from pipeline.estimators.population import Population
from pipeline.linalg import pack_upper
from pipeline.methods import task_of
from pipeline.methods.ldp_sgd.client import GradientTask
from pipeline.methods.ldp_sgd.path import Sums
from pipeline.methods.ldp_sgd.plug_in import PlugIn, PooledPlugIn, moved, width_errors
from pipeline.methods.ldp_sgd.readiness import bend, relaxations
from pipeline.methods.ldp_sgd.step_rule import Scaling
from pipeline.records.encoder import Row as Record
from pipeline.simulate.coverage import Size, simulated, stream
from pipeline.stream.in_process import OfflineRun
from pipeline.study_file.load import parse_study
from tests.sgd import study_text

GUESS = np.diag([1.0, 0.25])
CURVATURE = np.array([[0.9, 0.2], [0.2, 0.5]])


def test_the_matrix_is_the_inverse_of_what_is_known_and_of_the_guess_before() -> None:
    clear = Scaling(GUESS, 1.0, noise=0.01)
    assert_allclose(clear.matrix(CURVATURE, 1000), np.linalg.inv(CURVATURE), rtol=1e-8)
    assert_allclose(clear.first(), np.linalg.inv(GUESS), rtol=1e-8)
    drowned = Scaling(GUESS, 1.0, noise=100.0)
    assert_allclose(drowned.matrix(CURVATURE, 1000), drowned.first(), rtol=0)
    # a direction below the noise is raised to it, and no other
    low = Scaling(GUESS, 1.0, noise=1.0).known(np.diag([1.0, -0.1]), 1000)
    assert low.floored == 1
    assert low.curvature[0, 0] == pytest.approx(1.0)
    assert 0 < low.curvature[1, 1] < 0.25 * 0.5


def test_the_average_is_moved_to_where_a_path_would_come_to_rest() -> None:
    """Gradients are linear in their points: the minimum is found from points anywhere."""
    rng, minimum = np.random.default_rng(1), np.array([0.7, -0.4])
    u = rng.normal(5.0, 1.0, (400, 2))
    g = (u - minimum) @ CURVATURE
    sums = dataclasses.replace(
        Sums.zero(2, full=False, extra=3), records=400, g=g.sum(axis=0), u=u.sum(axis=0),
        extra=pack_upper(400 * CURVATURE),
    )  # fmt: skip
    found = moved([sums], np.eye(2), Scaling(GUESS, 1.0, noise=0.01))
    assert found.centre is not None
    assert_allclose(found.centre, minimum, rtol=1e-9)


def test_the_error_of_standard_errors_is_that_of_drawn_noise() -> None:
    rng, noise, middle = np.random.default_rng(2), 0.01, np.diag([1.0, 3.0])
    drawn = []
    for _ in range(4000):
        beside = rng.normal(0, noise / np.sqrt(2))
        error = np.array([[rng.normal(0, noise), beside], [beside, rng.normal(0, noise)]])
        bread = np.linalg.inv(CURVATURE + error)
        drawn.append(np.sqrt(np.diag(bread @ middle @ bread)))
    found = np.std(drawn, axis=0) / np.mean(drawn, axis=0)
    wanted = width_errors(np.linalg.inv(CURVATURE), middle, noise)
    # 4,000 draws know a deviation to 1.1 %: four errors, and the bend of the inverse
    assert_allclose(found, wanted, rtol=0.05)


def test_relaxation_times_are_those_of_each_coefficient() -> None:
    assert_allclose(relaxations(np.diag([2.0, 0.1]), None, 30.0), [60.0, 3.0], rtol=1e-9)
    # scaled by the inverse, all directions are alike, however they are correlated
    scaled = relaxations(CURVATURE, np.linalg.inv(CURVATURE), 30.0)
    assert_allclose(scaled, [30.0, 30.0], rtol=1e-9)


def test_the_simulated_stream_is_the_offline_run_without_noise() -> None:
    text = study_text(mechanism="none", path='releases = "gradients+curvature+products"')
    task = simulated(parse_study(text))
    population = Population.of(task)
    found = stream(population, Size(3000, 1), seed=3, number=4)
    rng, run = np.random.default_rng([3, 4]), OfflineRun(task)
    for _ in range(150):
        x, y = population.draw(rng, 20)
        run.add("a", [Record(x[i], float(y[i]), 0) for i in range(20)])
    other = run.estimate(0.0)[0]
    # sums are added in another order
    assert_allclose(found.coefficients, other.coefficients, rtol=1e-9)
    assert found.status == other.status


@pytest.mark.parametrize("loss", ["logistic", "expectile"])
def test_a_stream_beside_others_is_a_stream_alone(loss: str) -> None:
    """The table of intervals draws many streams at once; one of them has the usual numbers."""
    design = design_of(Row(loss, 4, 2), 2000)
    # records and noise come from one generator
    rng = np.random.default_rng(5)
    alone = GradientStream(design.task, rng)
    beside = Streams(design, 1, np.random.default_rng(5))
    for _ in range(120):
        alone.fold(*design.row.records(rng, design.task.slots, design.truth), 1)
        alone.publish()
        beside.fold()
    one, two = alone.estimate(), beside.estimate(0)
    assert_allclose(one.coefficients, two.coefficients, rtol=1e-9)
    assert one.reason == two.reason
    if loss == "expectile":
        assert one.covariance is not None
        assert two.covariance is not None
        assert_allclose(one.covariance, two.covariance, rtol=1e-9)


def test_what_noise_bends_is_taken_off_and_counts_as_known_to_a_half() -> None:
    plain = PlugIn(CURVATURE, np.diag([0.04, 0.09]), 0, 100, np.array([1.0, 2.0]))
    bent = PooledPlugIn((plain,), np.array([0.4, -0.2]))
    assert bent.centre is not None
    assert_allclose(bent.centre, [0.6, 2.2])
    assert_allclose(bent.covariance, np.diag([0.04 + 0.2**2, 0.09 + 0.1**2]))
    # an expectile above the mean is bent upwards, one below it downwards, and a class outwards
    high, low = (bend_at(study_text(loss="expectile"), f"tau = {tau}") for tau in (0.8, 0.2))
    assert high[0] == -low[0] > 0
    assert not high[1:].any()
    assert_allclose(bend_at(study_text(loss="logistic")), 0.25 * 0.1 * POINT)


POINT = np.array([0.5, -1.0, 0.3, 0.0])


def bend_at(text: str, more: str = "") -> np.ndarray:
    task = task_of(parse_study(text.replace("residual_bound", f"{more}\nresidual_bound")))
    assert isinstance(task, GradientTask)
    return bend(task, 0.1, POINT, np.eye(4))


def test_many_coefficients_bend_no_expectile() -> None:
    """Without what is taken off, the intercept is off by 1.2 of its deviations here."""
    design = design_of(Row("expectile", 10, 2), 50_000)
    run = Streams(design, 40, np.random.default_rng(6))
    while run.records < design.twice:
        run.fold()
    off = np.array([run.estimate(i).coefficients[0] for i in range(40)]) - design.target[0]
    # three Monte Carlo errors of the mean of 40 streams
    assert abs(off.mean()) < 3 / np.sqrt(40) * off.std(ddof=1)


@pytest.mark.slow
@pytest.mark.parametrize("loss", ["logistic", "expectile"])
def test_intervals_come_at_twice_the_exact_size_and_cover(loss: str) -> None:
    found = summed(design_of(Row(loss, 4, 2)), 60)
    assert found["ready_twice"] == found["given"] == 1.0
    assert found["firsts"]["inside"]
    assert found["end"]["inside"]
