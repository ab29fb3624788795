"""The command line within the tests' own process: a start takes longer than most commands."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from click.testing import CliRunner

from pipeline.cli.main import main

#: Commands that change the process they run in, by its signals or its end, or leave children to it.
APART = frozenset({"demo", "down", "page", "produce", "up", "worker"})


class _Program:
    """What click's runner asks of a command, around all that the program does with an error."""

    name = "veilstream"

    def main(self, args: Sequence[str], prog_name: str, **_: Any) -> None:
        before = sys.argv
        sys.argv = [prog_name, *args]
        try:
            main()
        finally:
            sys.argv = before


def run_here(
    arguments: Sequence[str], environment: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    """Run `veilstream ARGUMENTS` as a process with this environment would, and return its outcome.

    Errors that the program does not expect are raised.
    """
    changes = {name: environment.get(name) for name in {*os.environ, *environment}}
    done = CliRunner().invoke(
        _Program(),  # type: ignore[arg-type]
        list(arguments), env=changes, catch_exceptions=False,
    )  # fmt: skip
    return subprocess.CompletedProcess(list(arguments), done.exit_code, done.stdout, done.stderr)
