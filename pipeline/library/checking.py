"""What a study means, before it runs: its guarantee, noise and topics, and what to think about."""

from __future__ import annotations

import msgspec

from pipeline.local.plan import Plan
from pipeline.messages.topics import Topics
from pipeline.methods import method_of, plan_of
from pipeline.methods.offline import guarantee_of, offline_method
from pipeline.privacy.policy import loose_delta
from pipeline.study import StudySource, read_study


def check_study(study: StudySource) -> dict[str, object]:
    """Return what `veilstream study check --json` prints, with its `warnings` as a list.

    Parameters
    ----------
    study
        A study, the path of a study file, or its text (a string with a line break).

    Raises
    ------
    ConfigError, PrivacyError
        If the study says something that is not allowed, or its noise cannot be scaled.
    """
    plan = plan_of(read_study(study))
    return {**facts_of(plan), "warnings": warnings_of(plan)}


def warnings_of(plan: Plan) -> list[str]:
    """Return what the operator should know before the study runs, in words."""
    own = () if offline_method(plan.study) else method_of(plan.study).warnings(plan)
    found = (loose_delta(plan.guarantee.delta, plan.slots), _wide_residuals(plan), *own)
    return [warning for warning in found if warning]


def facts_of(plan: Plan) -> dict[str, object]:
    """Return what a study means, by name, in numbers and words.

    Raises
    ------
    ConfigError, PrivacyError
        If its noise cannot be scaled with these parameters.
    """
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
