"""What a study means before it runs, and what separates two files of one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from pipeline.api.planning import CLIENTS, RECORDS
from pipeline.api.sample import expected
from pipeline.errors import VeilstreamError
from pipeline.losses import MEANINGS
from pipeline.messages.topics import Topics
from pipeline.methods import guarantee_of, method_of, offline_method, task_of
from pipeline.methods.plan_words import numbers, told
from pipeline.privacy.guarantee import loose_delta
from pipeline.release.budget import least_clients, most_releases, standstill
from pipeline.release.task import Task
from pipeline.study.encoding import described
from pipeline.study.model import Study
from pipeline.study_file.edit import Like
from pipeline.study_file.load import StudySource, read_study, study_of

#: What a changed key asks for. "topics": a restart, and a setting of topics; "kafka": what only
#: Kafka's own tools can change; "new study": other releases, or another way to spread them.
Effect = Literal["nothing", "restart", "topics", "kafka", "new study"]
Path = tuple[str, ...]

#: Of keys that change no release: the effect, and who reads the key. The longest match counts.
_KEPT: dict[Path, tuple[Effect, tuple[str, ...]]] = {
    (): ("restart", ("workers", "clients")),
    ("study", "description"): ("nothing", ()),
    ("estimator",): ("restart", ("workers",)),
    ("window", "seconds"): ("restart", ("clients",)),
    ("stream", "publish"): ("restart", ("workers",)),
    ("stream", "max_in_flight_windows"): ("restart", ("clients",)),
    ("stream", "retention"): ("topics", ("workers", "clients")),
    ("stream", "replication"): ("kafka", ()),
    ("trust", "key"): ("restart", ("clients", "readers")),
}
#: Keys that make it another study although a release means the same.
_SPREAD = {("study", "name"), ("study", "follows"), ("stream", "partitions")}
#: The order of features, which a table of keys does not show.
ORDER = ("data", "features")


@dataclass(frozen=True, slots=True)
class Change:
    """One key of a study file that is another one.

    key: With its tables, as in "privacy.epsilon".
    before, after: Its values; None where it is not given.
    derived: Whether neither file sets it: other keys that changed do.
    who: Whom to start again: "workers", "clients", "readers".
    """

    key: str
    before: Any
    after: Any
    effect: Effect
    who: tuple[str, ...]
    derived: bool = False


def changes_between(old: Study, new: Study) -> list[Change]:
    """Return what a file changes, key by key; an order of features is one key, "data.features"."""
    tables, others = msgspec.to_builtins(old), msgspec.to_builtins(new)
    before, after = _leaves(tables), _leaves(others)
    revision, found = task_of(old).revision, list[Change]()
    for path in sorted(before.keys() | after.keys()):
        one, other = before.get(path), after.get(path)
        if one == other:
            continue
        effect, who = next(_KEPT[path[:n]] for n in range(len(path), -1, -1) if path[:n] in _KEPT)
        if path in _SPREAD or _revision(tables, path, other) != revision:
            effect, who = "new study", ()
        derived = all(_is_derived(table, path) for table in (tables, others))
        found.append(Change(".".join(path), one, other, effect, who, derived))
    one, other = list(old.data.features), list(new.data.features)
    if sorted(one) == sorted(other) and one != other:
        found.append(Change(".".join(ORDER), one, other, "new study", ()))
    return found


def is_new(old: Task, new: Task) -> bool:
    """Whether a file asks for a study of its own."""
    return old.revision != new.revision or any(
        change.effect == "new study" for change in changes_between(old.study, new.study)
    )


def _leaves(table: dict[str, Any], path: Path = ()) -> dict[Path, Any]:
    found: dict[Path, Any] = {}
    for name, value in table.items():
        if isinstance(value, dict) and value:
            found |= _leaves(value, (*path, name))
        elif value is not None:
            found[(*path, name)] = value
    return found


def _revision(tables: dict[str, Any], path: Path, value: Any) -> str | None:
    """Return the revision with one key set otherwise; None if there is no such study."""
    try:
        return task_of(msgspec.convert(_with(tables, path, value), Study)).revision
    except (VeilstreamError, msgspec.ValidationError):
        return None


def _is_derived(tables: dict[str, Any], path: Path) -> bool:
    """Whether a file without a key is the same study."""
    try:
        found = study_of(_with(tables, path, None), name="study")
    except VeilstreamError:
        return False
    return _leaves(msgspec.to_builtins(found)) == _leaves(tables)


def _with(tables: dict[str, Any], path: Path, value: Any) -> dict[str, Any]:
    """Return a file's tables with one key set otherwise, and none that is not given."""
    leaves = _leaves(tables) | {path: value}
    found: dict[str, Any] = {}
    for (*steps, key), given in leaves.items():
        if given is None:
            continue
        table = found
        for step in steps:
            table = table.setdefault(step, {})
        table[key] = given
    return found


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


def facts_of(
    task: Task, records: int = RECORDS, clients: int = CLIENTS, like: Like | None = None
) -> dict[str, object]:
    """Return what a study means, by name, in numbers and words.

    records, clients: As `check_study` takes them.
    like: What the plan is of; None: what ranges and typical values say.

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
    study, seen = like or (task.study, None)
    outlook = method_of(study).outlook(task_of(study), records, clients, seen)
    facts.update(outlook.facts)
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
    # last, where a terminal shows it: it is what most ask for
    facts["intervals"] = {**told(outlook, study, records, clients), **numbers(outlook)}
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
