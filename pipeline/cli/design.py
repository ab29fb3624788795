"""`veilstream study design` and `schedule`: what is planned for a study before it runs."""

from __future__ import annotations

import json
import math
import os
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, TypeVar

import click
import numpy as np

from pipeline.api import planning
from pipeline.api.planning import (
    POWER,
    Row,
    StudyPlan,
    lacking,
    other_kind,
    plan,
    verdict,
)
from pipeline.api.records import Records
from pipeline.api.sample import NOT_PRIVATE, like
from pipeline.cli.context import (
    AS_JSON,
    FILE,
    FORMAT,
    STUDY,
    Number,
    Work,
    live_task_of,
    put,
    say,
    show,
    while_computing,
)
from pipeline.errors import ConfigError
from pipeline.losses import MEANINGS
from pipeline.methods import method_of, task_of
from pipeline.methods.base import Rounds, Timetable
from pipeline.methods.plan_words import counted_of, told, two_digits
from pipeline.release.budget import standstill
from pipeline.release.task import Task
from pipeline.study.data import columns_of
from pipeline.study_file.edit import edited, with_features, with_keys
from pipeline.study_file.load import parse_study
from pipeline.types import Vector

if TYPE_CHECKING:
    from rich.table import Table


RECORDS = click.option(
    "--records", type=click.IntRange(1, 10**9), default=planning.RECORDS, show_default=True,
    help="How many records you expect of all clients together.",
)  # fmt: skip
CLIENTS = click.option(
    "--clients", type=click.IntRange(1, 10**6), default=planning.CLIENTS, show_default=True,
    help="How many clients you expect.",
)  # fmt: skip
SAMPLE = click.option(
    "--sample", metavar="FILE",
    help="Plan for records like those of this file, and say how they fit the declared ranges: from "
    "raw data, NOT private.",
)  # fmt: skip
COLUMNS = ("epsilon", "window", "ridge", "first", "typical", "sure", "+- typical", "finds")
#: What is said where a ridge takes the place of none.
OVERRIDDEN = (
    "this overrides the ridge = 0 of the file: for a fit that is not penalised, set ridge = 0 "
    "again, and intervals come later"
)
LEGEND = (
    "Each row has its own design. typical: records from which on intervals stay, for records as "
    "said above; first: after which half of such studies have had one. sure: records after which a "
    "ridge alone is enough for all slopes that do not go with the intercept (-: not within these "
    "records, or no ridge). +- typical: half the interval of a slope at the end (-: wider than the "
    "response's range). finds: the smallest slope, before a ridge shrinks it, that "
    f"{POWER:.0%} of such studies tell from zero. Values that use only a part of their range need "
    "more records: --sample FILE plans for records like those of a file."
)


@click.command()
@click.argument("study", type=FILE, required=False)
@click.option(
    "--features",
    type=click.IntRange(1, 1000),
    help=("Without STUDY: plan for this many features on [-1, 1]."),
)
@RECORDS
@CLIENTS
@click.option("--epsilon", type=float, help="Instead of the study's own.")
@click.option("--delta", type=float, help="Instead of the study's own.")
@click.option("--write", type=FILE, help="Write a new study file with the proposed settings.")
@SAMPLE
@FORMAT
@AS_JSON
def design(
    study: Path | None, features: int | None, records: int, clients: int, epsilon: float | None,
    delta: float | None, write: Path | None, sample: str | None, form: str, as_json: bool,
) -> None:  # fmt: skip
    """Propose settings for STUDY at an expected size, and say what it can find with them.

    Without --sample no data are read: the public ranges, bounds and budget alone say when intervals
    appear and how long they are. "typical" is for independent features with values that spread over
    the whole range (around `typical`, where it is given), or for records like those of the sample.
    "sure" holds for other records, too: there a ridge alone is enough for slopes. The intercept has
    no ridge, so it may need more records. So may slopes that go with it: those of a feature that
    stays far from its typical value, or of a level that most records have.
    """
    if (study is None) == (features is None):
        raise ConfigError("give a study file, or --features and a number, and not both")
    if write is not None and write.exists():
        raise ConfigError(f"--write: {write} exists, and may be a study that runs; name a new file")
    text = with_features(features or 1) if study is None else _text(study)
    asked = {"privacy.epsilon": epsilon, "privacy.delta": delta}
    given = {key: value for key, value in asked.items() if value is not None}
    asked_for = with_keys(parse_study(text), given, name="the study")
    seen = None
    if sample is not None:
        say(f"WARNING: --sample: {NOT_PRIVATE}")
        (asked_for, seen), _ = like(task_of(asked_for), sample, form)
    data = asked_for.data
    work = Work("a plan of a study", 1 + len(columns_of(data.features, data.interactions)))
    with while_computing(work.said):
        found = plan(asked_for, records, clients, work.report, seen)
    if write is not None:
        _write(write, designed(text, found, given))
    if as_json:
        put(found.to_dict())
    else:
        _show(found, _given(text), written=write is not None)
    if warning := standstill(found.study, clients):
        say(f"WARNING: {warning}")


