"""`veilstream schedule`: the plan of a round from the file alone, and model cards."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import numpy as np
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
    code, out, _ = run(tmp_path, text, "--explain")
    assert code == 0
    assert "north" not in out
    assert "rounds_that_fit: " in out
    assert "--explain" in run(tmp_path, text)[1]
    assert "a-1" in out
    assert "classical" in out


def test_other_studies_have_no_schedule(tmp_path: Path) -> None:
    code, _, err = run(tmp_path, study_text())
    assert code == 10
    assert "estimator.kind" in err


def _histories(tmp_path: Path, records: int) -> list[str]:
    rng, words = np.random.default_rng(6), []
    for number in range(2):
        values = rng.choice([0, 60, 120, 180], size=12 * records)
        path = tmp_path / f"history-{number}.csv"
        path.write_text("power\n" + "\n".join(map(str, values)) + "\n")
        words += ["--source", str(path)]
    return words


def test_a_card_is_estimated_once_and_goes_into_the_study(tmp_path: Path) -> None:
    text = ages.study_text(records=2000, epsilon=8.0)
    out = tmp_path / "card.toml"
    words = ["card", "--group", "slow", *_histories(tmp_path, 2000), "--out", str(out)]
    code, said, _ = run(tmp_path, text, *words, "--epsilon", "2", "--json")
    found = json.loads(said)
    assert code == 0
    assert found["left_after_a_round"] <= found["left_after_half_a_round"] < 1.0
    lines = tomllib.loads(out.read_text())
    assert lines["error"] == pytest.approx(found["error"], abs=1e-6)
    # the old keys go, the new ones come
    old = 'mixing = "cyclic"\nstates = [0, 60, 120, 180]\nq = 0.4\n'
    assert old in text
    code, said, _ = run(tmp_path, text.replace(old, out.read_text()), "--json")
    assert code == 0
    assert {row["group"] for row in json.loads(said)["rows"]} == {"fast", "slow"}
    # a second estimate of the same name would cost once more, and nobody would know
    before = out.read_text()
    code, _, said = run(tmp_path, text, *words, "--epsilon", "2")
    assert code == 10
    assert "is there already" in said
    assert out.read_text() == before


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--group", "none", "--epsilon", "2"], "it has 'fast', 'slow'"),
        (["--group", "slow", "--epsilon", "0"], "--epsilon"),
        (["--group", "slow", "--epsilon", "2"], "Nothing has been drawn or spent"),
    ],
)
def test_a_card_that_cannot_be_leaves_no_file(tmp_path: Path, words: list[str], told: str) -> None:
    out = tmp_path / "card.toml"
    given = ["card", *words, *_histories(tmp_path, 20), "--out", str(out)]
    code, _, said = run(tmp_path, ages.study_text(), *given)
    assert code != 0
    assert told in said
    assert not out.exists()


def test_a_card_needs_states(tmp_path: Path) -> None:
    words = ["card", "--group", "all", *_histories(tmp_path, 20), "--epsilon", "1"]
    text = ages.study_text(groups=ages.ALONE)
    code, _, said = run(tmp_path, text, *words, "--out", str(tmp_path / "card.toml"))
    assert code == 10
    assert "estimator.method.groups.all.states" in said
    code, _, said = run(tmp_path, study_text(), *words, "--out", str(tmp_path / "card.toml"))
    assert code == 10
    assert "have no schedule" in said
