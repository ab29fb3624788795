"""The registry of methods: nothing else names one, and a room is loaded when a study names it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import pipeline
from pipeline.backtest.options import Options
from pipeline.backtest.run import tasks_beside
from pipeline.errors import ConfigError
from pipeline.methods import OFFLINE, load, offline_method, require_live, revision_of
from pipeline.methods import task_of as make_task
from pipeline.records.encoder import stack
from pipeline.release.task import form_of
from pipeline.study_file.load import parse_study
from tests.builders import study_text
from tests.published import KEYS, NOISED, rows_by_client, sample, task_of, text_of

ROOT = Path(pipeline.__file__).parent.parent
SHIPPED = ("pipeline", "producers", "agents", "state", "infra")
ROOMS = {name.partition(":")[0] for name in OFFLINE.values()}


def test_nothing_but_the_registry_names_a_room_or_what_is_in_it() -> None:
    # "pooled" is also how paths of several partitions go together
    names = [*ROOMS, *(f'"{kind}' for kind in OFFLINE if kind != "pooled")]
    inside = [ROOT / room.replace(".", "/") for room in ROOMS]
    for folder in SHIPPED:
        for path in (ROOT / folder).rglob("*.py"):
            if path == ROOT / "pipeline/methods/__init__.py" or set(inside) & set(path.parents):
                continue
            text = path.read_text()
            assert not [name for name in names if name in text], path


@pytest.mark.slow
def test_a_room_is_loaded_for_its_own_studies_alone() -> None:
    program = (
        "import sys\n"
        "from pipeline.cli.main import cli\n"
        "import pipeline.cli.fit, pipeline.cli.backtest, pipeline.cli.study\n"
        "from pipeline.study_file.load import parse_study\n"
        "from tests.builders import study_text\n"
        "parse_study(study_text())\n"
        "print([name for name in sys.modules if name.startswith('pipeline.methods.published')])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("kind", OFFLINE)
def test_a_method_says_what_it_is_and_why_it_is_not_live(kind: str) -> None:
    task = task_of(kind)
    method = offline_method(task.study)
    assert method is load(kind)
    assert method.meaning
    assert method.online == kind.startswith("online")
    for clients in (None, 3):
        said = method.guarantee(task, clients)
        assert said.guarantee.startswith(("no ", "none: ", "not guaranteed "))
        assert said.epsilon is None
    with pytest.raises(ConfigError, match=method.needs):
        require_live(task.study, "a test")


def test_a_live_study_has_no_offline_method() -> None:
    study = parse_study(study_text())
    assert offline_method(study) is None
    require_live(study, "a test")


@pytest.mark.parametrize("kind", OFFLINE)
def test_the_same_study_can_be_had_with_each_method(kind: str) -> None:
    study = parse_study(study_text(p=2, epsilon=0.7, delta=1e-6, maximum=4.0, forgetting=(
        'half_life = 500, of = "records"')))  # fmt: skip
    beside = load(kind).beside(study, 5)
    assert beside.data == study.data
    assert beside.window == study.window
    assert (beside.estimator.kind, beside.estimator.loss) == (kind, study.estimator.loss)
    assert beside.privacy.mechanism == "none"
    keys = beside.estimator.method or {}
    if kind in NOISED:
        assert (keys["epsilon"], keys["seed"]) == (0.7, 5)
        assert keys.get("delta", 1e-6) == 1e-6
    # its noise has a scale, and so there is an estimate
    clients = {name: stack(rows, 2) for name, rows in rows_by_client(*sample()).items()}
    assert np.isfinite(load(kind).fit(make_task(beside), clients).coefficients).all()
    # numbers have no such method
    numbers = parse_study(study_text(loss="linear", private=False))
    with pytest.raises(ConfigError, match=rf'--beside {kind}: estimator\.loss: kind = "{kind}"'):
        tasks_beside(numbers, Options(beside=(kind,)))


def test_every_kind_of_the_registry_is_tested() -> None:
    assert list(KEYS) == list(OFFLINE)
    assert all(parse_study(text_of(kind)).estimator.kind == kind for kind in KEYS)


def test_the_registry_hands_a_task_its_revision_and_one_that_only_plans_has_no_release() -> None:
    study = parse_study(study_text())
    task = make_task(study)
    assert int(form_of(task).blank["revision"][0]) == int.from_bytes(
        bytes.fromhex(revision_of(study)), "little"
    )
    with pytest.raises(ValueError, match="task_of"):
        form_of(type(task)(study))
