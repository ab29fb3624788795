"""What a study means, before it runs: its guarantee, noise and topics, and what to think about."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from pipeline.library.lengths import expected
from pipeline.library.plan_words import classes, exact, half, when, with_ridge
from pipeline.library.planning import CLIENTS, RECORDS
from pipeline.losses import MEANINGS
from pipeline.messages.topics import Topics
from pipeline.methods import method_of, task_of
from pipeline.methods.offline import guarantee_of, offline_method
from pipeline.privacy.guarantee import loose_delta
from pipeline.release.budget import least_clients, most_releases, standstill
from pipeline.release.task import Task
from pipeline.study.steps import described
from pipeline.study_file.load import StudySource, read_study

#: From so many columns of levels on a word is said of what they cost.
MANY_LEVELS = 30


def check_study(
    study: StudySource, *, records: int = RECORDS, clients: int = CLIENTS
) -> dict[str, object]:
    """Return what `veilstream study check --json` prints, with its `warnings` as a list.

    Parameters
    ----------
    study
        A study, the path of a study file, or its text (a string with a line break).
    records, clients
        How many records of all clients, and how many clients, you expect.

    Raises
    ------
    ConfigError, PrivacyError
        If the study says something that is not allowed, or its noise cannot be scaled.
    """
    task = task_of(read_study(study))
    return {**facts_of(task, records, clients), "warnings": warnings_of(task, records, clients)}


def warnings_of(task: Task, records: int = RECORDS, clients: int = CLIENTS) -> list[str]:
    """Return what the operator should know before the study runs, in words."""
    own: Sequence[str] = ()
    if offline_method(task.study) is None:
        own = method_of(task.study).plan(task, records, clients).warnings
    found = (
        loose_delta(task.budget.guarantee.delta, task.slots),
        _wide_residuals(task),
        _many_levels(task),
        standstill(task.study),
        *own,
    )
    return [warning for warning in found if warning]


def facts_of(task: Task, records: int = RECORDS, clients: int = CLIENTS) -> dict[str, object]:
    """Return what a study means, by name, in numbers and words.

    records, clients: As `check_study` takes them.

    Raises ConfigError, PrivacyError if its noise cannot be scaled with these parameters.
    """
    facts: dict[str, object] = {
        "study": task.study.name,
        "revision": task.revision,
        "coefficients": ", ".join(task.study.coefficient_names),
        "features": described(task.encoding),
        "estimator": _kind(task),
        "response": _response(task),
        "privacy": msgspec.to_builtins(guarantee_of(task)),
    }
    if offline_method(task.study) is not None:
        return facts
    if task.encoding.columns:
        facts["norm"] = expected(task)
    outlook = method_of(task.study).plan(task, records, clients)
    facts.update(outlook.facts)
    facts["intervals"] = {
        "come": when(outlook, task.study),
        **({"half": said} if (said := half(outlook, task.study, records, clients)) else {}),
        **({"ridge": said} if (said := with_ridge(outlook)) else {}),
        **({"exact": said} if (said := exact(outlook, task.study)) else {}),
        **({"classes": said} if (said := classes(outlook, task.study)) else {}),
        **({"but": outlook.why} if outlook.why else {}),
        "first": outlook.first,
        "latest": outlook.latest,
        "usual": outlook.usual,
    }
    rate = task.study.trust.rate if task.study.trust is not None else None
    if rate is not None:
        facts["rate"] = (
            f"{rate.releases} releases of one client count among {rate.of} records of its partition"
        )
    share = task.study.largest_share
    if share is not None:
        facts["largest_share"] = (
            f"each client has at most {share.share:g} of all releases, and at most "
            f"{most_releases(task.study, 0)} until {share.after} have come; a client at its "
            f"share waits for others; with {least_clients(task.study)} clients or more the study "
            "never stands still"
        )
    facts["topics"] = {
        topic.name: f"partitions {topic.partitions}, {topic.config.get('cleanup.policy', 'delete')}"
        for topic in Topics.of(task.study).all()
    }
    return facts


def _kind(task: Task) -> dict[str, object]:
    kind = task.study.estimator.kind
    method = offline_method(task.study)
    if method is None:
        return {"kind": kind, "method": method_of(task.study).spec.title}
    return {
        "kind": kind,
        "method": method.meaning,
        "published_as": method.label or "an extension of the published methods",
        "runs_in": f"`veilstream fit` alone: it needs {method.needs}",
    }


def _wide_residuals(task: Task) -> str:
    """Warn of a threshold that no residual of a good fit passes; empty if there is none such."""
    bound, response = task.study.estimator.residual_bound, task.study.data.response
    if bound is None or not task.study.noised:
        return ""
    width = response.ends[1] - response.ends[0]
    if bound <= width:
        return ""
    return (
        f"estimator.residual_bound: {bound:g} is more than the width of the response's range, "
        f"{width:g}: the noise is proportional to it, and no residual of a mean within the range "
        "is as large"
    )


def _many_levels(task: Task) -> str:
    """Warn of so many levels that their noise is all that there is; empty if there are few."""
    levels = sum(len(feature.others) for feature in task.study.data.features.values())
    if levels < MANY_LEVELS:
        return ""
    return (
        f"data.features: {levels} of {task.size} coefficients are of levels of categories. A "
        f"curvature of {task.size * (task.size + 1) // 2:,} numbers is noised as a whole, and "
        "only its own records say something about a level, so intervals need more records: join "
        "rare levels into one before the records come"
    )


def _response(task: Task) -> dict[str, object]:
    response, loss = task.study.data.response, task.study.estimator.loss
    facts: dict[str, object] = {
        "name": response.name, "kind": response.kind, "loss": loss, "meaning": MEANINGS[loss],
    }  # fmt: skip
    if task.classes:
        negative, positive = response.classes
        return {**facts, "negative": negative, "positive": positive}
    low, high = response.ends
    return {**facts, "min": low, "max": high}
