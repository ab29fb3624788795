"""What is taken off a plug-in whose gradients were taken off the minimum of a curved loss."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.special import expit

from benchmarks.sgd_designs import ROWS, design_of
from benchmarks.sgd_streams import Streams
from pipeline.linalg import pack_upper, sandwich
from pipeline.methods import task_of
from pipeline.methods.ldp_sgd.client import GradientTask
from pipeline.methods.ldp_sgd.intervals import mean_point, straightened
from pipeline.methods.ldp_sgd.path import Sums
from pipeline.methods.ldp_sgd.plug_in import PlugIn, PooledPlugIn
from pipeline.methods.ldp_sgd.readiness import distance
from pipeline.study_file.load import parse_study
from pipeline.types import Matrix, Vector
from tests.sgd import study_text

#: One class in seven, as in the designs of the benchmark.
TRUTH = np.array([-2.0, 1.0, -1.0])
RECORDS = 1000
ROWS_OF = np.column_stack([np.ones(20_000), np.random.default_rng(2).uniform(-1, 1, (20_000, 2))])


def task() -> GradientTask:
    found = task_of(parse_study(study_text(p=2, loss="logistic")))
    assert isinstance(found, GradientTask)
    return found


def at(points: Matrix) -> tuple[Sums, Matrix]:
    """Return exact sums of gradients at models, as often each, and their mean curvature."""
    chances = [expit(ROWS_OF @ point) for point in points]
    gradient = np.mean([ROWS_OF.T @ (p - expit(ROWS_OF @ TRUTH)) for p in chances], axis=0)
    curvature = np.mean([ROWS_OF.T @ (ROWS_OF * (p * (1 - p))[:, None]) for p in chances], axis=0)
    curvature /= len(ROWS_OF)
    zero = Sums.zero(3, full=False, extra=6)
    return replace(
        zero, records=RECORDS, u=RECORDS * points.mean(axis=0),
        g=RECORDS * gradient / len(ROWS_OF), uu=RECORDS * points.T @ points / len(points),
        extra=RECORDS * pack_upper(curvature),
    ), curvature  # fmt: skip


def plug_of(sums: Sums, curvature: Matrix) -> PlugIn:
    move = np.linalg.solve(curvature, sums.g / RECORDS)
    covariance = sandwich(curvature, np.eye(3)) / RECORDS
    return PlugIn(curvature, covariance, 0, RECORDS, mean_point([sums]) - move, np.zeros(3))


def told(points: Matrix) -> tuple[PlugIn, PooledPlugIn, Vector]:
    """Return the plug-in of models before and after, with the estimate."""
    sums, curvature = at(points)
    plug = plug_of(sums, curvature)
    found = straightened(task(), [[sums]], [plug])
    assert found.centre is not None
    return plug, found, found.centre


@pytest.mark.parametrize("share", [0.7, 0.8, 0.9])
def test_models_between_zero_and_the_minimum_leave_the_estimate_where_it_is(share: float) -> None:
    plug, _, centre = told(share * TRUTH[None, :])
    assert plug.centre is not None
    # Newton's step from where the loss is more curved is too short
    assert plug.centre[0] > TRUTH[0]
    # the second order, without the shape of features: most of it
    assert abs(centre[0] - TRUTH[0]) < 0.5 * abs(plug.centre[0] - TRUTH[0])


def test_models_to_both_sides_of_the_minimum_bend_the_estimate_the_other_way() -> None:
    away = 0.5 * np.eye(3)
    plug, _, centre = told(np.vstack([TRUTH + away, TRUTH - away]))
    assert plug.centre is not None
    assert plug.centre[0] < TRUTH[0]
    assert abs(centre[0] - TRUTH[0]) < 0.5 * abs(plug.centre[0] - TRUTH[0])


@pytest.mark.parametrize("share", [0.7, 0.8, 0.9, 1.2])
def test_standard_errors_are_by_the_curvature_at_the_estimate(share: float) -> None:
    plug, found, _ = told(share * TRUTH[None, :])
    flat = at(TRUTH[None, :])[1]
    true = np.diag(sandwich(flat, np.eye(3))) / RECORDS
    [path] = found.paths
    assert path.there is not None
    # the estimate stands for the truth, and features count as normal that are uniform
    assert_allclose(np.diag(path.covariance), true, rtol=0.15)
    assert_allclose(path.there, flat, atol=0.03 * flat[0, 0])
    assert abs(plug.covariance[0, 0] / true[0] - 1) > 0.3
    # of which the noise has its own part, by the same curvature
    assert_allclose(path.privacy_covariance(1.0), path.covariance)


def test_where_models_are_at_the_estimate_nothing_changes() -> None:
    plug, found, centre = told(TRUTH[None, :])
    assert_allclose(centre, TRUTH, atol=1e-9)
    assert_allclose(found.covariance, plug.covariance, rtol=1e-9)
    # not even where they are at the start, whose predictors do not vary
    _, begun, _ = told(np.zeros((1, 3)))
    assert np.isfinite(begun.covariance).all()
    # nor where no predictor varies at all
    plug = PlugIn(np.eye(3), np.eye(3), 0, RECORDS, np.array([-2.0, 0.0, 0.0]), np.zeros(3))
    sums = replace(Sums.zero(3, full=False, extra=6), records=RECORDS)
    assert straightened(task(), [[sums]], [plug]).covariance[0, 0] > 1


def test_models_are_not_near_because_chance_has_moved_the_estimate_to_them() -> None:
    sums, curvature = at(TRUTH[None, :])
    for noise in (0.0, 0.3):
        plug = replace(plug_of(sums, curvature), covariance=noise * np.eye(3))
        found = distance(task(), [sums], TRUTH, PooledPlugIn((plug,)))
        own = noise * float(np.trace(curvature)) / float(curvature[0, 0])
        assert found == pytest.approx(own, abs=1e-9)


@pytest.mark.takes("a mean error is known from a hundred streams")
def test_early_estimates_of_rare_classes_are_not_off_towards_zero() -> None:
    [row] = [row for row in ROWS if row.label == "logistic d=4 mu=2 uniform"]
    design = design_of(row)
    off = []
    for batch in range(5):
        run = Streams(design, 20, np.random.default_rng([3, batch]))
        while run.records < 0.4 * design.exact:
            run.fold()
        found = [run.estimate(number).coefficients for number in range(20)]
        off += [one[0] - design.target[0] for one in found]
    # half a standard error with the other sign, which is 2.4 times what chance does to the mean
    error = float(np.std(off)) / math.sqrt(len(off))
    assert abs(float(np.mean(off))) < 2 * error
