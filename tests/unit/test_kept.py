"""What estimates say of the fit that their intervals are of, and what messages say to newcomers."""

from __future__ import annotations

import numpy as np
import pytest

import veilstream as vs
from pipeline.api.table import intervals_table, target_line
from pipeline.errors import ConfigError
from pipeline.estimators.estimate import kept_of
from pipeline.study_file.load import parse_study
from tests.builders import study_text


def test_what_a_slope_keeps_is_its_change_where_the_others_stay() -> None:
    rng = np.random.default_rng(0)
    design = np.column_stack([np.ones(400), rng.normal(size=(400, 2)) * (1.0, 0.3)])
    curvature, penalty = design.T @ design / 400, np.array([0.0, 0.2, 0.2])
    found = kept_of(curvature + penalty * np.eye(3), penalty)
    for j in range(3):
        # the penalised fit to noiseless responses of one coefficient
        response = design @ np.eye(3)[j]
        fit = np.linalg.solve(curvature + penalty * np.eye(3), design.T @ response / 400)
        assert found[j] == pytest.approx(fit[j], rel=1e-12)
    assert found[0] == pytest.approx(1.0)
    assert found[2] < found[1] < 1


def test_an_estimate_names_its_ridge_and_what_it_takes() -> None:
    rng = np.random.default_rng(1)
    table = {f"x{i}": rng.uniform(-1, 1, 4000) for i in range(3)}
    table["y"] = np.where(table["x0"] + rng.logistic(size=4000) > 0, "1", "0")
    with_ridge = vs.fit(study_text(private=False, loss="logistic", ridge=0.1), table).message
    without = vs.fit(study_text(private=False, loss="logistic", ridge=0.0), table).message
    assert with_ridge.status == without.status == "ready"
    assert (with_ridge.ridge, without.ridge) == (0.1, 0.0)
    kept = [row.kept for row in with_ridge.coefficients]
    # a logistic loss bends by about a quarter of 1/3 along such a feature
    assert kept[1] == pytest.approx(0.08 / (0.08 + 0.1), abs=0.05)
    assert [row.kept for row in without.coefficients] == pytest.approx([1.0] * 4)
    assert "ridge 0.1" in target_line(with_ridge)
    assert "with the others fixed" in target_line(with_ridge)
    # of features that go together it says more than a share does
    assert "may turn a sign" in target_line(with_ridge)
    assert target_line(without) == ""


def test_a_kind_with_one_kind_of_interval_says_so() -> None:
    rng = np.random.default_rng(1)
    table = {"x0": rng.uniform(-1, 1, 1000), "y": rng.uniform(-1, 1, 1000)}
    study = parse_study(study_text(p=1, private=False, loss="linear"))
    message = vs.fit(study, table).message
    assert all(row.interval for row in message.coefficients)
    assert "no interval" not in str(intervals_table(message, study))
    assert "one kind of interval, that above" in str(intervals_table(message, study))


def test_a_ridge_may_turn_the_sign_of_a_slope_and_its_share_does_not_show_it() -> None:
    rng = np.random.default_rng(2)
    first = rng.uniform(-0.5, 0.5, 4000)
    second = first + rng.uniform(-0.1, 0.1, 4000)
    response = np.clip(2 * first - 1.2 * second + rng.normal(0, 0.05, 4000), -1, 1)
    table = {"x0": first, "x1": second, "y": response}
    slopes = []
    for ridge in (0.0, 0.1):
        text = study_text(p=2, private=False, loss="linear", ridge=ridge)
        slopes.append(vs.fit(text, table).message.coefficients[2])
    assert slopes[0].value < 0 < slopes[1].value
    assert slopes[1].kept is not None
    assert slopes[1].kept > 0


def test_nearest_values_are_named() -> None:
    for wrong, near in (('loss = "logit"', "logistic"), ('norm_bound = "typcial"', "typical")):
        text = study_text(loss="logistic", private=False)
        old = 'loss = "logistic"'
        changed = text.replace(old, wrong if "loss" in wrong else f"{old}\n{wrong}")
        with pytest.raises(ConfigError, match=f"did you mean '{near}'"):
            parse_study(changed)


def test_the_commonest_reason_of_unusable_records_is_named() -> None:
    x = ["0.1"] * 400 + ["odd"] * 5 + ["0.2"] * 2
    table = {"x0": np.array(x, dtype=object), "y": np.array(["1"] * 203 + ["0"] * 202 + ["2"] * 2)}
    with pytest.warns(vs.DataWarning, match=r"5 x column 'x0'"):
        vs.fit(study_text(p=1, private=False, loss="logistic"), table)
