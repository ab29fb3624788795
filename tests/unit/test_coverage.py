"""Monte Carlo: how often intervals cover the penalised minimiser of the population."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache, partial

import numpy as np
import pytest
from scipy import stats

from pipeline.estimators.estimate import Estimate
from pipeline.methods import task_of
from pipeline.release.task import Task
from pipeline.stream.merge import estimate_of
from pipeline.study_file.load import parse_study
from tests.builders import population_target, regression_stream, study_text, whole_stream

LEVEL = 0.95
#: Bounds hold with this probability of a false alarm, for the seeds as a fresh draw.
ALARM = 1e-6
SLOPES = np.array([0.3, -0.2, 0.1])
#: Streams, rounds and clients.
Run = tuple[int, int, int]
LONG: Run = (150, 60, 10)


def numbers(rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw records of a linear regression whose residuals stay within the range."""
    X = rng.uniform(-1, 1, (n, 3))
    return X, X @ SLOPES + 0.1 + rng.uniform(-0.3, 0.3, n)


def counts(rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw counts whose means are far below the public limit."""
    X = rng.uniform(-1, 1, (n, 3))
    return X, rng.poisson(np.exp(X @ SLOPES + 0.1)).astype(float)


def of_classes(task: Task, *, seed: int, rounds: int, clients: int) -> Estimate:
    return estimate_of(task, [whole_stream(task, seed=seed, rounds=rounds, clients=clients)])


def regression(loss: str, most: float, draw: Callable[..., object], run: Run) -> dict[str, object]:
    """Return the study of a regression with and without noise, its stream, truth and run."""
    plain = {"p": 3, "loss": loss, "records": 200, "most": most, "ridge": 0.0, "epsilon": 8.0}
    stream, truth = partial(regression_stream, draw=draw), np.append(0.1, SLOPES)
    return {
        f"{loss}-{name}": (study_text(**plain, private=private), stream, truth, run)  # type: ignore[arg-type]
        for name, private in (("open", False), ("private", True))
    }


CLASSES = population_target(3, q=1.0, ridge=0.01)
#: Study, stream, what it estimates, and a run that tells an interval from one half as wide.
CASES: dict[str, tuple[str, Callable[..., Estimate], np.ndarray, Run]] = {
    "open": (study_text(p=3, private=False, records=200), of_classes, CLASSES, (30, 12, 4)),
    "private": (study_text(p=3, epsilon=2.0, records=200), of_classes, CLASSES, (20, 20, 8)),
    **regression("linear", 1.0, numbers, (16, 20, 6)),
    **regression("poisson", 12.0, counts, (16, 20, 6)),
}
SOON = ("open", "private", "poisson-open")


@lru_cache(maxsize=4)
def ends_of(case: str, run: Run) -> list[Estimate]:
    """Return the last estimates of some streams."""
    text, stream, *_ = CASES[case]
    task, (streams, rounds, clients) = task_of(parse_study(text)), run
    seeds = range(1000, 1000 + streams)
    return [stream(task, seed=s, rounds=rounds, clients=clients) for s in seeds]


def check_coverage(case: str, run: Run, shrink: float = 1.0) -> None:
    """Fail where the coverage is below what `LEVEL` allows, with allowance for the simulation.

    Conservative intervals pass. Whether the coefficients of one stream are covered depends on each
    other; the variance of their share is taken as twice that of independent ones.

    shrink: What covariances are divided by first.
    """
    target, shares = CASES[case][2], []
    for estimate in ends_of(case, run):
        assert estimate.status == "ready"
        assert estimate.covariance is not None
        assert estimate.privacy_covariance is not None
        ends = replace(
            estimate,
            covariance=estimate.covariance / shrink,
            privacy_covariance=estimate.privacy_covariance / shrink,
        ).intervals(LEVEL)
        assert ends is not None
        shares.append(np.mean((ends[0] <= target) & (target <= ends[1])))
    spread = math.sqrt(2 * LEVEL * (1 - LEVEL) / len(target))
    reach = float(stats.norm.isf(ALARM)) * spread / math.sqrt(len(shares))
    found = float(np.mean(shares))
    # 0.01: the intervals are asymptotic, and the spec measured .94 to .98 for such streams
    assert found >= LEVEL - 0.01 - reach, f"coverage {found:.3f}, reach {reach:.3f}"


@pytest.mark.takes("some twenty streams")
@pytest.mark.parametrize(
    "case", [pytest.param(c, marks=[pytest.mark.slow] * (c not in SOON)) for c in CASES]
)
def test_intervals_cover_and_those_half_as_wide_do_not(case: str) -> None:
    run = CASES[case][3]
    check_coverage(case, run)
    with pytest.raises(AssertionError, match="coverage"):
        check_coverage(case, run, shrink=4.0)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_intervals_cover_in_long_streams(case: str) -> None:
    check_coverage(case, LONG)
