"""`veilstream privacy calibrate`: all questions in all directions, and bad input.

In one process: a fault that is not turned into a sentence ends a test with its traceback.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Callable
from typing import Any, get_args

import numpy as np
import pytest

from pipeline.cli import main as command_line
from pipeline.privacy.calibration import Name, Question, solve
from pipeline.privacy.discrete_gaussian import DiscreteGaussian
from pipeline.privacy.discrete_laplace import DiscreteLaplace
from tests.builders import SeededStream

NAMES = get_args(Name)
GAUSSIANS = [name for name in NAMES if "gaussian" in name]
LAPLACES = [name for name in NAMES if "laplace" in name]
Run = Callable[..., tuple[int, str, str]]
KEYS = {
    "mechanism", "sensitivity", "dimension", "records", "releases", "scale", "epsilon", "delta",
    "mu", "lattice", "lattice_scale", "how", "standard_deviation",
}  # fmt: skip


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Return a function that runs the command as a shell would."""

    def run(**options: object) -> tuple[int, str, str]:
        words = [f"--{name}={value}" if value != "" else f"--{name}"
                 for name, value in options.items() if value is not None]  # fmt: skip
        monkeypatch.setattr(sys, "argv", ["veilstream", "privacy", "calibrate", *words])
        code = 0
        try:
            command_line.main()
        except SystemExit as done:
            code = int(done.code or 0)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def answer(run: Run, **options: object) -> dict[str, Any]:
    code, out, err = run(json="", **options)
    assert (code, err) == (0, "")
    [line] = out.splitlines()
    found: dict[str, Any] = json.loads(line)
    assert set(found) == KEYS
    return found


def budget_for(name: str) -> dict[str, float]:
    return {"epsilon": 0.8, "delta": 1e-6} if name in GAUSSIANS else {"epsilon": 0.8}


# --- answers ---------------------------------------------------------------------------------


@pytest.mark.parametrize("lattice", [None, 0.5])
@pytest.mark.parametrize("name", NAMES)
def test_a_budget_gives_the_scale_that_the_library_gives(
    run: Run, name: Name, lattice: float | None
) -> None:
    if lattice is not None and "discrete" not in name:
        return
    options: dict[str, object] = {"dimension": 3, "records": 4, "releases": 2}
    found = answer(
        run, mechanism=name, sensitivity=1.5, lattice=lattice, **options, **budget_for(name)
    )
    wanted = solve(Question(name, 1.5, 3, 4, 2, lattice), **budget_for(name))
    assert found["scale"] == wanted.scale
    assert found["lattice"] == wanted.lattice
    assert found["how"] == wanted.how
    assert {key: found[key] for key in options} == options


@pytest.mark.parametrize(
    ("name", "lattice"),
    [("gaussian", None), ("laplace", None), ("discrete-gaussian", 0.5), ("discrete-laplace", 0.5)],
)
@pytest.mark.parametrize("more", [{}, {"records": 3}, {"releases": 5}, {"dimension": 7}], ids=str)
def test_every_direction_leads_back(
    run: Run, name: str, lattice: float | None, more: dict[str, int]
) -> None:
    question = {"mechanism": name, "sensitivity": 1.5, "lattice": lattice, **more}
    first = answer(run, **question, **budget_for(name))
    delta = 1e-6 if name in GAUSSIANS else None
    back = answer(run, **question, scale=repr(first["scale"]), delta=delta)
    assert back["epsilon"] == pytest.approx(0.8, rel=1e-6)
    again = answer(run, **question, epsilon=repr(back["epsilon"]), delta=delta)
    assert again["scale"] == pytest.approx(first["scale"], rel=1e-6)
    if delta is not None:
        third = answer(run, **question, scale=repr(first["scale"]), epsilon=0.8)
        assert third["delta"] == pytest.approx(1e-6, rel=1e-5)


def test_groups_and_releases_enter_as_they_compose(run: Run) -> None:
    scale = {}
    for name in ("gaussian", "laplace"):
        for more in ({}, {"records": 9}, {"releases": 9}):
            found = answer(run, mechanism=name, sensitivity=1, **more, **budget_for(name))
            scale[name, *more] = found["scale"]
    assert scale["gaussian", "records"] == pytest.approx(9 * scale["gaussian",])
    assert scale["gaussian", "releases"] == pytest.approx(3 * scale["gaussian",])
    assert scale["laplace", "records"] == pytest.approx(9 * scale["laplace",])
    assert scale["laplace", "releases"] == pytest.approx(9 * scale["laplace",])


