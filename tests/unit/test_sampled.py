"""A sample file whose records are in an order says so; one in a random order does not."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.api.sample import of_sample
from pipeline.errors import DataError
from pipeline.methods import task_of
from pipeline.records.order import going_with_the_order
from pipeline.study_file.load import parse_study
from tests.builders import study_text

RECORDS = 2_000


def sample(path: Path, arranged: Callable[[np.ndarray[Any, Any]], Any], seed: int) -> Any:
    """Return what is said of a file of records, x0 to x2 and y, whose rows are arranged."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(-1, 1, (RECORDS, 3))
    y = (rng.random(RECORDS) < 1 / (1 + np.exp(-x[:, 0]))).astype(int)
    study = parse_study(study_text(loss="logistic"))
    rows = np.column_stack([x, y])
    rows = rows[arranged(rows)]
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*study.feature_names, study.data.response.name])
        writer.writerows([*row[:3], int(row[3])] for row in rows.tolist())
    return of_sample(task_of(study), str(path))


@pytest.mark.parametrize("seed", range(5))
def test_a_random_order_is_nothing_to_speak_of(seed: int, tmp_path: Path) -> None:
    found = sample(tmp_path / "sample.csv", lambda rows: np.arange(len(rows)), seed)
    assert "order" not in found
    assert "goes_with_the_order" not in found


@pytest.mark.parametrize("column", [0, 2, 3])
def test_a_sorted_file_is_found_with_the_column(column: int, tmp_path: Path) -> None:
    found = sample(
        tmp_path / "sample.csv", lambda rows: np.argsort(rows[:, column], kind="stable"), 1
    )
    study = parse_study(study_text(loss="logistic"))
    names = [*study.feature_names, study.data.response.name]
    assert next(iter(found["goes_with_the_order"])) == names[column]
    assert "shuffle it before it is released" in found["order"]


def test_a_drift_in_half_of_the_file_is_found(tmp_path: Path) -> None:
    def drifting(rows: np.ndarray[Any, Any]) -> Any:
        late = rows[:, 1] + np.random.default_rng(2).normal(0, 1, len(rows))
        return np.argsort(late)

    found = sample(tmp_path / "sample.csv", drifting, 1)
    assert list(found["goes_with_the_order"]) == ["x1"]


def test_few_records_say_nothing_of_an_order(tmp_path: Path) -> None:
    found = sample(tmp_path / "sample.csv", lambda rows: np.argsort(rows[:, 0])[:150], 1)
    assert "order" not in found


def written(path: Path, responses: list[str]) -> str:
    lines = [f"0.1,0.2,{i % 7 / 10},{said}" for i, said in enumerate(responses)]
    study = parse_study(study_text(loss="logistic"))
    header = ",".join([*study.feature_names, study.data.response.name])
    path.write_text("\n".join([header, *lines]) + "\n")
    return str(path)


def test_a_response_that_cannot_be_read_makes_a_record_unusable(tmp_path: Path) -> None:
    task = task_of(parse_study(study_text(loss="logistic")))
    path = written(tmp_path / "a.csv", ["1", "0"] * 50 + ["maybe", ""])
    found: Any = of_sample(task, path)
    assert (found["records"], found["unusable"]) == (102, 2)
    name = task.study.data.response.name
    assert found["faults"] == {
        f"column '{name}': unknown class; allowed: '1', '0'": 1,
        f"column '{name}': missing": 1,
    }
    assert "refused" not in found


def test_a_sample_that_a_client_would_refuse_is_called_so(tmp_path: Path) -> None:
    task = task_of(parse_study(study_text(loss="logistic")))
    found: Any = of_sample(task, written(tmp_path / "a.csv", ["1", "0", "maybe", "maybe"] * 500))
    assert "does not declare" in found["refused"]


def test_a_method_without_clients_refuses_no_sample(tmp_path: Path) -> None:
    text = study_text(loss="logistic", private=False)
    text = text.replace("[estimator]", '[estimator]\nkind = "pooled"')
    task = task_of(parse_study(text))
    found: Any = of_sample(task, written(tmp_path / "a.csv", ["1", "0", "maybe", "maybe"] * 500))
    assert (found["unusable"], "refused" in found) == (1000, False)


def test_a_sample_without_any_known_response_is_an_error(tmp_path: Path) -> None:
    task = task_of(parse_study(study_text(loss="logistic")))
    path = written(tmp_path / "a.csv", ["secret", "other"] * 50)
    with pytest.raises(DataError, match=r"none of its 100 records .* unknown class") as caught:
        of_sample(task, path)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("share", [0.004, 0.01, 0.3])
def test_a_file_that_is_sorted_by_a_rare_value_is_seen(share: float) -> None:
    """Most of the variance of a rare value is within parts, whatever the order is."""
    column = (np.arange(8_000) >= 8_000 * (1 - share)).astype(float)
    assert going_with_the_order({"b": column * 0, "a": column}) == {"a": pytest.approx(1.0)}
    shuffled = np.random.default_rng(8).permutation(column)
    assert going_with_the_order({"a": shuffled}) == {}
    # rounding is no order
    assert going_with_the_order({"a": np.full(8_000, 0.3)}) == {}
