"""The demonstration's study, in one process: what its figures rest on."""

import itertools
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest

from pipeline.api.table import counts
from pipeline.cli.demo import CLIENTS, Shuttle
from pipeline.estimators.estimate import FAR
from pipeline.methods import task_of
from pipeline.study.versions import without_privacy
from pipeline.study_file.edit import with_keys
from pipeline.study_file.load import load_study
from tests.builders import SeededStream, run_rows

TASK = task_of(load_study(Path(str(files("pipeline.study") / "examples" / "shuttle.toml"))))
#: Without the ridge, the norm and the weight that noise asks for: what the reference was made with.
REFERENCE = task_of(
    with_keys(
        without_privacy(TASK.study),
        {
            "estimator.ridge": 1e-3,
            "estimator.norm_bound": None,
            "estimator.class_weights.maximum": 8.0,
        },
        name="shuttle",
    )
)


@pytest.fixture(scope="module")
def shuttle():
    return Shuttle(TASK, CLIENTS)


def stream(shuttle, task):
    return run_rows(task, shuttle.slots).estimate(0.0)[1]


@pytest.fixture(scope="module")
def plain(shuttle):
    return stream(shuttle, REFERENCE)


def score(shuttle, message):
    return shuttle.score([c.value for c in message.coefficients])


@pytest.mark.slow
def test_the_exact_fit_without_privacy_has_every_interval(shuttle):
    exact = shuttle.exact()
    assert (exact.status, exact.privacy.mechanism) == ("ready", "none")
    assert all(row.interval is not None for row in exact.coefficients)
    assert counts(exact, exact)["covering_fit"] == TASK.size
    # ridge, norm and weight cost a point and a half
    assert 0.965 <= score(shuttle, exact) <= 0.975


@pytest.mark.slow
def test_without_privacy_the_stream_reaches_the_reference(shuttle, plain):
    # the reference for this stream without privacy: 98.0 to 98.7 %, depending on small choices
    assert 0.98 <= score(shuttle, plain) <= 0.9875
    # its intervals wait: the first models of this stream were far from the last
    assert (plain.status, plain.reason) == ("warming", FAR)
    assert plain.privacy.mechanism == "none"


def noised(shuttle, seed):
    """Return the private stream with noise from a seed, so that it does not fail by chance."""
    numbers = itertools.count((seed + 1) << 40)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pipeline.stream.release.SecureStream", lambda: SeededStream(next(numbers)))
        return stream(shuttle, TASK)


@pytest.fixture(scope="module")
def private(shuttle):
    return noised(shuttle, 0)


@pytest.mark.slow
def test_at_epsilon_one_the_private_stream_comes_within_two_points(shuttle, plain, private):
    # of 100 seeds the mean was 1.7 and the worst 1.8 points below, mostly by ridge and weight
    assert score(shuttle, private) >= score(shuttle, plain) - 0.02
    assert private.releases == 160
    assert private.records == 40_000


def test_the_private_study_has_intervals_that_hold_the_exact_fit(shuttle, private):
    found = counts(private, shuttle.exact())
    assert private.status == "ready"
    # the first of the seeds below
    assert found["intervals"] == TASK.size
    assert found["covering_fit"] >= 8
    assert found["excluding_zero"] >= 6


@pytest.mark.slow
def test_of_all_seeds_every_coefficient_has_an_interval_that_holds_about_as_often_as_it_says(
    shuttle,
):
    exact, seeds = shuttle.exact(), 100
    found = [counts(noised(shuttle, seed), exact) for seed in range(seeds)]
    # when this was written: all 1,000 had one, 971 held the fit, and each excluded 6 or more
    assert sum(one["intervals"] for one in found) >= 0.99 * seeds * TASK.size
    shares = [one["covering_fit"] / max(one["intervals"], 1) for one in found]
    assert np.mean(shares) > 0.95 - 3 * np.std(shares) / np.sqrt(seeds)
    assert min(one["excluding_zero"] for one in found) >= 5
