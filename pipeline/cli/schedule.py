"""`veilstream schedule`: what each client releases in a round and why, and other plans."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from pipeline.cli.context import AS_JSON, STUDY, live_task_of, put
from pipeline.errors import ConfigError
from pipeline.methods import method_of
from pipeline.methods.facts import Timetable
from pipeline.release.task import Task


class _ShowFirst(click.Group):
    """A group whose first command need not be named."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put the first command where an argument stands that names none."""
        if args and args[0] not in (*self.commands, "-h", "--help"):
            args = ["show", *args]
        return super().parse_args(ctx, args)


@click.group(cls=_ShowFirst)
def schedule() -> None:
    """Show what each client of STUDY releases in a round and why, or compare plans.

    `veilstream schedule STUDY` is short for `veilstream schedule show STUDY`. The plan follows from
    the study file alone: it needs neither Kafka nor data.
    """


@schedule.command()
@STUDY
@click.option(
    "--round", "number", type=click.IntRange(0, 2**40), default=0, show_default=True,
    help="The round, from 0: it counts slots from the beginning of a source.",
)  # fmt: skip
@click.option("--explain", is_flag=True, help="Say what columns and names mean.")
@AS_JSON
def show(study: Path, number: int, explain: bool, as_json: bool) -> None:
    """Print the plan of a round: client, slot, age, epsilon and noise."""
    task = live_task_of(study, "`veilstream schedule`")
    _print(_there(method_of(task.study).timetable(task, number), task), explain, as_json)


@schedule.command()
@STUDY
@AS_JSON
def compare(study: Path, as_json: bool) -> None:
    """Print the loss of other plans, the best one among them, and of no data at all."""
    task = live_task_of(study, "`veilstream schedule compare`")
    _print(_there(method_of(task.study).compared(task), task), False, as_json)


def _there(found: Timetable | None, task: Task) -> Timetable:
    if found is None:
        raise ConfigError(
            f'estimator.kind: studies of kind "{task.study.estimator.kind}" have no schedule: '
            "clients release each window as it is full"
        )
    return found


def _print(found: Timetable, explain: bool, as_json: bool) -> None:
    if as_json:
        why = {"why": list(found.why)} if explain else {}
        put({**found.facts, "rows": list(found.rows), "notes": list(found.notes), **why})
        return
    table = Table(expand=False)
    for place, name in enumerate(found.shown):
        table.add_column(name, justify="right" if place else "left")
    for row in found.rows:
        table.add_row(*map(_word, (row[name] for name in found.shown)))
    Console().print(table)
    for name, value in found.facts.items():
        click.echo(f"{name}: {_word(value)}")
    for line in (*found.notes, *(found.why if explain else ())):
        click.echo(line)
    if found.why and not explain:
        click.echo("What the columns and names are: --explain.")


def _word(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
