"""`veilstream study change` and `recover`: a running study whose file, or log, is another."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import click
import msgspec

from pipeline.api.check import Change, changes_between, is_new
from pipeline.cli.context import AS_JSON, FILE, STUDY, agree, live_task_of, put, say
from pipeline.errors import ConfigError
from pipeline.methods import method_of
from pipeline.release.task import Task
from pipeline.settings import Settings
from pipeline.study.model import Study
from pipeline.words import counted

_EFFECTS = {
    "nothing": "nobody needs to know",
    "restart": "the state stays",
    "topics": "the state stays; a setting of topics changes",
    "kafka": "Kafka's own tools must change the topics (kafka-reassign-partitions)",
    "new study": "begins a study of its own",
}
#: What a study of its own needs is no reason for one.
_OWN = {
    "study.name": "a study of its own has a name of its own",
    "study.follows": "clients go on behind the records of the studies that it names",
}


@click.command()
@click.argument("old", type=FILE)
@click.argument("new", type=FILE)
@click.option("--apply", "is_applied", is_flag=True, help="Do it. It may be repeated.")
@AS_JSON
def change(old: Path, new: Path, is_applied: bool, as_json: bool) -> None:
    """Say what it takes to go from the study file OLD to NEW while it runs, and what that costs.

    For each changed key it says whether the state stays, who must be started again, or whether NEW
    is a separate study, which needs its own name. With `follows = "OLD's name"` in its table
    [study], each client continues behind the records that it has released for OLD. Budgets are
    shown for the clients with a database in this folder.

    Without --apply nothing is changed and nobody is asked.
    """
    before, after = (live_task_of(path, "`veilstream study change`") for path in (old, new))
    settings = Settings.read()
    plan = _plan(before, after, settings)
    if as_json and not is_applied:
        put(plan)
    elif not as_json:
        _show(plan)
    if plan["mend"]:
        raise ConfigError("; ".join(plan["mend"]))
    if is_applied:
        # a plan needs no client library
        from pipeline.cli.topics import applied  # noqa: PLC0415

        done = applied(before, after, settings, is_new_study=plan["new_study"])
        if as_json:
            put({**plan, "done": done})
    else:
        say("nothing was changed: --apply does the operator's part, and then")
    for number, step in enumerate(plan["then"], 1):
        say(f"{number}. {step}")


@click.command()
@STUDY
@click.option("--yes", is_flag=True, help="Do not ask.")
def recover(study: Path, yes: bool) -> None:
    """Bring STUDY back after its releases topic was lost, or somebody else has written.

    If the releases topic is gone or was made anew, read docs/guides/lost-log.md first; if strangers
    wrote, read docs/admission.md. The command folds the log again, as the study's keys believe it,
    and stores the result. It writes again who is admitted. Then it makes a model of that state,
    with a version above all that anybody can hold. You may repeat it.

    If the state stands beyond the log's end, it first says how many releases and record slots the
    state holds. Those that the log lacks are lost, and their privacy budget stays spent.
    """
    from infra.local import connected  # noqa: PLC0415  as above
    from pipeline.cli.topics import recovered, tell_losses  # noqa: PLC0415

    task = live_task_of(study, "`veilstream study recover`")
    settings = connected(Settings.read(), redis=True)
    tell_losses(task, settings)
    if not yes:
        agree("All workers of this study must be stopped. Recover it from its log?")
    recovered(task, settings)


def _plan(before: Task, after: Task, settings: Settings) -> dict[str, Any]:
    # `study check` must start without a client library
    from producers.report import costs  # noqa: PLC0415

    found = changes_between(before.study, after.study)
    new = is_new(before, after)
    # to a name that is taken nobody can move: what it would cost is no answer
    is_asked = new and after.study.name not in _line(before)
    clients = costs(settings.home, _line(before), after) if is_asked else []
    return {
        "old": {"study": before.study.name, "revision": before.revision},
        "new": {"study": after.study.name, "revision": after.revision},
        "new_study": new,
        "changes": [msgspec.to_builtins(one) for one in found],
        "mend": list(_mend(before, after)) if new else [],
        "clients": clients,
        "then": _steps(before, after, clients) if new else _restarts(found),
    }


def _mend(before: Task, after: Task) -> list[str]:
    """Return what keeps the new file from being a study beside the old one, by key."""
    old, new = before.study, after.study
    found = []
    if new.name == old.name:
        found.append(
            f"study.name: revision {after.revision} is another study than {before.revision}, whose "
            "topics and state have this name: give NEW a name of its own, for example "
            f'name = "{old.name[:61]}-2"'
            + (f', and follows = "{old.name}" below it' if _may_follow(new, old.name) else "")
        )
    elif new.name in old.study.before:
        found.append(
            f"study.name: OLD took the place of study {new.name!r}, which is over for all clients "
            "that have moved: give NEW a name that no study before it has had"
        )
    elif new.study.before not in ((), line := _line(before)):
        names = ", ".join(f'"{name}"' for name in line)
        found.append(
            "study.follows: NEW takes the place of OLD and of all whose place OLD took, so that "
            "clients that were away begin behind their records, too: write follows = "
            + (f"[{names}]" if len(line) > 1 else names)
        )
    keys = [study.trust.key if study.trust is not None else None for study in (old, new)]
    if new.name != old.name and keys[0] is not None and keys[0] == keys[1]:
        found.append(
            "trust.key: it is the key of OLD, and each study has its own: put in what `veilstream "
            "study keys NEW` prints, or remove it"
        )
    return found


def _may_follow(study: Study, name: str) -> bool:
    """Whether the study's method lets it take the place of another."""
    heading = msgspec.structs.replace(study.study, follows=name)
    try:
        method_of(study).resolve(msgspec.structs.replace(study, study=heading), ())
    except ConfigError:
        return False
    return True


