"""`veilstream study`: check a study file, or begin one."""

from __future__ import annotations

from pathlib import Path

import click
import msgspec

from pipeline.cli.context import AS_JSON, STUDY, plan_of, put, say
from pipeline.errors import ConfigError
from pipeline.local.plan import Plan
from pipeline.messages.topics import Topics
from pipeline.methods import method_of
from pipeline.methods.offline import guarantee_of, offline_method
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
    own = () if offline_method(plan.study) else method_of(plan.study).warnings(plan)
    warnings = (loose_delta(plan.guarantee.delta, plan.slots), _wide_residuals(plan), *own)
    for warning in filter(None, warnings):
        say(f"WARNING: {warning}")
    facts = _facts(plan)
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
def init(path: Path) -> None:
    """Write a commented study file to PATH (default study.toml).

    For `veilstream fit`, estimator.kind also names published methods: docs/methods/published.md.
    """
    if path.exists():
        raise ConfigError(f"{path} exists; name another file")
    try:
        path.write_text(TEMPLATE, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}") from error
    say(f"wrote {path}; edit it, then run `veilstream study check {path}`")


def _kind(plan: Plan) -> dict[str, object]:
    kind = plan.study.estimator.kind
    method = offline_method(plan.study)
    if method is None:
        return {"kind": kind, "method": method_of(plan.study).title}
    return {
        "kind": kind,
        "method": method.meaning,
        "published_as": method.label or "an extension of the published methods",
        "runs_in": f"`veilstream fit` alone: it needs {method.needs}",
    }


def _readable(value: object) -> str:
    """Return a fact as people read it; `--json` has all digits."""
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _facts(plan: Plan) -> dict[str, object]:
    facts: dict[str, object] = {
        "study": plan.study.name,
        "revision": plan.revision,
        "coefficients": ", ".join(plan.study.coefficient_names),
        "estimator": _kind(plan),
        "response": _response(plan),
        "privacy": msgspec.to_builtins(guarantee_of(plan)),
    }
    if offline_method(plan.study) is not None:
        return facts
    facts.update(method_of(plan.study).facts(plan))
    facts["topics"] = {
        topic.name: f"partitions {topic.partitions}, {topic.config.get('cleanup.policy', 'delete')}"
        for topic in Topics.of(plan.study).all()
    }
    return facts


def _wide_residuals(plan: Plan) -> str:
    """Warn of a threshold that no residual of a good fit passes; empty if there is none such."""
    bound, response = plan.study.estimator.residual_bound, plan.study.data.response
    if bound is None or not plan.study.noised:
        return ""
    width = response.ends[1] - response.ends[0]
    if bound <= width:
        return ""
    return (
        f"estimator.residual_bound: {bound:g} is more than the width of the response's range, "
        f"{width:g}: it adds noise in proportion, and no residual of a mean within the range is "
        "as large"
    )


def _response(plan: Plan) -> dict[str, object]:
    response, loss = plan.study.data.response, plan.study.estimator.loss
    facts: dict[str, object] = {"name": response.name, "kind": response.kind, "loss": loss}
    if plan.classes:
        negative, positive = response.classes
        return {**facts, "negative": negative, "positive": positive}
    low, high = response.ends
    return {**facts, "min": low, "max": high}
