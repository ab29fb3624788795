"""`veilstream doctor`: what it prints, and how it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from pipeline.cli.main import cli
from pipeline.errors import ConfigError
from tests.builders import study_text as renewable
from tests.sgd import study_text as gradients


def run(tmp_path: Path, text: str, *options: str) -> Result:
    file = tmp_path / "study.toml"
    file.write_text(text)
    return CliRunner().invoke(cli, ["doctor", "coverage", str(file), *options])


@pytest.mark.parametrize(
    "text",
    [
        gradients(epsilon=1.0),
        pytest.param(renewable(p=2, epsilon=1.0), marks=pytest.mark.slow),
    ],
)
def test_a_study_that_cannot_be_trusted_is_told_so(tmp_path: Path, text: str) -> None:
    found = run(tmp_path, text, "--records", "1000", "--replications", "8")
    assert found.exit_code == 0, found.output
    assert "8 simulated streams of 1,000 records, 10 clients" in found.stdout
    assert "assumed: independent records, features uniform" in found.stdout
    assert "can intervals be trusted here, if records are as assumed? no" in found.stdout
    assert "rule of thumb: intervals come" in found.stdout


def test_json_has_all_numbers_and_the_same_run_gives_the_same(tmp_path: Path) -> None:
    options = ("--records", "2000", "--replications", "3", "--truth", "1,2,0,-1", "--json")
    one, other = (run(tmp_path, gradients(mechanism="none"), *options) for _ in range(2))
    facts = json.loads(one.stdout)
    assert facts == json.loads(other.stdout)
    assert facts["truth"] == pytest.approx([1, 2, 0, -1])
    assert facts["target"] == pytest.approx([1, 2, 0, -1], abs=1e-4)
    assert facts["residual_scale"] == pytest.approx(0.5)
    assert facts["coverage"]["replications"] == 3
    assert facts["verdict"]["trusted"] is False


@pytest.mark.parametrize(
    ("text", "options", "word"),
    [
        (renewable().replace("[estimator]", '[estimator]\nkind = "pooled"'), (), "pooled"),
        (gradients(), ("--records", "19"), "--records"),
        (gradients(), ("--truth", "1,2"), "--truth"),
        (gradients(), ("--truth", "1,2,x,4"), "--truth"),
        (gradients(), ("--residual-scale", "-1"), "--residual-scale"),
    ],
)
def test_nonsense_is_refused_by_name(
    tmp_path: Path, text: str, options: tuple[str, ...], word: str
) -> None:
    found = run(tmp_path, text, *options)
    assert isinstance(found.exception, ConfigError)
    assert word in str(found.exception)


@pytest.mark.parametrize(
    "options", [("--records", "0"), ("--clients", "0"), ("--replications", "1")]
)
def test_sizes_out_of_range_are_refused(tmp_path: Path, options: tuple[str, str]) -> None:
    found = run(tmp_path, gradients(), *options)
    assert found.exit_code == 2
    assert options[0] in found.output
