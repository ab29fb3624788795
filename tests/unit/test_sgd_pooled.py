"""Intervals and readiness of several partitions: paths of their own, or logs of a shared one."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy import stats

from pipeline.estimators.estimate import Estimate
from pipeline.linalg import pack_upper
from pipeline.messages.topics import partition_of
from pipeline.methods.ldp_sgd.intervals import gradient_noise, plug_ins
from pipeline.methods.ldp_sgd.path import SgdPath, Sums
from pipeline.methods.ldp_sgd.plug_in import regressed_curvature, standard_errors
from pipeline.methods.ldp_sgd.step_rule import MIXED, Rule, StepRule, scaling_of
from pipeline.release.task import Task
from pipeline.stream.in_process import OfflineRun
from pipeline.types import Matrix
from tests.sgd import drawn, rows_of, task_of

SIZE = 3
ALL = 'releases = "gradients+curvature+products"'


def study(several: str, partitions: int = 3, more: str = "", **settings: object) -> Task:
    path = f'partitions = "{several}", burn_in = 100{more}'
    settings.setdefault("mechanism", "insecure-simulation")
    return task_of(path=path, partitions=partitions, records=20, publish=2, **settings)


def filled(task: Task, numbers: list[int]) -> OfflineRun:
    """Run a stream whose releases come to these partitions."""
    names: dict[int, str] = {}
    for i in range(1000):
        names.setdefault(partition_of(f"{i}".encode(), task.study.stream.partitions), f"{i}")
    rows, run = rows_of(task, *drawn("linear", 20 * len(numbers), 4)), OfflineRun(task)
    for i, number in enumerate(numbers):
        run.add(names[number], rows[20 * i : 20 * i + 20])
    return run


def stretches(run: OfflineRun) -> list[Sums]:
    return [p.sums.states[0].path.stretch() for p in run.partitions]  # type: ignore[union-attr]


def by_hand(parts: list[Sums]) -> Matrix:
    """Return the least-squares slope within logs."""
    cross = sum(part.gu - np.outer(part.g, part.u) / part.records for part in parts)
    spread = sum(part.uu - np.outer(part.u, part.u) / part.records for part in parts)
    slope = cross @ np.linalg.inv(spread)
    return (slope + slope.T) / 2


# --- the covariance


def sums_of(curvature: float, noise: float, records: int, seed: int) -> Sums:
    """Return sums of gradients that are linear in their points, with matrices beside them."""
    rng = np.random.default_rng(seed)
    u = rng.normal(0, 1, (records, SIZE))
    g = curvature * u + rng.normal(0, noise, (records, SIZE))
    beside = [pack_upper(factor * records * np.eye(SIZE)) for factor in (curvature, noise)]
    return dataclasses.replace(
        Sums.zero(SIZE, full=False, extra=12), records=records, g=g.sum(axis=0),
        u=u.sum(axis=0), gu=g.T @ u, uu=u.T @ u, gg=g.T @ g, extra=np.concatenate(beside),
    )  # fmt: skip


def test_pooled_plug_ins_take_curvature_and_middle_of_each_path() -> None:
    task = study("pooled", 2, f", {ALL}", p=SIZE - 1)
    parts = [sums_of(1.0, 1.0, 3000, 1), sums_of(0.25, 2.0, 1000, 2)]
    noise, one = gradient_noise(task) ** 2, np.eye(SIZE)
    wanted = {"plug-in": 0 * one, "plug-in-curvature": 0 * one, "plug-in-products": 0 * one}
    spent = dict.fromkeys(wanted, 0 * one)
    for part, flat, product in zip(parts, (1.0, 0.25), (1.0, 2.0), strict=True):
        middle, share = part.gg / part.records, part.records / 4000
        # the noise of a released curvature errs by A^-1 E b where the average is moved by b
        scaling = scaling_of(task)
        assert scaling is not None
        square = scaling.noise**2 / part.records
        for name, a, m in (
            ("plug-in", by_hand([part]), middle),
            ("plug-in-curvature", flat * one, middle),
            ("plug-in-products", flat * one, (product + noise) * one),
        ):
            bread = np.linalg.inv(a)
            move = bread @ part.g / part.records
            error = square / 2 * (move @ move * one + np.outer(move, move))
            error = 0 * one if name == "plug-in" else error
            wanted[name] = wanted[name] + share**2 * bread @ (m / part.records + error) @ bread
            spent[name] = spent[name] + share**2 * noise * bread @ bread / part.records
    found = plug_ins(task, parts)
    assert found.keys() == wanted.keys()
    for name, plug in found.items():
        assert_allclose(plug.covariance, wanted[name], rtol=1e-9, atol=1e-12)
        assert_allclose(plug.privacy_covariance(noise), spent[name], rtol=1e-9, atol=1e-12)
        assert plug.floored == 0
    assert found["plug-in-curvature"].condition == pytest.approx(1.0)


def wandering(curvature: float, releases: int, rng: np.random.Generator) -> SgdPath:
    """Move a path towards zero: the gradient at u is curvature u, with noise of variance one."""
    path = SgdPath(Rule(StepRule(10.0, 0.51, 0.05), 200, np.zeros(SIZE)))
    for _ in range(releases):
        point = path.theta
        path.fold(curvature * point + rng.normal(0, 1, (1, 10, SIZE)), point[None])
    return path


@pytest.mark.slow
def test_pooled_plug_ins_cover_where_partitions_differ() -> None:
    """Three quarters of the records have curvature I, and one quarter I / 4."""
    task, hits, count = study("pooled", 2, p=SIZE - 1), [], 300
    for seed in range(count):
        rng = np.random.default_rng([11, seed])
        both = [wandering(1.0, 2400, rng), wandering(0.25, 800, rng)]
        parts = [path.stretch() for path in both]
        total = sum(part.records for part in parts)
        mean = sum(path.origin * part.records + part.c
                   for path, part in zip(both, parts, strict=True)) / total  # fmt: skip
        errors = standard_errors(plug_ins(task, parts)["plug-in"])
        hits.append(np.abs(mean) <= stats.norm.ppf(0.975) * errors)
    # the entries of one path are independent: 900 intervals, and half a percent for n being finite
    assert abs(np.mean(hits) - 0.95) < 4 * math.sqrt(0.95 * 0.05 / (SIZE * count)) + 0.005


@pytest.mark.parametrize("several", [pytest.param("shared", marks=pytest.mark.slow), "pooled"])
def test_the_privacy_part_is_the_noise_of_gradients_through_the_curvature(several: str) -> None:
    """A^-1 (2B / mu)^2 A^-1 / n of all records, or of each path by itself."""
    task = study(several)
    run = filled(task, [0, 1, 2] * (1000 if several == "pooled" else 500))
    found, message = run.estimate(0.0)
    assert found.status == "ready", found.reason
    parts = stretches(run)
    # epsilon 10.997 at delta 1e-6 is mu = 2
    deviation = 2 * task.clipping_norm * task.loss.slope_bound / 2
    total, wanted = sum(part.records for part in parts), np.zeros((task.size, task.size))
    for group in [parts] if several == "shared" else [[part] for part in parts]:
        bread, own = np.linalg.inv(by_hand(group)), sum(part.records for part in group)
        wanted = wanted + (own / total) ** 2 * deviation**2 * bread @ bread / own
    assert found.privacy_covariance is not None
    # rounding makes the deviation at most one part in 256 larger, and mu is 2 within 2e-4
    ratio = np.diag(found.privacy_covariance) / np.diag(wanted)
    assert (ratio > (1 - 2e-4) ** 2).all()
    assert (ratio < ((1 + 1 / 256) * (1 + 2e-4)) ** 2).all()
    shown = [row.privacy_se for row in message.coefficients]
    unit = task.response_scale[1]
    assert_allclose(shown, unit * np.sqrt(np.diag(found.privacy_covariance)), rtol=1e-9)


# --- readiness


def test_a_shared_path_has_mixed_by_the_steps_of_all_partitions() -> None:
    run = filled(study("shared"), [0, 1, 2] * 270)
    parts = stretches(run)
    least = np.linalg.eigvalsh(regressed_curvature(parts))[0]
    # together they have mixed, and none would have alone
    assert max(least * part.moved for part in parts) < MIXED < least * sum(p.moved for p in parts)
    found = run.estimate(0.0)[0]
    assert found.status == "ready", found.reason


def test_one_small_pooled_partition_withholds_all_intervals_and_is_named() -> None:
    found = warming(study("pooled"), [0, 1] * 800 + [2] * 60)
    assert "partition 2 (1200 records) is too short" in found.reason
    assert "50 in every partition" in found.reason
    found = warming(study("pooled"), [0, 2] * 40 + [1] * 6)
    assert "partition 1 (120 records) has hardly begun to move" in found.reason


def test_the_reason_of_warming_says_that_models_are_late() -> None:
    found = warming(study("pooled", 2, ", behind = 5"), [0, 0, 1, 1] * 20)
    assert "relaxation times" in found.reason
    assert "records late on average, and the steps allow for 5: publish more often" in found.reason
    assert "slow the clients" in found.reason


def test_a_shared_path_that_has_left_its_range_needs_a_new_study() -> None:
    steps = ", eta0 = 1e12, alpha = 0.51, curvature = 1e-9, behind = 0"
    task = study("shared", more=steps, mechanism="none", estimator="residual_bound = 20")
    found = warming(task, [0, 1, 2] * 20)
    assert "begin a new study" in found.reason
    assert "does not repair a shared path" in found.reason


def warming(task: Task, numbers: list[int]) -> Estimate:
    found = filled(task, numbers).estimate(0.0)[0]
    assert found.status == "warming"
    assert found.covariance is None
    return found
