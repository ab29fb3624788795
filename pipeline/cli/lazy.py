"""A group of commands whose modules are imported when one of them is asked for.

Most of a command's start is imports. The list of commands is written from a table, so that `--help`
imports none of them, and a worker that restarts does not wait for what it does not use.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from types import ModuleType
from typing import Any, NamedTuple

import click


class Lazy(NamedTuple):
    """Where a command is, and what the list of commands says of it.

    module: The module of this package that has it, under its own name.
    line: First sentence of the command's own help.
    """

    module: str
    line: str


class LazyGroup(click.Group):
    """A group that imports a command when it is asked for.

    table: The commands by name, in the order in which they are listed.
    """

    def __init__(self, *args: Any, table: Mapping[str, Lazy], **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.table = table

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands, in the order of the table."""
        return list(self.table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return a command; None if there is none of this name."""
        if cmd_name not in self.table:
            return None
        command: click.Command = getattr(_module(self.table[cmd_name]), cmd_name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands as click does, and import none."""
        room = formatter.width - 6 - max(map(len, self.table))
        rows = [
            (name, click.Command(name, help=lazy.line).get_short_help_str(room))
            for name, lazy in self.table.items()
        ]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


def _module(lazy: Lazy) -> ModuleType:
    return import_module(f"pipeline.cli.{lazy.module}")