def _line(before: Task) -> tuple[str, ...]:
    """Return the studies at which clients may stand, the newest first."""
    return before.study.name, *before.study.study.before


def _restarts(found: list[Change]) -> list[str]:
    who = {name for one in found for name in one.who}
    steps = [
        f"give NEW to all {name}, and start them again one by one"
        for name in ("workers", "clients", "readers")
        if name in who
    ]
    if any(one.effect == "kafka" for one in found):
        steps.insert(0, f"stream.replication: {_EFFECTS['kafka']}; nothing here does")
    return steps or ["nothing needs to be started again"]


def _steps(before: Task, after: Task, clients: list[dict[str, Any]]) -> list[str]:
    old, new = before.study.name, after.study.name
    steps = [f"start workers with NEW beside those of {old}"]
    if after.study.authenticated:
        steps.insert(
            0,
            f"copy the key file of study {new} to its workers, and the public key into NEW as "
            "trust.key",
        )
        if not before.study.authenticated:
            steps.append("admit the clients: `veilstream client enrol` and `client admit`")
    sent = "" if not after.study.study.before else ", once all it has released is sent"
    steps.append(f"stop each client{sent}, and start it with NEW and the same --client, --source")
    steps += [
        f"{one['client']}: add --epsilon-limit {_up(one['epsilon']['after'])}, if the data owner "
        "agrees"
        for one in clients
        if one["epsilon"] and not one["fits"] and one["epsilon"]["after"] is not None
    ]
    waiting = [one["client"] for one in clients if not one["has_moved"]]
    known = f" (in this folder not yet: {', '.join(waiting)})" if waiting else ""
    return [*steps, f"when all clients have moved{known}, stop the workers of {old}"]


def _up(epsilon: float) -> str:
    """Return a limit that allows as much: rounded to nearest it might be refused."""
    return f"{math.ceil(epsilon * 1000) / 1000:.10g}"


def _show(plan: dict[str, Any]) -> None:
    for one in plan["changes"]:
        click.echo(f"{one['key']}: {_said(one['before'])} -> {_said(one['after'])}")
        click.echo(f"  {_why(one)}")
    if not plan["changes"]:
        click.echo("nothing that counts has changed")
    if not plan["new_study"]:
        click.echo(f"the state goes on under revision {plan['new']['revision']}")
        return
    click.echo(f"a study of its own, revision {plan['new']['revision']}")
    for one in plan["clients"]:
        spent = one["epsilon"]
        budget = "its source has no limit" if spent is None else (
            f"epsilon {spent['spent']:.4g} spent, {spent['after']:.4g} with NEW, of "
            f"{spent['limit']:.4g} at delta {spent['delta']:g}"
        )  # fmt: skip
        moved = "has moved" if one["has_moved"] else "has not moved yet"
        click.echo(
            f"client {one['client']}: "
            f"{counted(one['releases'], 'release')} for {one['study']}, {budget}; "
            f"{moved}"
        )


def _why(one: dict[str, Any]) -> str:
    if one["derived"]:
        return "neither file sets it: it is derived from other keys, and changes with them"
    whom = f": start {' and '.join(one['who'])} again" if one["who"] else ""
    return _OWN.get(one["key"], _EFFECTS[one["effect"]]) + whom


def _said(value: Any) -> Any:
    if value is None:
        return "not set"
    return f"{value:.12g}" if isinstance(value, float) else value
