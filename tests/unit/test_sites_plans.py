"""Plans of sites' scores and sums: when the noise is out of the way, whatever features do."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pipeline.library.plan_words import verdict
from pipeline.library.planning import plan
from pipeline.methods import method_of, task_of
from pipeline.methods.facts import Outlook
from pipeline.methods.noisy_mle.estimate import limit
from pipeline.methods.noisy_mle.facts import driven
from pipeline.methods.noisy_mle.task import SiteTask
from pipeline.study import Study, parse_study, with_keys
from tests.sites import study_text

DRAWS = 400
#: Three Monte Carlo errors of a share of nine tenths.
ERROR = 3 * math.sqrt(0.09 / DRAWS)


def with_ridge(study: Study, ridge: float) -> Outlook:
    changed = with_keys(study, {"estimator.ridge": ridge}, name="changed")
    return method_of(changed).outlook(task_of(changed), 20_000)


def test_a_plan_says_what_features_need_that_use_a_part_of_their_ranges() -> None:
    found = plan(parse_study(study_text(p=5, loss="logistic", epsilon=1.0)), 20_000, 8)
    outlook, ridge = found.own.outlook, found.study.estimator.ridge
    assert outlook.latest is None
    assert outlook.narrow == outlook.usual == 16_000
    said = verdict(found)
    assert "enough where features spread over their ranges" in said
    assert "hardly before 16,000" in said
    # half of the ridge is clear of the noise after four times the releases, of windows of 500; the
    # design has a twentieth more than it takes, before it is rounded to two digits
    half = with_ridge(found.study, ridge / 2)
    assert half.usual == 16_000
    assert half.narrow == pytest.approx(4 * 16_000 / 1.05**2, rel=0.06)
    assert with_ridge(found.study, 0.0).narrow is None


@pytest.mark.parametrize("p", [2, 5, 12])
def test_a_design_has_a_ridge_that_is_clear_of_the_noise_in_nine_of_ten_streams(p: int) -> None:
    """Of features that say nothing: the ridge is all that slopes have."""
    text = study_text(p=p, loss="linear", epsilon=1.0, noise_scale=0.5)
    found = plan(parse_study(text), 40_000, 8).study
    task = task_of(found)
    assert isinstance(task, SiteTask)
    latest = method_of(found).outlook(task, 40_000).latest
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
