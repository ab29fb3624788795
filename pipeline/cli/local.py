"""The commands that run Kafka and Redis on this machine, and any command as a trial of its own."""

from __future__ import annotations

import json
import shutil
import signal
import threading
from dataclasses import asdict
from pathlib import Path

import click

from infra.local import LocalRuntime, program_paths
from infra.local.processes import follow as follow_log
from infra.local.processes import tail
from infra.local.runtime import supervise
from infra.process import say
from pipeline.settings import Settings, begin_trial

FOLDER = click.option(
    "--folder", type=click.Path(file_okay=False, path_type=Path),
    default=lambda: Settings.read().home, show_default="VEILSTREAM_FOLDER or .veilstream",
    help="Where data, logs and state are.",
)  # fmt: skip


def _runtime(folder: Path) -> LocalRuntime:
    return LocalRuntime(folder, program_paths(Settings.read()))


@click.command()
@FOLDER
@click.option("--kafka-port", type=int, help="Default: the port of the last time, or a free one.")
@click.option("--redis-port", type=int, help="Default: the port of the last time, or a free one.")
@click.option("--foreground", is_flag=True, help="Stay, restart what dies, end both on Ctrl-C.")
def up(folder: Path, kafka_port: int | None, redis_port: int | None, foreground: bool) -> None:
    """Start Kafka and Redis, and print their addresses when both answer."""
    runtime = _runtime(folder)
    stop = threading.Event()
    if foreground:
        # Before the start: a signal while the servers start must not leave them behind.
        _set_on_signals(stop)
    if all(service.answers for service in runtime.status()):
        say("Kafka and Redis run already")
    else:
        say("starting Kafka and Redis (a new machine fetches Kafka once, 44 MB)")
    addresses = runtime.up(kafka_port=kafka_port, redis_port=redis_port)
    click.echo(f"VEILSTREAM_KAFKA={addresses.kafka}")
    click.echo(f"VEILSTREAM_REDIS={addresses.redis}")
    if foreground:
        say("both answer; Ctrl-C ends them")
        supervise(runtime, stop, say)


@click.command()
@FOLDER
def down(folder: Path) -> None:
    """End Kafka and Redis; their data stays in the folder."""
    runtime = _runtime(folder)
    ran = any(service.running for service in runtime.status())
    runtime.down()
    where = f"nothing of `veilstream up` runs in {folder.resolve()}; name its folder with --folder"
    say("Kafka and Redis are down" if ran else where)


@click.command()
@FOLDER
@click.option("--json", "as_json", is_flag=True, help="One JSON list instead of a table.")
def status(folder: Path, as_json: bool) -> None:
    """Show for each service whether it runs, where, and whether it answers."""
    services = _runtime(folder).status()
    if as_json:
        click.echo(json.dumps([asdict(service) for service in services]))
        return
    for service in services:
        if service.running:
            answers = "answers" if service.answers else "does not answer"
            click.echo(f"{service.name}  running  pid {service.pid}  {service.address}  {answers}")
        else:
            click.echo(f"{service.name}  stopped")


@click.command()
@click.argument("service", type=click.Choice(["kafka", "redis"]))
@FOLDER
@click.option("-n", "lines", type=click.IntRange(min=0), default=50, show_default=True)
@click.option("--follow", is_flag=True, help="Go on with new lines until Ctrl-C.")
def logs(service: str, folder: Path, lines: int, follow: bool) -> None:
    """Print the last lines that a SERVICE wrote."""
    runtime = _runtime(folder)
    for line in tail(runtime.log_path(service), lines):
        click.echo(line)
    if follow:
        for line in follow_log(runtime.log_path(service)):
            click.echo(line)


def _set_on_signals(stop: threading.Event) -> None:
    def handler(_number: int, _frame: object) -> None:
        stop.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, handler)


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
