"""`veilstream study`: check a study file, plan one, begin one, or make its keys."""

from __future__ import annotations

from pathlib import Path

import click

from pipeline.cli.acls import acls
from pipeline.cli.context import AS_JSON, STUDY, put, say, task_of
from pipeline.cli.design import CLIENTS, RECORDS, design, designed
from pipeline.cli.keys import keys, recover
from pipeline.errors import ConfigError
from pipeline.library.checking import facts_of, warnings_of
from pipeline.library.lengths import NOT_PRIVATE, of_sample
from pipeline.study import TEMPLATE


@click.group()
def study() -> None:
    """Check a study file, plan one, begin one, or make its keys."""


study.add_command(design)
study.add_command(keys)
study.add_command(recover)
study.add_command(acls)


@study.command()
@STUDY
@AS_JSON
@click.option(
    "--sample",
    metavar="FILE",
    help="Also say how its records fit the declared ranges: from raw data, NOT private.",
)
@click.option("--format", "form", type=click.Choice(["csv", "jsonl"]), default="csv",
              help="What standard input holds, with --sample -.")  # fmt: skip
def check(study: Path, as_json: bool, sample: str | None, form: str) -> None:
    """Check STUDY and print what it means: features, guarantee, noise, topics."""
    task = task_of(study)
    for warning in warnings_of(task):
        say(f"WARNING: {warning}")
    facts = facts_of(task)
    if sample is not None:
        say(f"WARNING: --sample: {NOT_PRIVATE}")
        facts["sample_not_private"] = of_sample(task, sample, form)
    if as_json:
        put(facts)
        return
    for name, value in facts.items():
        if isinstance(value, dict):
            click.echo(f"{name}:")
            for key, inner in value.items():
                if inner is not None:
                    click.echo(f"  {key}: {_readable(inner)}")
        else:
            click.echo(f"{name}: {_readable(value)}")


@study.command()
@click.argument("path", type=click.Path(dir_okay=False, path_type=Path), default="study.toml")
@RECORDS
@CLIENTS
def init(path: Path, records: int, clients: int) -> None:
    """Write a commented study file to PATH (default study.toml).

    Its settings are those of `veilstream study design` for the expected size. Ask again when
    features and budget are yours.
    For `veilstream fit`, estimator.kind also names published methods: docs/methods/published.md.
    """
    if path.exists():
        raise ConfigError(f"{path} exists; name another file")
    try:
        path.write_text(designed(TEMPLATE, records, clients), encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}") from error
    say(f"wrote {path}; edit it, then run `veilstream study check {path}`")


def _readable(value: object) -> str:
    """Return a fact as people read it; `--json` has all digits."""
    if isinstance(value, dict):
        return "; ".join(f"{key}: {_readable(inner)}" for key, inner in value.items()) or "none"
    return f"{value:.6g}" if isinstance(value, float) else str(value)