def test_a_dimension_costs_rounding_alone_where_the_sensitivity_is_given(run: Run) -> None:
    for name in ("discrete-gaussian", "discrete-laplace"):
        one, many = (
            answer(run, mechanism=name, sensitivity=1, dimension=d, **budget_for(name))["scale"]
            for d in (1, 400)
        )
        assert one < many < 1.005 * one


@pytest.mark.parametrize("scale", [0.3, 0.8, 2.0, 5.0, 400.0])
def test_the_stated_deviation_is_that_of_the_noise_on_its_lattice(run: Run, scale: float) -> None:
    """10^5 draws; six Monte Carlo errors, from the fourth moment of the draws themselves."""
    samplers = {"discrete-gaussian": DiscreteGaussian, "discrete-laplace": DiscreteLaplace}
    for name, sampler in samplers.items():
        delta = 1e-6 if name in GAUSSIANS else None
        found = answer(
            run, mechanism=name, sensitivity=0.5, lattice=0.5, scale=scale * 0.5, delta=delta
        )
        draws = sampler(scale).draw(100_000, SeededStream(8)) * 0.5
        stated = found["standard_deviation"]
        error = np.std(draws**2) / math.sqrt(len(draws))
        assert abs(np.mean(draws**2) - stated**2) < 6 * error


def test_people_get_one_fact_in_each_line(run: Run) -> None:
    code, out, err = run(mechanism="gaussian", sensitivity=1, epsilon=1, delta=1e-5)
    assert (code, err) == (0, "")
    lines = dict(line.split(": ", maxsplit=1) for line in out.splitlines())
    assert float(lines["scale"]) == pytest.approx(3.730631634, abs=1e-8)
    assert lines["how"].startswith("exact")
    assert "lattice" not in lines


def test_sigma_is_another_word_for_scale(run: Run) -> None:
    question = {"mechanism": "gaussian", "sensitivity": 1, "delta": 1e-5}
    assert answer(run, sigma=2.0, **question) == answer(run, scale=2.0, **question)


# --- population ------------------------------------------------------------------------------


@pytest.mark.parametrize(("population", "warned"), [(10**4, False), (10**6, False), (10**7, True)])
def test_a_delta_that_is_loose_for_a_population_is_warned_of_on_standard_error(
    run: Run, population: int, warned: bool
) -> None:
    question = {"mechanism": "gaussian", "sensitivity": 1, "population": population, "json": ""}
    for given in ({"epsilon": 1, "delta": 1e-6}, {"scale": 4.7, "delta": 1e-6}):
        code, out, err = run(**question, **given)
        assert code == 0
        json.loads(out)
        assert ("WARNING: delta 1e-06" in err) == warned
        assert ("1 / 1e+07" in err) == warned


def test_a_delta_that_is_found_is_warned_of_too_and_laplace_noise_has_none(run: Run) -> None:
    code, _, err = run(mechanism="gaussian", sensitivity=1, epsilon=1, scale=2, population=1000)
    assert code == 0
    assert "WARNING" in err
    code, _, err = run(mechanism="laplace", sensitivity=1, epsilon=1, population=10**9)
    assert (code, err) == (0, "")


@pytest.mark.parametrize("population", ["0", "-5", "nan", "0.5"])
def test_a_population_below_one_is_refused(run: Run, population: str) -> None:
    check_refusal(
        *run(mechanism="gaussian", sensitivity=1, epsilon=1, delta=1e-6, population=population),
        "population must be",
    )


# --- bad input -------------------------------------------------------------------------------


def check_refusal(code: int, out: str, err: str, words: str) -> None:
    assert out == ""
    assert words in err, err
    if code == 2:  # the form of the command is wrong, which click says with its usage
        assert err.startswith("Usage:")
        return
    assert code == 30
    assert len(err.splitlines()) == 1
    assert err.startswith("veilstream: ")
    assert "Traceback" not in err


VALID = {"sensitivity": 1, "epsilon": 1.0, "delta": 1e-6}
BAD: list[tuple[str, str, str]] = [
    *(("epsilon", value, "epsilon must be") for value in ("0", "-1", "nan", "inf", "-inf")),
    *(("delta", value, "delta must lie") for value in ("0", "-1e-6", "1", "1.5", "nan", "inf")),
    *(("sensitivity", value, "sensitivity must be") for value in ("0", "-1", "nan", "inf")),
    *((name, value, f"{name} must be a whole number")
      for name in ("dimension", "records", "releases") for value in ("0", "-1", "9" * 30)),
    *((name, value, "is not a valid integer")
      for name in ("dimension", "records", "releases") for value in ("1.5", "nan", "x")),
    *((name, "x", "is not a valid float") for name in (*VALID, "scale", "lattice", "population")),
    ("scale", "1", "exactly one of epsilon, delta, scale"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "value", "words"), BAD)