def designed(text: str, found: StudyPlan, given: Mapping[str, object] | None = None) -> str:
    """Return the text of a study file with the settings of its plan, and why they are so.

    given: Other keys that the plan has and the file does not.
    """
    reasons = dict(found.chosen.design.reasons)
    if "estimator.ridge" in reasons and _given(text).get("estimator.ridge") == 0:
        reasons["estimator.ridge"] += f"; {OVERRIDDEN}"
    if why := reasons.get("window.records"):
        reasons["window.records"] = f"for {counted_of(found.chosen_for, found.clients)}: {why}"
    return edited(text, {**(given or {}), **found.chosen.design.changes}, reasons)


def _given(text: str) -> dict[str, object]:
    """Return what the text of a study file says itself, by key as in "window.records"."""
    return {
        f"{name}.{key}": value
        for name, table in tomllib.loads(text).items()
        if isinstance(table, dict)
        for key, value in table.items()
    }


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {path}: {error}") from error


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--write: cannot write {path}: {error.strerror}") from error
    say(f"wrote {path}")


def _show(found: StudyPlan, given: Mapping[str, object], *, written: bool) -> None:
    own, study = found.own, found.study
    delta = "" if study.privacy.delta is None else f", delta {study.privacy.delta:g}"
    click.echo(
        f"{study.name} ({own.kind}, {own.loss}): {counted_of(found.records, found.clients)}, "
        f"epsilon {own.epsilon:g}{delta}"
    )
    click.echo(f"  {own.loss}: {MEANINGS[own.loss]}")
    chosen = found.chosen.design
    if found.larger is not None and chosen.changes:
        size = counted_of(found.chosen_for)
        click.echo(f"  no settings are enough for this size; these are for {size}:")
    for key, value in chosen.changes.items():
        before = given.get(key, value)
        instead = "" if before == value else f", instead of {_value(before)} in the file"
        click.echo(f"  {key} = {_value(value)}{instead}: {chosen.reasons[key]}")
    if given.get("estimator.ridge") == 0 and "estimator.ridge" in chosen.changes:
        click.echo(OVERRIDDEN)
    click.echo(verdict(found))
    for name, said in told(own.outlook, study, found.records, found.clients).items():
        # the verdict says when, where the records are enough
        if name != "come":
            click.echo(said)
    come = False
    for kind in dict.fromkeys(row.kind for row in found.rows):
        rows = [row for row in found.rows if row.kind == kind]
        shown = [row for row in rows if row.outlook.usual <= found.records]
        come = come or bool(shown)
        if shown:
            show(_table(found, shown))
        if said := lacking(rows, found.records):
            click.echo(f"{kind}, {rows[0].loss}, {rows[0].neighbours}: {said}")
    if said := other_kind(found):
        click.echo(said)
    if come:
        click.echo(LEGEND)
    unchanged = "" if written else "The study file is unchanged; --write NEW writes a new one. "
    click.echo(
        f"{unchanged}All of this is computed by formulas; `veilstream doctor coverage` simulates "
        "the study."
    )


def _table(found: StudyPlan, rows: Sequence[Row]) -> Table:
    from rich.table import Table  # noqa: PLC0415

    title = f"{rows[0].kind}, {rows[0].loss}, {rows[0].neighbours}"
    table = Table(title=title, expand=False)
    for name in COLUMNS:
        table.add_column(name, justify="right")
    data, most = found.study.data, math.inf
    # half a feature's range cannot move a number by more; log odds and logs have no range
    if data.response.kind == "number" and data.scaling == "unit":
        most = data.response.ends[1] - data.response.ends[0]
    for row in rows:
        own = (row.kind, row.epsilon) == (found.own.kind, found.own.epsilon)
        table.add_row(*_cells(row, found.records, most), style="bold" if own else "")
    return table


def _cells(row: Row, records: int, most: float) -> tuple[str, ...]:
    outlook, changes = row.outlook, row.design.changes
    late = outlook.latest is None or outlook.latest > records
    return (
        f"{row.epsilon:g}",
        *(_value(changes.get(key, "-")) for key in ("window.records", "estimator.ridge")),
        "-" if outlook.first is None else f"{outlook.first:,}",
        f"{outlook.usual:,}",
        "-" if late else f"{outlook.latest:,}",
        two_digits(outlook.usual_half, most),
        two_digits(row.effect),
    )


def _value(value: object) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {_inner(one)}" for key, one in value.items()) + " }"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _inner(value: object) -> str:
    return json.dumps(value) if isinstance(value, str) else _value(value)


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


@schedule.command("show")
@STUDY
@click.option(
    "--round", "number", type=click.IntRange(0, 2**40), default=0, show_default=True,
    help="Number of the round, from 0. Rounds count slots from the beginning of a source.",
)  # fmt: skip
@click.option("--explain", is_flag=True, help="Explain the columns and names.")
@AS_JSON
def show_round(study: Path, number: int, explain: bool, as_json: bool) -> None:
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
    from rich.table import Table  # noqa: PLC0415

    table = Table(expand=False)
    for place, name in enumerate(found.shown):
        table.add_column(name, justify="right" if place else "left")
    for row in found.rows:
        table.add_row(*map(_word, (row[name] for name in found.shown)))
    show(table)
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
