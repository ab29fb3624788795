"""`veilstream client`: its own database, its key, and who admits it."""

from __future__ import annotations

from pathlib import Path

import click

from infra.local import connected
from pipeline.cli.admission import admit, enrol, revoke, roll
from pipeline.cli.context import AS_JSON, STUDY, Group, live_task_of, put, say
from pipeline.settings import Settings
from producers.database import known_vault, vault_path
from producers.membership import Membership, counted
from producers.report import report

#: What `client status` says of a client, by its standing.
STANDINGS = {
    "admitted": "admitted",
    "revoked": (
        "revoked: what it sends from then on does not count. What counted before goes on to count, "
        "until the operator takes it out (`veilstream state forget`)"
    ),
    "other key": (
        "NOT admitted under the key of this folder, but under another one: what it sends does not "
        "count"
    ),
    "lost": (
        "admitted, but the log does not say so: the releases topic was made anew, or emptied. What "
        "it sends does not count until the operator has run `veilstream study recover`"
    ),
    "unknown": "NOT admitted: what it sends does not count",
}


@click.group(cls=Group)
def client() -> None:
    """Look at a client's own database, make its key, admit it to a study or revoke it."""


for command in (enrol, admit, revoke, roll):
    client.add_command(command)


@client.command()
@click.argument("name")
@AS_JSON
def show(name: str, as_json: bool) -> None:
    """Print what client NAME has read, set aside and released.

    The counts of records come from raw data: show them only to people who may see that data. What
    was spent is public: see `veilstream privacy ledger`.
    """
    found = report(known_vault(Settings.read().home, name))
    if as_json:
        put(found)
        return
    for study, facts in found.items():
        click.echo(f"{study}:")
        for key, value in facts.items():
            if not isinstance(value, dict):
                click.echo(f"  {key.replace('_', ' ')}: {'-' if value is None else value}")
                continue
            click.echo(f"  {key.replace('_', ' ')}:{'' if value else ' none'}")
            for kind, count in sorted(value.items(), key=lambda item: -item[1]):
                click.echo(f"    {count} x {kind}")
    say("`--json` has the same for programs")


@client.command()
@STUDY
@click.argument("name")
@AS_JSON
def status(study: Path, name: str, as_json: bool) -> None:
    """Print how many releases of client NAME count in STUDY, according to its log.

    Run it in the client's own folder; it needs only the client's rights. A release that was
    acknowledged but is not in the log was withheld by whoever runs Kafka, or is older than the log.
    """
    task, settings = live_task_of(study, "`veilstream client status`"), Settings.read()
    trusted = task.study.authenticated
    # one that is admitted has a key, and need not have run
    path = (vault_path if trusted else known_vault)(settings.home, name)
    settings = connected(settings)
    member = Membership(task.study, settings, name, say, looking=True) if trusted else None
    found = counted(task, settings, name, path, member)
    if as_json:
        put(found)
        return
    if trusted:
        click.echo(STANDINGS[found["standing"]])
    if not found["has_run"]:
        click.echo("it has not run from this folder yet")
    for key, value in found["releases"].items():
        click.echo(f"{key.replace('_', ' ')}: {value}")
    for reason, number in found["not_counted"].items():
        click.echo(f"not counted, {reason}: {number}")
