"""What a ridge adds to the standard errors of a rare level's coefficient."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import fsolve
from scipy.special import expit

from pipeline.linalg import Floored
from pipeline.methods.noisy_mle.estimate import Fit, held_back
from tests.sites import study_text, task_of

LEVELS = 'c = { kind = "category", levels = ["s", "t"] }'


def fit_of(theta: np.ndarray, curvature: np.ndarray, noise: float = 0.0) -> Fit:
    return Fit(
        theta,
        np.ones(1),
        curvature,
        Floored(curvature, 0, None),
        noise,
        1.0,
        np.ones(1),
        known=True,
    )


@pytest.mark.parametrize("share", [0.01, 0.1])
@pytest.mark.parametrize("base", [-4.0, -2.0, 0.0])
@pytest.mark.parametrize("loss", ["logistic", "linear"])
def test_squared_residuals_of_a_level_are_those_of_its_records(
    loss: str, base: float, share: float
) -> None:
    """Where a model has a level alone, against the truth of its population."""
    ridge, spread = 0.01, 0.04
    task = task_of(study_text(loss=loss, ridge=ridge, declared=[LEVELS], p=1))
    mean = expit if loss == "logistic" else lambda u: u / 10
    truth = mean(np.array([base, base + 3.0]))
    shares = np.array([1 - share, share])

    def score(theta: np.ndarray) -> list[float]:
        off = shares * (truth - (expit if loss == "logistic" else np.asarray)(np.cumsum(theta)))
        return [float(off.sum()), float(off[1] - ridge * theta[1])]

    theta = fsolve(score, [base if loss == "logistic" else truth[0], 0.1])
    said = np.cumsum(theta) if loss == "linear" else expit(np.cumsum(theta))
    bent = np.ones(2) if loss == "linear" else said * (1 - said)
    model = np.full(2, spread) if loss == "linear" else bent
    true = (spread if loss == "linear" else truth * (1 - truth)) + (truth - said) ** 2
    curvature = np.diag([0.0, shares[1] * bent[1]])
    curvature[0, :] = curvature[:, 0] = [float(shares @ bent), shares[1] * bent[1]]
    found = held_back(task, fit_of(theta, curvature))
    expected = shares[1] * (true[1] - model[1])
    # one that is smaller is not said
    assert found[1, 1] == pytest.approx(max(0.0, expected), rel=1e-6, abs=1e-12)
    assert np.array_equal(found, np.full((2, 2), found[1, 1]))
    # a level that noise hides may have any chance
    unknown = held_back(task, fit_of(theta, curvature, noise=1.0))[1, 1]
    slope = 1.0 if loss == "logistic" else task.loss.slope_bound
    assert unknown == pytest.approx(ridge * abs(theta[1]) * slope)
    assert unknown >= expected


def test_numbers_and_slopes_that_no_ridge_holds_are_left_alone() -> None:
    for declared, ridge in (("c = { min = -1, max = 1 }", 0.01), (LEVELS, 0.0)):
        task = task_of(study_text(loss="logistic", ridge=ridge, declared=[declared], p=1))
        assert not held_back(task, fit_of(np.array([-3.0, 1.0]), 0.05 * np.eye(2))).any()


@pytest.mark.parametrize(("together", "square"), [(0.2, 0.3), (-0.8, 0.64)])
def test_numbers_beside_a_level_vary_in_it_as_in_all_records_or_more(
    together: float, square: float
) -> None:
    declared = [LEVELS, "x = { min = -1, max = 1 }"]
    task = task_of(study_text(loss="logistic", ridge=0.01, declared=declared, p=2))
    # of records: a tenth have the level, and there x has this mean
    shares = np.array([[1.0, 0.1, 0.0], [0.1, 0.1, 0.1 * together], [0.0, 0.1 * together, 0.3]])
    found = held_back(task, fit_of(np.array([-3.0, 1.0, 0.0]), 0.2 * shares))
    more = found[0, 0]
    assert more > 0
    row = np.array([1.0, 1.0, together])
    assert found == pytest.approx(
        more * np.outer(row, row) + np.diag([0, 0, more * (square - together**2)])
    )
