"""`import veilstream`: which names there are, that each is there, and that they cost nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import veilstream as vs

ROOT = Path(__file__).parents[2]
#: What users may rely on: a name that leaves this list breaks their programs.
NAMES = [
    "BacktestResult",
    "BrokerError",
    "ConfigError",
    "DataError",
    "DataWarning",
    "LinearClassifier",
    "LinearRegressor",
    "NotReadyWarning",
    "NumericError",
    "PrivateClassifier",
    "PrivateRegressor",
    "RangeWarning",
    "Result",
    "StreamClassifier",
    "StreamRegressor",
    "Study",
    "VeilstreamError",
    "VeilstreamWarning",
    "backtest",
    "check_study",
    "estimates",
    "fit",
    "load_model",
    "load_study",
    "newest_estimate",
    "parse_study",
    "without_privacy",
]


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


def test_a_name_that_does_not_exist_is_no_attribute() -> None:
    with pytest.raises(AttributeError, match="'veilstream' has no attribute 'nothing'"):
        _ = vs.nothing
    assert not hasattr(vs, "__wrapped__")


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


def test_reading_a_study_loads_no_numbers() -> None:
    assert not imported("import veilstream; veilstream.load_study") & {"kafka", "sklearn", "pandas"}


def test_a_star_import_has_them_all() -> None:
    scope: dict[str, object] = {}
    exec("from veilstream import *", scope)  # noqa: S102  what a notebook types
    assert set(NAMES) <= set(scope)
