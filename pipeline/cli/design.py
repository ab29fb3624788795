"""`veilstream study design`: what a study of a size should set, and what it can find."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pipeline.cli.context import AS_JSON, FILE, put, say, show
from pipeline.errors import ConfigError
from pipeline.library.planning import POWER, Plan, Row, plan
from pipeline.study import edited, parse_study, with_features, with_keys

if TYPE_CHECKING:
    from rich.table import Table

RECORDS = click.option(
    "--records", type=click.IntRange(1, 10**9), default=100_000, show_default=True,
    help="Records that are expected, of all clients together.",
)  # fmt: skip
CLIENTS = click.option(
    "--clients", type=click.IntRange(1, 10**6), default=10, show_default=True,
    help="Clients that are expected.",
)  # fmt: skip


@click.command()
@click.argument("study", type=FILE, required=False)
@click.option(
    "--features", type=click.IntRange(1, 1000), help="Without STUDY: so many features on [-1, 1]."
)
@RECORDS
@CLIENTS
@click.option("--epsilon", type=float, help="Instead of the study's own.")
@click.option("--delta", type=float, help="Likewise.")
@click.option("--write", type=FILE, help="Write the study file with the proposed settings.")
@AS_JSON
def design(
    study: Path | None, features: int | None, records: int, clients: int, epsilon: float | None,
    delta: float | None, write: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """Propose settings for STUDY at an expected size, and say what it can find with them.

    No data are read: when intervals come and how long they are follows from the public ranges,
    bounds and budget alone. "by ridge" and "most" are for slopes, whatever the records say; "usual"
    is for independent features that are as their ranges and typical values say. The intercept has
    no ridge: it, and slopes that go with it, may need more.
    """
    if (study is None) == (features is None):
        raise ConfigError("give a study file, or --features and a number, and not both")
    text = with_features(features or 1) if study is None else _text(study)
    asked = {"privacy.epsilon": epsilon, "privacy.delta": delta}
    given = {key: value for key, value in asked.items() if value is not None}
    found = plan(with_keys(parse_study(text), given, name="the study"), records, clients)
    if write is not None:
        _write(write, edited(text, {**given, **found.own.design.changes}))
    if as_json:
        put(found.to_dict())
    else:
        _show(found)


def designed(text: str, records: int, clients: int) -> str:
    """Return the text of a study file with the settings that its method proposes for a size."""
    return edited(text, plan(parse_study(text), records, clients).own.design.changes)


def verdict(found: Plan) -> str:
    """Say in one line whether intervals are to be expected, and what it would take."""
    outlook, size = found.own.outlook, f"{found.records:,} records"
    if outlook.latest is not None and outlook.latest <= found.records:
        after = (
            ""
            if outlook.intercept is None
            else f", about {outlook.intercept:,} if features are independent"
        )
        return (
            f"the ridge is enough for intervals of slopes after {outlook.latest:,} of {size}; the "
            f"intercept has none, and it and slopes that go with it may need more{after}"
        )
    if outlook.usual <= found.records:
        return (
            f"intervals come after about {outlook.usual:,} of {size} if features are independent "
            "and as their ranges and typical values say; the ridge alone is not enough"
        )
    needs = []
    if found.enough_records is not None:
        needs.append(f"about {found.enough_records:,} records")
    if found.enough_epsilon is not None:
        needs.append(f"epsilon {found.enough_epsilon:g}")
    needs.append("fewer features")
    return f"{size} are too few for intervals at this budget; possible with {' or '.join(needs)}"


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


def _show(found: Plan) -> None:
    own, study = found.own, found.study
    delta = "" if study.privacy.delta is None else f", delta {study.privacy.delta:g}"
    click.echo(
        f"{study.name} ({own.kind}, {own.loss}): {found.records:,} records of {found.clients} "
        f"clients, epsilon {own.epsilon:g}{delta}"
    )
    for key, value in own.design.changes.items():
        click.echo(f"  {key} = {_value(value)}: {own.design.reasons[key]}")
    click.echo(verdict(found))
    if own.outlook.why:
        click.echo(own.outlook.why)
    for kind in dict.fromkeys(row.kind for row in found.rows):
        show(_table(found, kind))
    click.echo(
        "Each row has a design of its own; the file is as it was unless --write names one. "
        "by ridge: record slots after which the ridge is enough for intervals of slopes; usual: "
        "for all, where features are independent and as their ranges and typical values say; "
        "+- most, +- usual: half the interval of a slope at the "
        f"end, likewise; finds: slopes that {POWER:.0%} of such studies tell from zero. These are "
        "formulas; `veilstream doctor coverage` simulates."
    )


def _table(found: Plan, kind: str) -> Table:
    from rich.table import Table  # noqa: PLC0415

    rows = [row for row in found.rows if row.kind == kind]
    table = Table(title=f"{kind}, {rows[0].loss}, {rows[0].neighbours}", expand=False)
    for name in ("epsilon", "window", "ridge", "by ridge", "usual", "+- most", "+- usual", "finds"):
        table.add_column(name, justify="right")
    for row in rows:
        own = (row.kind, row.epsilon) == (found.own.kind, found.own.epsilon)
        table.add_row(*_cells(row, found.records), style="bold" if own else "")
    return table


def _cells(row: Row, records: int) -> tuple[str, ...]:
    outlook, changes = row.outlook, row.design.changes
    come = outlook.usual <= records
    lengths = (outlook.longest, outlook.usual_half, row.detectable)
    return (
        f"{row.epsilon:g}",
        *(_value(changes.get(key, "-")) for key in ("window.records", "estimator.ridge")),
        *(_slots(slots, records) for slots in (outlook.latest, outlook.usual)),
        *("-" if number is None or not come else f"{number:.2g}" for number in lengths),
    )


def _slots(slots: int | None, records: int) -> str:
    return "never" if slots is None else "too late" if slots > records else f"{slots:,}"


def _value(value: object) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {_inner(one)}" for key, one in value.items()) + " }"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _inner(value: object) -> str:
    return json.dumps(value) if isinstance(value, str) else _value(value)
