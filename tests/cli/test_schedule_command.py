"""`veilstream schedule`: the plan of a round, and other plans beside it, from the file alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests import ages
from tests.builders import study_text
from tests.program import run_here


def run(tmp_path: Path, text: str, *words: object) -> tuple[int, str, str]:
    path = tmp_path / "study.toml"
    path.write_text(text)
    done = run_here(["schedule", *map(str, words), str(path)], {})
    return done.returncode, done.stdout, done.stderr


def test_the_plan_of_a_round_is_printed_with_its_reasons(tmp_path: Path) -> None:
    text = ages.study_text(method="capacity = 1")
    code, out, _ = run(tmp_path, text, "--json", "--round", 3)
    found, plan = json.loads(out), ages.task_of(text).plan
    assert code == 0
    assert [row["client"] for row in found["rows"]] == list(plan.names)
    assert [row["slot_of_source"] for row in found["rows"]] == (36 + plan.slots).tolist()
    assert found["expected_loss"] == pytest.approx(sum(row["loss"] for row in found["rows"]))
    assert found["gap"] == 0.0
    code, out, _ = run(tmp_path, text, "--explain")
    assert code == 0
    assert "north" not in out
    assert "rounds_that_fit: " in out
    assert "--explain" in run(tmp_path, text)[1]
    assert "a-1" in out
    assert "classical" in out


def test_plans_are_compared_and_it_says_when_data_do_not_help(tmp_path: Path) -> None:
    text = ages.study_text(method="capacity = 1\ncap = 8.0")
    code, out, _ = run(tmp_path, text, "compare", "--json")
    found = json.loads(out)
    losses = [row["loss"] for row in found["rows"]]
    assert code == 0
    # nothing is better than the best slots with the noise of their age, uploads as they are
    assert losses[5] == pytest.approx(min(losses[:6]))
    assert losses[8] >= losses[5] * (1 - 1e-9)
    assert len(found["rows"]) == 9
    assert "squared" in found["notes"][0]
    assert found["lower_bound"] <= losses[5] * (1 + 1e-9)
    assert found["data_help"] is (losses[6] < losses[7])
    assert ("data do not help" in " ".join(found["notes"])) is not found["data_help"]
    unknown = json.loads(run(tmp_path, ages.study_text(groups=ages.ALONE), "compare", "--json")[1])
    assert unknown["rows"][7]["loss"] is None
    assert unknown["data_help"] is None


def test_other_studies_have_no_schedule(tmp_path: Path) -> None:
    for words in ((), ("compare",)):
        code, _, err = run(tmp_path, study_text(), *words)
        assert code == 10
        assert "estimator.kind" in err
