"""`veilstream schedule`: what each client releases in a round and why, and model cards."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO, TypeVar

import click
import numpy as np
from rich.console import Console
from rich.table import Table

from infra.process import say
from pipeline.api.records import Records
from pipeline.cli.context import AS_JSON, STUDY, Number, live_task_of, put
from pipeline.errors import ConfigError
from pipeline.methods import method_of
from pipeline.methods.base import Rounds, Timetable
from pipeline.release.task import Task
from pipeline.types import Vector

T = TypeVar("T")


class _ShowFirst(click.Group):
    """A group whose first command need not be named."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put the first command where an argument stands that names none."""
        if args and args[0] not in (*self.commands, "-h", "--help"):
            args = ["show", *args]
        return super().parse_args(ctx, args)


@click.group(cls=_ShowFirst)
def schedule() -> None:
    """Show what each client of STUDY releases in a round and why, or make a model card.

    `veilstream schedule STUDY` is short for `veilstream schedule show STUDY`. The plan follows from
    the study file alone: it needs neither Kafka nor data.
    """


@schedule.command()
@STUDY
@click.option(
    "--round", "number", type=click.IntRange(0, 2**40), default=0, show_default=True,
    help="Number of the round, from 0. Rounds count slots from the beginning of a source.",
)  # fmt: skip
@click.option("--explain", is_flag=True, help="Explain the columns and names.")
@AS_JSON
def show(study: Path, number: int, explain: bool, as_json: bool) -> None:
    """Print the plan of a round: client, slot, age, epsilon and noise."""
    task = live_task_of(study, "`veilstream schedule`")
    _print(_rounds_of(task).timetable(task, number), explain, as_json)


@schedule.command()
@STUDY
@click.option("--group", required=True, help="Group of the study to which these clients belong.")
@click.option(
    "--source", "sources", multiple=True, required=True,
    help="History of one client, as `produce` would read it; once for each client.",
)  # fmt: skip
@click.option(
    "--epsilon", type=Number(0, 20, min_open=True), required=True,
    help="Cost of the card for each record, about its whole history.",
)  # fmt: skip
@click.option(
    "--out", type=click.Path(path_type=Path, dir_okay=False), required=True,
    help="New file for the lines that go into the study.",
)  # fmt: skip
@AS_JSON
def card(
    study: Path, group: str, sources: tuple[str, ...], epsilon: float, out: Path, as_json: bool
) -> None:
    """Estimate, under privacy, how the records of a group change: a model card.

    For somebody who holds the histories of all clients of the group. Each call draws new noise and
    costs the records epsilon once more.
    """
    task = live_task_of(study, "`veilstream schedule card`")
    rounds = _rounds_of(task)
    histories = [_responses(task, source) for source in sources]
    with _new(out) as file:
        found = rounds.model_card(task, group, histories, epsilon)
        file.write(found.text)
    if as_json:
        put({**found.facts, "file": str(out), "notes": list(found.notes)})
        return
    click.echo(found.text, nl=False)
    click.echo(f"saved: {out}; put it in place of the keys of group {group}")
    for line in found.notes:
        click.echo(line)


def _responses(task: Task, source: str) -> Vector:
    records = Records(task, source)
    found = [math.nan if row is None else row.response for _, row in records]
    records.check()
    if records.faults_line:
        say(f"{source}: {records.faults_line}")
    return np.array(found)


@contextmanager
def _new(out: Path) -> Iterator[TextIO]:
    """Open a file that is not there yet, before noise is drawn; take it away again on an error."""
    try:
        file = out.open("x")
    except FileExistsError:
        raise ConfigError(
            f"--out: {out} is there already; use the card that it holds, or name a new file: "
            "another estimate costs the records epsilon once more"
        ) from None
    except OSError as error:
        raise ConfigError(f"--out: {out} cannot be written ({error.strerror})") from None
    try:
        with file:
            yield file
            file.flush()
            os.fsync(file.fileno())
    except BaseException:
        out.unlink()
        raise


def _rounds_of(task: Task) -> Rounds:
    rounds = method_of(task.study).rounds
    if rounds is None:
        raise ConfigError(
            f'estimator.kind: studies of kind "{task.study.estimator.kind}" have no schedule: '
            "clients release each window as it is full"
        )
    return rounds


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
