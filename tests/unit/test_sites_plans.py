"""Plans of sites' scores and sums: when the noise is out of the way, whatever features do."""

from __future__ import annotations

import math

import msgspec
import numpy as np
import pytest

from pipeline.api.planning import proposed, verdict
from pipeline.methods import method_of, task_of
from pipeline.methods.base import Plan
from pipeline.methods.noisy_mle.client import SiteTask
from pipeline.methods.noisy_mle.estimate import limit
from pipeline.methods.noisy_mle.method import driven, near_windows
from pipeline.methods.sites.report import first_windows
from pipeline.study.model import Study
from pipeline.study_file.edit import with_keys
from pipeline.study_file.load import parse_study
from tests.sites import study_text

DRAWS = 400
#: Three Monte Carlo errors of a share of nine tenths.
ERROR = 3 * math.sqrt(0.09 / DRAWS)


def with_ridge(study: Study, ridge: float) -> Plan:
    changed = with_keys(study, {"estimator.ridge": ridge}, name="changed")
    return method_of(changed).plan(task_of(changed), 20_000, 8)


def test_a_plan_says_what_features_need_that_use_a_part_of_their_ranges() -> None:
    found = proposed(parse_study(study_text(p=5, loss="logistic", epsilon=1.0)), 20_000, 8)
    outlook, ridge = found.own.outlook, found.study.estimator.ridge
    assert outlook.latest is None
    assert outlook.narrow == outlook.usual == 16_000
    said = verdict(found)
    assert "enough where features spread over their ranges" in said
    assert "hardly before 16,000" in said
    # half of the ridge is clear of the noise after four times the releases, of windows of 500, and
    # keeps models near later
    fixed = with_keys(found.study, {"window.growth": 0}, name="fixed")
    quarter, eighth = (with_ridge(fixed, ridge / n) for n in (4, 8))
    assert eighth.usual >= quarter.usual > 16_000
    assert eighth.narrow == pytest.approx(4 * (quarter.narrow or 0), rel=0.06)
    # windows that grow have little more noise from then on
    soon, later = (with_ridge(found.study, ridge / n).narrow or 0 for n in (4, 8))
    assert 16_000 < soon < (quarter.narrow or 0)
    assert later < 2.5 * soon
    assert with_ridge(found.study, 0.0).narrow is None


def shared(share: float | None) -> Study:
    study = parse_study(study_text(p=3, loss="logistic", epsilon=1.0, records=1_000))
    response = {**msgspec.to_builtins(study.data.response), "typical": share}
    return with_keys(study, {"data.response": response}, name="shared")


def test_a_rarer_class_takes_more_windows_and_makes_intervals_longer() -> None:
    plans = [proposed(shared(share), 60_000, 5) for share in (None, 0.2, 0.08)]
    windows = [found.study.window.records for found in plans]
    # 5 windows of each of 5 clients, and 7 where the share is 8 %
    assert windows == [2_400, 2_400, 1_714]
    effects = [found.own.effect or 0 for found in plans]
    # a guess of 20 % bends no less than is taken for even classes
    assert effects[0] <= effects[1] < effects[2]
    assert effects[2] > 1.5 * effects[0]
    for found in plans:
        assert found.own.outlook.usual <= 60_000
    # it does not matter which class is the rarer one
    assert proposed(shared(0.92), 60_000, 5).study.window.records == windows[2]


def test_a_plan_waits_for_models_that_noise_moves_far() -> None:
    """200 streams of such a study were ready in none, and in nine tenths with the ridge of now."""
    found = proposed(shared(0.08), 30_000, 3)
    task, ridge = task_of(found.study), found.study.estimator.ridge
    assert isinstance(task, SiteTask)
    assert near_windows(task) == first_windows(task) + 2
    smaller = with_keys(found.study, {"estimator.ridge": ridge / 3}, name="smaller")
    outlook = method_of(smaller).plan(task_of(smaller), 30_000, 3)
    assert outlook.usual > 30_000
    assert any("estimator.ridge" in way for way in outlook.sooner)


@pytest.mark.parametrize("p", [2, *(pytest.param(n, marks=pytest.mark.slow) for n in (5, 12))])
def test_a_design_has_a_ridge_that_is_clear_of_the_noise_in_nine_of_ten_streams(p: int) -> None:
    """Of features that say nothing: the ridge is all that slopes have."""
    text = study_text(p=p, loss="linear", epsilon=1.0, noise_scale=0.5)
    study = parse_study(text)
    changes = method_of(study).propose(study, 40_000, 8).changes
    found = with_keys(study, changes, name="designed")
    task = task_of(found)
    assert isinstance(task, SiteTask)
    latest = method_of(found).plan(task, 40_000, 8).latest
    assert latest is not None
    assert latest <= 0.8 * 40_000
    channels, size, rng, clear = task.channels(1), p + 1, np.random.default_rng(3), 0
    scale = task.slots * math.sqrt(latest / task.slots)
    wanted = limit(size) * channels.curvature.standard_deviation / scale
    for _ in range(DRAWS):
        above = rng.normal(0, channels.off_diagonal.standard_deviation, (size, size))
        noise = np.triu(above, 1) + np.triu(above, 1).T
        noise += np.diag(rng.normal(0, channels.curvature.standard_deviation, size))
        told = np.diag(task.penalty) + noise / scale
        told[0, 0] += task.loss.start_curvature
        clear += bool(np.linalg.eigvalsh(told)[0] >= wanted)
    # the law lies above what few slopes have, and the ridge is a twentieth larger
    assert 0.9 - ERROR < clear / DRAWS < 0.98 + ERROR


@pytest.mark.parametrize("count", [3, 6, 30])
def test_noise_drives_the_least_eigenvalue_down_as_far_as_the_law_says(count: int) -> None:
    drawn = np.random.default_rng(1).normal(size=(DRAWS, count, count))
    least = np.linalg.eigvalsh((drawn + drawn.transpose(0, 2, 1)) / 2)[:, 0]
    assert 0.9 - ERROR < np.mean(least > -driven(count)) < 0.935 + ERROR
    assert driven(0) == 0
