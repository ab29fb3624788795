"""`veilstream play`: any command as a trial, apart from all that counts."""

from __future__ import annotations

import shutil

import click

from infra.addresses import program_paths
from infra.local import LocalRuntime
from pipeline.cli.context import say
from pipeline.settings import begin_trial


@click.command(
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
    options_metavar="",
)
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@click.pass_context
def play(context: click.Context, command: tuple[str, ...]) -> object:
    """Run a COMMAND as a trial, with a Kafka, a Redis, keys and a ledger of its own.

    No other ledger counts what a trial spends, so use only data that may be seen. Its studies have
    the names of their files with -trial behind them. `veilstream play up` begins a trial, and
    `veilstream play end` ends it and removes all of it.
    """
    settings = begin_trial()
    if command == ("end",):
        LocalRuntime(settings.home, program_paths(settings)).down()
        shutil.rmtree(settings.home)
        say(f"the trial is over, and {settings.home} is removed")
        return 0
    group = context.find_root().command
    if not isinstance(group, click.Group):
        raise click.UsageError("a trial holds no other trial: leave the second `play` out")
    say(f"TRIAL in {settings.home}: no other ledger counts it; only for data that may be seen")
    name, found, rest = group.resolve_command(context, list(command))
    assert found is not None  # noqa: S101  an unknown name is an error of click's
    return found.main(rest, prog_name=f"veilstream play {name}", standalone_mode=False)
