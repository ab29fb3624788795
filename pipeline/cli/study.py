"""`veilstream study`: check a study file, or begin one."""

from __future__ import annotations

import math
from pathlib import Path

import click
import msgspec

from pipeline.cli.context import AS_JSON, STUDY, plan_of, put, say
from pipeline.errors import ConfigError
from pipeline.estimators.forgetting import EFFECTIVE_HALF_LIVES
from pipeline.local.plan import Plan
from pipeline.messages.topics import Topics
from pipeline.methods.ldp_sgd.path import LARGEST
from pipeline.methods.ldp_sgd.settings import (
    allowed_lateness,
    largest_move,
    records_to_mix,
    rule_of,
    slowest,
)
from pipeline.methods.offline import guarantee_of, offline_method
from pipeline.methods.renewable.open_estimate import RECORDS_PER_COEFFICIENT
from pipeline.methods.renewable.private_estimate import RELEASES_PER_COEFFICIENT
from pipeline.privacy.policy import loose_delta
from pipeline.study import LIVE_KINDS, TEMPLATE
from pipeline.study.model import Forgetting


@click.group()
def study() -> None:
    """Check a study file, or begin one."""


@study.command()
@STUDY
@AS_JSON
def check(study: Path, as_json: bool) -> None:
    """Check STUDY and print what it means: guarantee, noise, topics."""
    plan = plan_of(study)
    warnings = (
        loose_delta(plan.guarantee.delta, plan.slots), _wide_residuals(plan), _long_moves(plan),
    )  # fmt: skip
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
        return {"kind": kind, "method": LIVE_KINDS[kind]}
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
    if plan.by_record:
        facts["path"] = _path(plan)
    elif plan.study.noised and plan.step.curvature is not None:
        facts["noise"] = {
            "gradient_sd": plan.step.gradient.standard_deviation,
            "curvature_sd": plan.step.curvature.standard_deviation,
            **_counted(plan),
            "start_gradient_sd": plan.start.gradient.standard_deviation,
            "order_of_norm": plan.mechanism.order,
            "norm_bound": plan.norm_bound,
            "l1_bound": plan.bounds.l1,
            **({"largest_weight": plan.largest_weight} if plan.classes else _slopes(plan)),
        }
    if plan.study.noised and not plan.by_record:
        needed = RELEASES_PER_COEFFICIENT * plan.size
        facts["intervals"] = {
            "releases_at_least": needed,
            "record_slots_at_least": needed * plan.slots,
            "and": "a curvature that stands out of its noise; see docs/methods/renewable.md",
        }
    if plan.study.estimator.forgetting is not None:
        facts["forgetting"] = _forgetting(plan, plan.study.estimator.forgetting)
    facts["topics"] = {
        topic.name: f"partitions {topic.partitions}, {topic.config.get('cleanup.policy', 'delete')}"
        for topic in Topics.of(plan.study).all()
    }
    return facts


def _forgetting(plan: Plan, forgetting: Forgetting) -> dict[str, object]:
    """Return on how many records an estimate rests at most, and whether intervals can come."""
    most = EFFECTIVE_HALF_LIVES * forgetting.half_life
    facts: dict[str, object] = {"half_life": forgetting.half_life, "of": forgetting.of}
    if forgetting.of == "seconds":
        return {**facts, "effective_records_at_most": f"those of {most:.4g} seconds"}
    needed = RECORDS_PER_COEFFICIENT * plan.size
    if plan.study.noised:
        needed = RELEASES_PER_COEFFICIENT * plan.size * plan.slots
    facts["effective_records_at_most"] = most
    if most < needed:
        facts["advice"] = (
            f"too short for intervals, which need {needed} effective record slots: half_life = "
            f"{math.ceil(needed / EFFECTIVE_HALF_LIVES)} or more lets them come"
        )
    return facts


def _long_moves(plan: Plan) -> str:
    """Warn where one release can stop a path; empty if none can."""
    if not plan.by_record or (moved := largest_move(plan, rule_of(plan))) <= LARGEST:
        return ""
    return (
        f"one release can move the path by {moved:.3g}, and it stands still beyond {LARGEST:g}: "
        "lower estimator.path.eta0 or kappa, or any client can stop it"
    )


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


def _path(plan: Plan) -> dict[str, object]:
    """Return the steps of gradient descent, and when intervals can be hoped for."""
    rule = rule_of(plan)
    each = "in each partition, " if plan.several == "pooled" else ""
    return {
        "eta0": rule.steps.eta0,
        "alpha": rule.steps.alpha,
        "largest_step": rule.steps.cap,
        "burn_in": rule.burn_in,
        "radius": plan.radius,
        "intervals": ", ".join(plan.study.path.intervals if plan.study.path else ()),
        **_released(plan),
        "largest_slope": plan.loss.slope_bound,
        "models_late_at_most": allowed_lateness(plan),
        "one_release_moves_at_most": largest_move(plan, rule),
        "records_for_intervals": records_to_mix(rule, slowest(plan)),
        "and": f"{each}if features are independent and uniform on their public ranges; one that "
        "uses half of its range needs four times as many (see `veilstream doctor coverage`)",
    }


def _released(plan: Plan) -> dict[str, object]:
    """Return the noise of each part of a release, and what it costs a record where they are many.

    That of a matrix is on its diagonal; beside it, the deviation is 1 / sqrt 2 of it.
    """
    if not plan.study.noised:
        return {"gradient_sd": 0.0}
    step, facts = plan.step, dict[str, object]()
    channels = (("gradient", step.gradient), ("curvature", step.curvature),
                ("products", step.products))  # fmt: skip
    for name, part in channels:
        if part is not None:
            facts[f"{name}_sd"] = part.standard_deviation
    if plan.study.privacy.personal is not None:
        deviations = [part.standard_deviation for part in plan.record_channels]
        facts["gradient_sd"] = plan.record_noise
        facts["gradient_sd_by_level"] = dict(zip(plan.levels, deviations, strict=True))
    costs = plan.parts.items() if len(plan.parts) > 1 else ()
    unit = "mu" if plan.mechanism.order == 2 else "epsilon"
    return facts | {f"{name}_{unit}": cost for name, cost in costs}


def _response(plan: Plan) -> dict[str, object]:
    response, loss = plan.study.data.response, plan.study.estimator.loss
    facts: dict[str, object] = {"name": response.name, "kind": response.kind, "loss": loss}
    if plan.classes:
        negative, positive = response.classes
        return {**facts, "negative": negative, "positive": positive}
    low, high = response.ends
    return {**facts, "min": low, "max": high}


def _counted(plan: Plan) -> dict[str, object]:
    """Return the noise of what is released beside gradient and curvature, by its name."""
    if plan.step.counts is None:
        return {}
    name = "counts_sd" if plan.classes else "squared_slopes_sd"
    return {name: plan.step.counts.standard_deviation}


def _slopes(plan: Plan) -> dict[str, object]:
    """Return the bound of a regression's slopes, in the response's unit, and what it does."""
    unit, bound = plan.response_scale[1], plan.loss.slope_bound
    facts: dict[str, object] = {"unit": unit}
    if plan.loss.name != "linear":
        return {
            **facts,
            "largest_mean": bound,
            "advice": "the noise grows with data.response.max: lower it to the largest count that "
            "matters; larger counts are clipped to it",
        }
    return {
        **facts,
        "residual_bound": unit * bound,
        "advice": "the gradient's noise is in proportion to estimator.residual_bound, that of the "
        "squared slopes to its square: lower it towards the largest residual that you expect, by "
        "what is public, but not far below the spread of the response, or the first models swing; "
        "larger residuals count as if they were that large",
    }