@pytest.mark.parametrize("mechanism", GAUSSIANS)
def test_a_bad_value_ends_with_30_or_2_and_names_the_option(
    run: Run, mechanism: str, name: str, value: str, words: str
) -> None:
    check_refusal(*run(mechanism=mechanism, **{**VALID, name: value}), words)


@pytest.mark.parametrize("value", ["0", "-1", "nan", "inf"])
@pytest.mark.parametrize("mechanism", NAMES)
def test_a_bad_scale_ends_with_30(run: Run, mechanism: str, value: str) -> None:
    delta = 1e-6 if mechanism in GAUSSIANS else None
    lattice = 1 if "discrete" in mechanism else None
    done = run(mechanism=mechanism, sensitivity=1, lattice=lattice, scale=value, delta=delta)
    check_refusal(*done, "scale must be")


@pytest.mark.parametrize("mechanism", LAPLACES)
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"epsilon": 1, "delta": 1e-6}, "pure epsilon; leave delta out"),
        ({"epsilon": 1, "scale": 2}, "exactly one of epsilon, scale"),
        ({}, "exactly one of epsilon, scale"),
        ({"epsilon": 0}, "epsilon must be"),
        ({"epsilon": "nan"}, "epsilon must be"),
        ({"epsilon": 1, "records": 0}, "records must be"),
    ],
)
def test_laplace_noise_refuses_what_it_cannot_be_asked(
    run: Run, mechanism: str, options: dict[str, object], words: str
) -> None:
    check_refusal(*run(mechanism=mechanism, sensitivity=1, **options), words)


@pytest.mark.parametrize("given", [{}, {"epsilon": 1}, {"delta": 1e-6}, {"scale": 1}])
@pytest.mark.parametrize("mechanism", GAUSSIANS)
def test_one_of_three_alone_or_none_is_refused(
    run: Run, mechanism: str, given: dict[str, object]
) -> None:
    done = run(mechanism=mechanism, sensitivity=1, **given)
    check_refusal(*done, "exactly one of epsilon, delta, scale")


@pytest.mark.parametrize(
    ("sensitivity", "lattice", "words"),
    [
        (1, 1e-13, "between 1 and 2^40 lattice units"),
        (1, 2, "between 1 and 2^40 lattice units"),
        (1.5, 1, "whole number of lattice units"),
        (1, "0", "lattice must be"),
        (1, "-1", "lattice must be"),
        (1, "nan", "lattice must be"),
        (1, "inf", "lattice must be"),
    ],
)
@pytest.mark.parametrize("mechanism", ["discrete-gaussian", "discrete-laplace"])
def test_a_lattice_too_fine_too_coarse_or_not_whole_is_refused(
    run: Run, mechanism: str, sensitivity: float, lattice: object, words: str
) -> None:
    done = run(
        mechanism=mechanism, sensitivity=sensitivity, lattice=lattice, **budget_for(mechanism)
    )
    check_refusal(*done, words)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"mechanism": "gaussian", "lattice": 1, **VALID}, "goes with the discrete mechanisms"),
        ({"mechanism": "discrete-gaussian", "sensitivity": 1, "scale": 9, "delta": 1e-6},
         "lattice: it must"),
        ({"mechanism": "discrete-laplace", "sensitivity": 1, "scale": 9}, "lattice: it must"),
        ({"mechanism": "discrete-gaussian", **VALID, "delta": 1e-40}, "below what discrete noise"),
        ({"mechanism": "gaussian", "sensitivity": 1e90, "scale": 1e-90, "delta": 1e-6},
         "any finite epsilon"),
        ({"mechanism": "exponential", **VALID}, "is not one of"),
        ({"mechanism": "gaussian", "epsilon": 1, "delta": 1e-6}, "Missing option '--sensitivity'"),
        ({"mechanism": "gaussian", "epsilom": 1, **VALID}, "No such option"),
    ],
)  # fmt: skip
def test_what_does_not_go_together_is_refused(
    run: Run, options: dict[str, object], words: str
) -> None:
    check_refusal(*run(**options), words)


def test_the_program_itself_ends_so() -> None:
    command = [sys.executable, "-m", "pipeline.cli.main", "privacy", "calibrate"]
    good = ["--mechanism", "laplace", "--sensitivity", "1", "--json", "--scale"]
    done = [
        subprocess.run([*command, *good, scale], capture_output=True, text=True, check=False)
        for scale in ("2", "-2")
    ]
    assert [process.returncode for process in done] == [0, 30]
    assert json.loads(done[0].stdout)["epsilon"] == 0.5
    check_refusal(30, done[1].stdout, done[1].stderr, "scale must be")
