"""What a notebook gets: one fit from any form of the records, and what it says of itself."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from matplotlib.figure import Figure

import veilstream as vs
from pipeline.api.table import intervals_table, target_line
from pipeline.errors import ConfigError
from pipeline.estimators.estimate import kept_of
from pipeline.messages.estimate import EstimateMessage
from pipeline.study_file.load import parse_study
from tests.builders import simulate, study_text

OPEN = study_text(p=3, private=False, loss="logistic", records=50, releases=3)
PRIVATE = study_text(p=3, loss="logistic", records=50, epsilon=4.0)
POOLED = OPEN.replace("[estimator]", '[estimator]\nkind = "pooled"')


def table(n: int = 400, seed: int = 0) -> dict[str, np.ndarray]:
    X, signs = simulate(np.random.default_rng(seed), n, 3)
    columns = {f"x{i}": column for i, column in enumerate(X.T)}
    return {**columns, "y": (signs > 0).astype(int)}


def written(path: Path, columns: dict[str, Any]) -> Path:
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(zip(*(column.tolist() for column in columns.values()), strict=True))
    return path


def numbers(result: vs.Result) -> dict[str, Any]:
    return {name: value for name, value in result.to_dict().items() if name != "published_at"}


@pytest.mark.parametrize("text", [OPEN, POOLED], ids=["live method", "published method"])
def test_every_form_of_the_same_records_gives_the_same_estimate(text: str, tmp_path: Path) -> None:
    columns = table()
    X = np.column_stack([columns[f"x{i}"] for i in range(3)])
    frame = pd.DataFrame(columns)
    once = numbers(vs.fit(text, written(tmp_path / "all.csv", columns)))
    assert once["records"] == 400
    for other in (
        vs.fit(text, frame),
        vs.fit(text, frame.assign(column_names="a")),
        vs.fit(text, columns),
        vs.fit(text, X, columns["y"]),
        vs.fit(text, frame.drop(columns="y"), frame["y"]),
        vs.fit(text, pa.table(columns)),
        vs.fit(text, pa.table(columns).drop_columns("y"), columns["y"]),
        vs.fit(vs.parse_study(text), str(tmp_path / "all.csv")),
    ):
        assert numbers(other) == once


def test_records_belong_to_the_clients_of_their_column() -> None:
    columns = table(200)
    columns["ward"] = np.array(["a", "b"])[np.arange(200) % 2]
    found = vs.fit(OPEN, columns, client_column="ward")
    assert (found.message.clients, found.message.releases) == (2, 4)
    frame = pd.DataFrame(columns)
    frame.loc[frame.index >= 150, "ward"] = None
    assert vs.fit(OPEN, frame, client_column="ward").message.clients == 3


def test_lines_that_hold_no_record_are_among_the_reasons(tmp_path: Path) -> None:
    path, columns = tmp_path / "all.csv", table(100)
    rows = zip(*(columns[name] for name in ("x0", "x1", "x2", "y")), strict=True)
    lines = [",".join(map(str, row)).encode() for row in rows]
    lines[7], lines[9] = b"1,2", b"\xff" + lines[9]
    path.write_bytes(b"\n".join([b"x0,x1,x2,y", *lines]))
    with pytest.warns(vs.DataWarning, match=r"1 x 2 fields where 4 are needed; 1 x not UTF-8"):
        vs.fit(OPEN, path)
    assert vs.backtest(OPEN, path).faults == {"(line)": 2}


def test_what_cannot_be_used_is_said_by_name() -> None:
    columns = table(100)
    columns["x1"][[3, 9]] = np.nan
    with pytest.warns(vs.DataWarning, match="2 of 100 records could not be used"):
        found = vs.fit(OPEN, columns)
    assert found.message.records == 98
    for bad, error, words in [
        ({"x0": [1.0]}, vs.DataError, "no column 'x1'"),
        ({"X0": [1.0], "x1": [1.0], "y": [1.0]}, vs.DataError, "no column 'x0', 'x2'; it has 'X0'"),
        ({**columns, "x0": 1.0}, vs.DataError, r"another shape: 'x0' has shape \(\)"),
        ({**columns, "x0": [1.0]}, vs.DataError, r"'x0' has shape \(1,\), 'x1' has shape \(100,\)"),
        ([[1.0, 2.0]], vs.DataError, "give y, the values of 'y'"),
        (7, vs.DataError, "mapping from names to columns"),
        ({**columns, "x0": np.full(100, np.nan)}, vs.DataError, "100 x column 'x0': "),
        ({**columns, "y": ["maybe"] * 100}, vs.DataError, "98 x column 'y': unknown class; allow"),
        ({name: column[:0] for name, column in columns.items()}, vs.DataError, "no records"),
        ("-", vs.ConfigError, "standard input"),
    ]:
        with pytest.raises(error, match=words):
            vs.fit(OPEN, bad)
    with pytest.warns(vs.RangeWarning, match="'x0' lie outside the public range"):
        vs.fit(OPEN, {**table(100), "x0": np.full(100, 99.0)})
    with pytest.raises(vs.DataError, match=r"shape \(2, 2\).*x0, x1, x2"):
        vs.fit(OPEN, np.zeros((2, 2)), [0, 1])
    with pytest.raises(vs.ConfigError, match="leave y out"):
        vs.fit(OPEN, "all.csv", [0, 1])


def test_a_summary_has_coefficients_intervals_and_the_guarantee() -> None:
    found = vs.fit(PRIVATE, table())
    text = found.summary()
    assert str(found) == text
    for words in ("intercept", "x2", "95% interval", "(4, 1e-05)-differential", "400 record slots"):
        assert words in text
    assert max(map(len, text.splitlines())) <= 100
    assert "\x1b" not in text
    assert found.guarantee in repr(found)
    assert vs.fit(POOLED, table()).summary().count("interval") == 1


def test_intervals_come_by_name_and_by_method() -> None:
    found = vs.fit(OPEN, table())
    ends = found.conf_int()
    assert list(ends) == ["intercept", "x0", "x1", "x2"] == list(found.coefficients)
    for name, interval in ends.items():
        assert interval is not None
        assert interval[0] < found.coefficients[name] < interval[1]
    assert isinstance(found.message, EstimateMessage)
    shown = [(row.value - 1.0, row.value + 1.0) for row in found.message.coefficients]
    other = msgspec.structs.replace(found.message, intervals={"another method": shown})
    assert [*vs.Result(OPEN, other).conf_int("another method").values()] == shown
    with pytest.raises(vs.ConfigError, match="no interval 'nothing'; allowed: none, leave it out"):
        found.conf_int("nothing")
    early = vs.fit(PRIVATE, table(50))
    assert early.status != "ready"
    assert early.reason
    assert set(early.conf_int().values()) == {None}


def test_a_frame_has_a_row_for_each_coefficient() -> None:
    found = vs.fit(OPEN, table())
    frame = found.to_pandas()
    assert frame["estimate"].to_dict() == found.coefficients
    assert list(zip(frame["lower"], frame["upper"], strict=True)) == [*found.conf_int().values()]
    assert vs.fit(PRIVATE, table(50)).to_pandas()["lower"].isna().all()


def test_a_plot_has_a_point_and_an_interval_for_each_coefficient(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    axes = Figure().subplots()
    found = vs.fit(OPEN, table())
    assert found.plot(axes) is axes
    assert [label.get_text() for label in axes.get_yticklabels()] == list(found.coefficients)
    assert len(axes.collections[0].get_segments()) == 4
    assert list(axes.lines[-1].get_xdata()) == [*found.coefficients.values()]
    # without an interval there is a point alone
    bare = vs.fit(PRIVATE, table(50)).plot(Figure().subplots())
    assert len(bare.collections[0].get_segments()) == 0
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(vs.ConfigError, match=r"veilstream\[backtest\]"):
        found.plot()


def test_a_result_predicts_and_is_saved(tmp_path: Path) -> None:
    columns = table()
    X = np.column_stack([columns[f"x{i}"] for i in range(3)])
    found = vs.fit(OPEN, columns)
    found.save(tmp_path / "model.json")
    again = vs.load_model(tmp_path / "model.json")
    assert again.predict(X).tolist() == found.model.predict(X).tolist()
    learner = vs.StreamClassifier(OPEN).fit(X, columns["y"])
    assert numbers(vs.Result(OPEN, learner.estimate_)) == numbers(found)
    with pytest.raises(vs.ConfigError, match="of study 'test', and not of 'other'"):
        vs.Result(OPEN.replace('"test"', '"other"'), found.message)


def test_a_study_is_checked_as_the_command_does(tmp_path: Path) -> None:
    path = tmp_path / "study.toml"
    path.write_text(PRIVATE)
    facts = vs.check_study(str(path), records=2_000, clients=2)
    assert facts["study"] == "test"
    assert facts["warnings"] == []
    assert vs.load_study(str(path)) == vs.load_study(path) == vs.parse_study(PRIVATE)
    loose = PRIVATE.replace("delta = 1e-05", "delta = 0.1")
    loose = vs.check_study(loose, records=2_000, clients=2)
    assert "delta" in str(loose["warnings"])


ROOT = Path(__file__).parents[2]
#: What users may rely on: a name that leaves this list breaks their programs.
NAMES = [
    "BacktestResult", "BrokerError", "ConfigError", "DataError", "DataWarning", "LinearClassifier",
    "LinearRegressor", "NotReadyWarning", "NumericError", "PrivateClassifier", "PrivateRegressor",
    "RangeWarning", "Result", "StreamClassifier", "StreamRegressor", "Study", "VeilstreamError",
    "VeilstreamWarning", "backtest", "check_study", "estimates", "fit", "load_model", "load_study",
    "newest_estimate", "parse_study", "without_privacy",
]  # fmt: skip


def imported(script: str) -> set[str]:
    """Return the modules of a fresh process behind a script."""
    done = subprocess.run(
        [sys.executable, "-c", f"{script}\nimport json, sys\nprint(json.dumps([*sys.modules]))"],
        capture_output=True, text=True, check=True, cwd=ROOT,
    )  # fmt: skip
    found: list[str] = json.loads(done.stdout)
    return {name.split(".")[0] for name in found}


def test_the_public_names_are_those_that_were_promised() -> None:
    assert vs.__all__ == NAMES
    assert set(vs.__all__) <= set(dir(vs))
    assert set(vs._HOME_OF) == set(vs.__all__)


@pytest.mark.parametrize("name", NAMES)
def test_every_name_is_there_and_says_what_it_is(name: str) -> None:
    found = getattr(vs, name)
    assert found.__doc__
    assert found.__name__ == name
    assert found.__module__.startswith("pipeline.")


def test_importing_costs_nothing_until_a_name_is_used() -> None:
    # from its source: an installed copy may bring finders of its own
    own = {"pipeline", "producers", "agents", "infra", "state"}
    heavy = {"numpy", "scipy", "kafka", "faust", "sklearn", "pandas", "rich", "msgspec"}
    bare = imported("import typing, importlib, __future__")
    assert imported("import veilstream; dir(veilstream)") - bare == {"veilstream"}
    # the names do bring what they need, so that the test above can fail
    used = imported("import veilstream; veilstream.fit")
    assert used >= {"pipeline", "numpy"}
    assert not used & {"kafka", "faust", "sklearn", "pandas", "rich"}
    assert own | heavy


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
