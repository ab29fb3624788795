"""What commands share: the study argument, options that several have, output."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click

from pipeline.local.plan import Plan
from pipeline.messages.estimate import EstimateMessage
from pipeline.messages.fit import FitMessage
from pipeline.methods import plan_of as make_plan
from pipeline.methods.offline import guarantee_of
from pipeline.prediction import rule_of
from pipeline.study import load_study, require_live

STUDY = click.argument("study", type=click.Path(dir_okay=False, path_type=Path))
AS_JSON = click.option("--json", "as_json", is_flag=True, help="JSON on standard output.")

ACCEPT_LOSS = click.option(
    "--accept-loss", is_flag=True, help="Begin with what is left of the log, if its start is gone."
)

SAVE_MODEL = click.option(
    "--save-model", "save_model_to", type=click.Path(dir_okay=False, path_type=Path),
    help="Write the estimate as a model file, for `veilstream predict --model`.",
)  # fmt: skip


def plan_of(path: Path) -> Plan:
    """Load a study file and say loudly if it keeps no privacy."""
    return _said(make_plan(load_study(path)))


def live_plan_of(path: Path, doing: str, level: str | None = None) -> Plan:
    """Load a study file for a live stream, as `plan_of`.

    Parameters
    ----------
    doing
        Who asks, such as "a worker".
    level
        As `Plan` takes it.

    Raises
    ------
    ConfigError
        If its kind of estimator runs in `veilstream fit` alone, or it has no such level.
    """
    study = load_study(path)
    require_live(study, doing)
    return _said(make_plan(study, level))


def _said(plan: Plan) -> Plan:
    if not plan.study.private:
        say(
            f'WARNING: study {plan.study.name!r} has mechanism = "{plan.study.privacy.mechanism}": '
            f"nobody's data is protected ({guarantee_of(plan).guarantee})"
        )
    return plan


def save_model(plan: Plan, message: EstimateMessage | FitMessage, path: Path) -> None:
    """Write an estimate as a model file, and say so.

    Raises
    ------
    ConfigError
        If it belongs to another study or revision, or the file cannot be written.
    NumericError
        If nothing has been folded yet.
    """
    rule_of(plan, message).save(path)
    say(f"wrote {path}")


def say(line: str) -> None:
    """Say something to people."""
    click.echo(line, err=True)


def put(data: Any) -> None:
    """Print one JSON document on one line."""
    sys.stdout.write(json.dumps(data, allow_nan=False) + "\n")
    sys.stdout.flush()
