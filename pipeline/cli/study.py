"""`veilstream study`: check a study file, plan one, begin one; its keys and users' rights."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import click

from infra.deploy import ROLES, Role, alerts, dashboard, kafka_commands, manifests, redis_command
from infra.keyring import StudyPairs, pin, write_study
from pipeline.api.check import facts_of, warnings_of
from pipeline.api.planning import proposed, verdict
from pipeline.api.sample import NOT_PRIVATE, like
from pipeline.cli.change import change, recover
from pipeline.cli.context import (
    AS_JSON,
    FILE,
    FORMAT,
    STUDY,
    TIMES,
    Group,
    Work,
    live_task_of,
    put,
    say,
    study_keys,
    task_of,
    while_computing,
)
from pipeline.cli.design import CLIENTS, RECORDS, SAMPLE, design, designed
from pipeline.errors import ConfigError
from pipeline.messages.topics import Topics
from pipeline.methods import METHODS, load_live
from pipeline.methods.plan_words import NUMBERS, told
from pipeline.release.quality import worded
from pipeline.settings import Settings
from pipeline.study.model import Study
from pipeline.study_file.edit import TEMPLATE, edited, template_of
from pipeline.study_file.load import parse_study
from pipeline.trust import LAST_GENERATION, Pair

#: What facts are called where their keys, which `--json` has, do not say it to a reader.
PLAIN = {
    "mu": "mu, of Gaussian differential privacy",
    "kept": "norm up to which a record counts in full",
    "longest": "longest that the ranges allow",
    "share_shortened_of_typical_records": (
        "share of shortened records, if records are distributed as ranges and typical values say"
    ),
    "share_shortened_of_uniform_records": (
        "share of shortened records, if records are uniform on their ranges"
    ),
    "gradient_sd": "standard deviation, in each number of a release's gradient",
    "curvature_sd": "standard deviation, in each number on the diagonal of its curvature",
    "counts_sd": "standard deviation, in its class counts",
    "squared_slopes_sd": "standard deviation, in its sum of squared slopes",
    "start_gradient_sd": "standard deviation, in the gradient of a release at the first model",
    "order_of_norm": "order of the norm that bounds a record",
    "norm_bound": "estimator.norm_bound, in numbers",
    "l1_bound": "largest sum of absolute values of a record",
    "largest_weight": "largest weight of a class; all noise grows in proportion",
    "come": "they come",
    "half": "half their length",
    "ridge": "without a ridge",
    "middle_sd": "standard deviation, in each number on the diagonal of its middle",
    "exact": "at best",
    "influence": "influence of a client that lies",
    "less_than_an_interval": "less than half an interval",
    "against_it": "what helps",
}
#: Numbers that another line says in words; `--json` has them alone, too.
SAID = {*NUMBERS, "share_of_positive"}


@click.group(cls=Group)
def study() -> None:
    """Check a study file, plan, begin or change one, or make its keys."""


for command in (design, change, recover):
    study.add_command(command)


@study.command()
@STUDY
@click.option("--rotate", is_flag=True, help="Add a new key, which signs from now on.")
@click.option(
    "--stolen", is_flag=True,
    help="Add a new key, and stop believing anything under older keys. Stop all workers first.",
)  # fmt: skip
def keys(study: Path, rotate: bool, stolen: bool) -> None:
    """Make the key of STUDY, if it has none, and print its public part, for trust.key.

    The private file belongs to workers and to nobody else. Without it the log can never be folded
    again: keep a copy of it apart from Kafka and Redis.
    """
    found, settings = task_of(study).study, Settings.read()
    if not found.authenticated:
        raise ConfigError(
            'trust.releases: this study is "open" and has no use for keys; see the table [trust] '
            "of `veilstream study init`"
        )
    held = study_keys(found, settings)
    if rotate or stolen:
        held = _rotated(found, settings, held, stolen=stolen)
    click.echo(held.newest.public.hex())


def _rotated(study: Study, settings: Settings, held: StudyPairs, *, stolen: bool) -> StudyPairs:
    # `study check` must start without a client library
    from infra.admissions import announce_keys, refuse_old, retire  # noqa: PLC0415
    from infra.local import connected  # noqa: PLC0415
    from infra.topics import ensure_topics  # noqa: PLC0415

    number = held.newest.generation + 1
    if number > LAST_GENERATION:
        raise ConfigError(
            f"the key of study {study.name!r} cannot be changed again, because it was "
            f"changed {LAST_GENERATION:,} times, as often as a study allows; the operator "
            "must begin a study with a new name"
        )
    if stolen:
        # before anything is written: without Kafka the old key would go on to count
        settings = connected(settings)
        ensure_topics(settings, Topics.of(study).all())
        refuse_old(study, settings, held)
    pairs = [*held.pairs, Pair.drawn(number)]
    after = replace(held, pairs=pairs)
    if stolen:
        after = StudyPairs(pairs, number, {**held.retired, number: {}})
    path = write_study(settings, study.name, after)
    if not stolen:
        say(
            f"{path} has a key of generation {number}: copy it to every worker before any other "
            "command, then start one of them again, which tells the clients. Older keys stay "
            "good, and trust.key in study files may stay: the new key follows from it. It is done "
            f"when `veilstream client list` says that clients know generation {number}"
        )
        return after
    # of what the thief may say of newer keys, nothing is believed here
    pin(settings, study.name, after.newest.public)
    at = retire(study, settings, after)
    after = replace(after, retired={**held.retired, number: at})
    write_study(settings, study.name, after)
    announce_keys(study, settings, after)
    say(
        f"nothing counts any more under keys older than generation {number}. Put the new public "
        "key into the study file as trust.key wherever a client or a reader runs; copy "
        f"{path} to every worker; run `veilstream study recover` before the first worker starts"
    )
    return after


@study.command()
@STUDY
@AS_JSON
@click.option("--role", type=click.Choice(get_args(Role)), help="Only for this role.")
@click.option("--user", help="Name of the user, in Kafka and Redis.  [default: STUDY-ROLE]")
def acls(study: Path, as_json: bool, role: Role | None, user: str | None) -> None:
    """Print commands that give users of STUDY the least rights that they need.

    Make the topics first: `veilstream topics STUDY`. The operator runs the commands for Kafka with
    Kafka's own tools, as an administrator. The operator runs those for Redis with redis-cli, after
    putting a password in the place of PASSWORD.
    """
    task = live_task_of(study, "`veilstream study acls`").study
    settings, found = Settings.read(), {}
    for name in [role] if role else ROLES:
        who = user or f"{task.name}-{name}"
        found[name] = {
            "kafka": kafka_commands(task, name, who, settings),
            "redis": redis_command(task, name, who),
        }
    if as_json:
        put({"study": task.name, "roles": found})
        return
    for name, commands in found.items():
        click.echo(f"# {name}: {ROLES[name]}")
        for line in commands["kafka"]:
            click.echo(line)
        click.echo(commands["redis"] or "# no user in Redis")
        click.echo()


@study.command()
@click.argument("what", type=click.Choice(["dashboard", "alerts"]))
@click.argument("study", type=FILE, required=False)
def monitoring(what: str, study: Path | None) -> None:
    """Print a Grafana dashboard, or alert rules for Prometheus, over the metrics of STUDY.

    Both are JSON: import the dashboard in Grafana, and name the file of the rules in `rule_files`
    of Prometheus. They look at the `job` of the study's name: give the job that scrapes its worker
    and clients that name. Without STUDY they are of all jobs, and the dashboard's variable `job`
    chooses what is shown.
    """
    name = "" if study is None else live_task_of(study, "`veilstream study monitoring`").study.name
    click.echo(json.dumps(dashboard(name) if what == "dashboard" else alerts(name), indent=1))


@study.command()
@STUDY
@RECORDS
@CLIENTS
@AS_JSON
@SAMPLE
@FORMAT
def check(
    study: Path, records: int, clients: int, as_json: bool, sample: str | None, form: str
) -> None:
    """Check STUDY and print what it means: features, guarantee, noise, intervals, topics."""
    task = task_of(study)
    for warning in warnings_of(task, records, clients):
        say(f"WARNING: {warning}")
    found: dict[str, Any] = {}
    seen = None
    if sample is not None:
        say(f"WARNING: --sample: {NOT_PRIVATE}")
        seen, found = like(task, sample, form)
        if warning := _unusable(found):
            say(f"WARNING: --sample: {warning}")
    with while_computing(Work("what a study means", task.size).said):
        facts = facts_of(task, records, clients, seen)
    if found:
        facts["sample_not_private"] = found
    if as_json:
        put(facts)
        return
    for name, value in facts.items():
        if isinstance(value, dict):
            click.echo(f"{PLAIN.get(name, name)}:")
            for key, inner in value.items():
                if key == "faults":
                    click.echo(f"  because: {worded(Counter(inner))}")
                elif name == "features":  # their keys are names of the study, as sources have them
                    click.echo(f"  {key}: {_readable(inner)}")
                elif inner is not None and key not in SAID:
                    click.echo(f"  {PLAIN.get(key, key.replace('_', ' '))}: {_readable(inner)}")
        else:
            click.echo(f"{name}: {_readable(value)}")


def _unusable(found: dict[str, Any]) -> str:
    """Return what of a sample cannot be used, and what to do; empty if all can."""
    told = f"`veilstream produce` will refuse such a source: {found.get('refused')}"
    if not found["unusable"]:
        return told if "refused" in found else ""
    refused = (
        f". {told}"
        if "refused" in found
        else ". Each leaves an empty slot, and a client spends its budget on noise alone"
    )
    why = f": {worded(Counter(found['faults']))}" if "faults" in found else ""
    return (
        f"{found['unusable']:,} of {found['records']:,} records cannot be used{why}{refused}. The "
        "operator must declare these values in [data], or the data owner must correct the records"
    )


@study.command()
@click.argument("path", type=FILE, default="study.toml")
@RECORDS
@CLIENTS
@click.option(
    "--kind", type=click.Choice(tuple(METHODS)), help=("Method of the study.  [default: renewable]")
)
@click.option(
    "--event-time", metavar="COLUMN",
    help="For histories, which clients send with --event-time COLUMN: releases are kept for ever. "
    f"COLUMN holds {TIMES}.",
)  # fmt: skip
def init(path: Path, records: int, clients: int, kind: str | None, event_time: str | None) -> None:
    """Write a commented study file to PATH (default study.toml).

    Its settings are those that `veilstream study design` proposes for the expected size. After you
    have put in your features and budget, `veilstream study design PATH --write NEW` proposes anew.
    For `veilstream fit`, estimator.kind also names published methods: docs/methods/published.md.
    """
    if path.exists():
        raise ConfigError(f"{path} exists; name another file")
    text = template_of(load_live(kind).spec, clients) if kind else TEMPLATE
    if event_time is not None:
        text = edited(
            text,
            {"stream.retention": "forever"},
            {
                "stream.retention": f"for --event-time {event_time}, which must hold {TIMES}: "
                "Kafka removes by these times"
            },
        )
    found = proposed(parse_study(text), records, clients)
    try:
        path.write_text(designed(text, found), encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}") from error
    few = found.own.outlook.usual > found.records
    whose = "with the features of the example, " if found.study.data.features else ""
    say(f"{'WARNING: ' if few else ''}{whose}{verdict(found)}")
    words = told(found.chosen.outlook, found.study, records, clients)
    for name in {"classes", "counts"} & words.keys():
        say(words[name])
    size = f"--records {records} --clients {clients}"
    again = f", and for your features `veilstream study design {path} {size}`" if whose else ""
    estimator = found.study.estimator
    what = f"kind {estimator.kind}, loss {estimator.loss}" if whose else f"kind {estimator.kind}"
    say(f"wrote {path} ({what}); edit it, then run `veilstream study check {path} {size}`{again}")


def _readable(value: object) -> str:
    """Return a fact as people read it; `--json` has all digits."""
    if isinstance(value, dict):
        return "; ".join(f"{key}: {_readable(inner)}" for key, inner in value.items()) or "none"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


@study.command()
@STUDY
@click.option("--image", required=True, help="The image of infra/Dockerfile, with its tag.")
@click.option(
    "--lag", type=click.IntRange(1), default=1000, show_default=True,
    help="Records that may wait for one worker before another one starts.",
)  # fmt: skip
def deploy(study: Path, image: str, lag: int) -> None:
    """Print what runs the workers of STUDY in Kubernetes, for `kubectl apply -f -`.

    A stateful set, in which each worker has the name of its pod, and a ScaledObject for KEDA, which
    keeps as many workers as the lag asks for, at most one for each partition. The address and the
    security of Kafka come from the settings. Secrets are only named, not printed.
    """
    task, settings = live_task_of(study, "`veilstream study deploy`"), Settings.read()
    made = manifests(task, study.read_text(), settings, image=image, lag=lag)
    click.echo(json.dumps(made, indent=1))
    name = made["items"][0]["metadata"]["name"]
    say(f"{name}-env: a secret with VEILSTREAM_REDIS and, for SASL, the user and password")
    if task.study.authenticated:
        say(f"{name}-key: a secret with the study's key file as study.key")
    if settings.kafka_ca:
        say(f"{name}-tls: a secret with ca.crt and, if there is one, tls.crt and tls.key")
