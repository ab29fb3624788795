"""`veilstream study`: check a study file, or begin one."""

from __future__ import annotations

from pathlib import Path

import click
import msgspec

from pipeline.cli.context import AS_JSON, STUDY, plan_of, put, say
from pipeline.errors import ConfigError
from pipeline.estimators.private_estimate import RELEASES_PER_COEFFICIENT
from pipeline.local.plan import Plan
from pipeline.messages.topics import Topics
from pipeline.privacy.policy import loose_delta
from pipeline.study import TEMPLATE


@click.group()
def study() -> None:
    """Check a study file, or begin one."""


@study.command()
@STUDY
@AS_JSON
def check(study: Path, as_json: bool) -> None:
    """Check STUDY and print what it means: guarantee, noise, topics."""
    plan = plan_of(study)
    if warning := loose_delta(plan.guarantee.delta, plan.slots):
        say(f"WARNING: {warning}")
    facts = _facts(plan)
    if as_json:
        put(facts)
        return
    for name, value in facts.items():
        if isinstance(value, dict):
            click.echo(f"{name}:")
            for key, inner in value.items():
                click.echo(f"  {key}: {inner}")
        else:
            click.echo(f"{name}: {value}")


@study.command()
@click.argument("path", type=click.Path(dir_okay=False, path_type=Path), default="study.toml")
def init(path: Path) -> None:
    """Write a commented study file to PATH (default study.toml)."""
    if path.exists():
        raise ConfigError(f"{path} exists; name another file")
    try:
        path.write_text(TEMPLATE, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}") from error
    say(f"wrote {path}; edit it, then run `veilstream study check {path}`")


def _facts(plan: Plan) -> dict[str, object]:
    facts: dict[str, object] = {
        "study": plan.study.name,
        "revision": plan.revision,
        "coefficients": ", ".join(plan.study.coefficient_names),
        "privacy": msgspec.to_builtins(plan.guarantee),
    }
    if plan.study.noised and plan.step.curvature is not None:
        facts["noise"] = {
            "gradient_sd": plan.step.gradient.standard_deviation,
            "curvature_sd": plan.step.curvature.standard_deviation,
            "counts_sd": plan.step.counts and plan.step.counts.standard_deviation,
            "start_gradient_sd": plan.start.gradient.standard_deviation,
            "order_of_norm": plan.mechanism.order,
            "norm_bound": plan.norm_bound,
            "l1_bound": plan.bounds.l1,
            "largest_weight": plan.largest_weight,
        }
    if plan.study.noised:
        needed = RELEASES_PER_COEFFICIENT * plan.size
        facts["intervals"] = {
            "releases_at_least": needed,
            "record_slots_at_least": needed * plan.slots,
            "and": "a curvature that stands out of its noise; see docs/methods/renewable.md",
        }
    facts["topics"] = {
        topic.name: f"partitions {topic.partitions}, {topic.config.get('cleanup.policy', 'delete')}"
        for topic in Topics.of(plan.study).all()
    }
    return facts
