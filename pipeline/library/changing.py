"""What separates two files of a study: what goes on with its state, and what begins anew."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from pipeline.errors import VeilstreamError
from pipeline.methods import task_of
from pipeline.release.task import Task
from pipeline.study.model import Study
from pipeline.study_file.load import study_of

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
