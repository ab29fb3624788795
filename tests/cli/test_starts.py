"""What a command imports before it does anything: a start is mostly imports.

Lists of modules and not times: they are the same on a busy machine.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import click
import pytest

from pipeline.cli.main import COMMANDS, THREADS, cli
from pipeline.study_file.edit import TEMPLATE

#: Each takes a tenth of a second or more, or brings what does.
MATHS = {"scipy.integrate", "scipy.optimize", "scipy.sparse", "scipy.stats"}
LEARNING = {"matplotlib", "pandas", "pyarrow", "river", "sklearn"}
KAFKA = {"aiohttp", "aiokafka", "faust", "kafka", "redis"}
SCREEN = {"rich"}
NUMBERS = {"numpy", "scipy", "msgspec", "cryptography"}

SCRIPT = """\
import json, sys
from importlib import import_module
import click
from pipeline.cli.main import cli
modules, *words = sys.argv[1:]
for module in modules.split():
    import_module(module)
try:
    cli.main(words, standalone_mode=False)
except click.exceptions.Exit:
    pass
print("\\n" + json.dumps(sorted(sys.modules)))
"""


def imported(*words: str, modules: Sequence[str] = ()) -> set[str]:
    """Return the modules of a fresh process that imports some and runs a command."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, " ".join(modules), *words],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return set(json.loads(done.stdout.splitlines()[-1]))


def test_the_list_of_commands_imports_none_of_them() -> None:
    found = imported("--help")
    assert not found & (MATHS | LEARNING | KAFKA | SCREEN | NUMBERS)
    assert {name for name in found if name.startswith("pipeline.cli.")} == {
        "pipeline.cli.main",
    }


@pytest.mark.parametrize(
    ("name", "given", "threads"),
    [
        pytest.param("doctor", {"OMP_NUM_THREADS": "2"}, "2", marks=pytest.mark.slow),
        ("fit", {}, "1"),
        pytest.param("predict", {}, None, marks=pytest.mark.slow),
    ],
)
def test_what_has_small_matrices_is_computed_on_one_core(
    name: str, given: dict[str, str], threads: str | None
) -> None:
    script = (
        "import json, os, sys, click; from pipeline.cli.main import cli\n"
        "assert 'numpy' not in sys.modules\n"
        "cli.get_command(click.Context(cli), sys.argv[1])\n"
        "print(json.dumps(os.environ.get('OMP_NUM_THREADS')))"
    )
    kept = {key: value for key, value in os.environ.items() if key not in THREADS}
    done = subprocess.run(
        [sys.executable, "-c", script, name],
        env=kept | given, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert json.loads(done.stdout) == threads


def test_checking_a_study_imports_no_more_than_its_plan(tmp_path: Path) -> None:
    study = tmp_path / "study.toml"
    study.write_text(TEMPLATE)
    assert not imported("study", "check", str(study)) & (MATHS | LEARNING | KAFKA | SCREEN)


@pytest.mark.slow
def test_a_worker_that_restarts_waits_for_no_package_that_it_does_not_use() -> None:
    # what the command imports when it runs
    found = imported("worker", "--help", modules=["agents.worker"])
    assert not found & (MATHS | LEARNING | SCREEN | {"sqlite3", "producers"})


@pytest.mark.slow
def test_commands_that_only_read_load_no_part_of_scipy() -> None:
    found = imported(
        "--help", modules=[f"pipeline.cli.{name}" for name in ("watch", "predict", "dlq")]
    )
    assert not found & (MATHS | {"scipy.linalg", "scipy.special"})


@pytest.mark.parametrize("name", COMMANDS)
def test_the_list_says_what_a_command_says_of_itself(name: str) -> None:
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    assert COMMANDS[name] == command.get_short_help_str(limit=1000)


@pytest.mark.slow
def test_where_warnings_are_errors_those_of_kafka_s_library_are_none() -> None:
    """A user can do nothing about how it reads its own files."""
    words = ["-W", "error::DeprecationWarning", "-c"]
    each = "import pipeline.api.feed, pipeline.cli.topics, pipeline.cli.produce"
    done = subprocess.run([sys.executable, *words, each], capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")


def test_a_command_that_does_not_exist_is_none() -> None:
    assert cli.get_command(click.Context(cli), "nothing") is None
