"""`veilstream study acls`: the least rights of each role, as commands for Kafka and Redis."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import click

from infra.rights import ROLES, Role, kafka_commands, redis_command
from pipeline.cli.context import AS_JSON, STUDY, live_task_of, put
from pipeline.settings import Settings


@click.command()
@STUDY
@AS_JSON
@click.option("--role", type=click.Choice(get_args(Role)), help="Of this role alone.")
@click.option("--user", help="Its name, in Kafka and Redis.  [default: STUDY-ROLE]")
def acls(study: Path, as_json: bool, role: Role | None, user: str | None) -> None:
    """Print commands that give users of STUDY the least rights that they need.

    The operator runs those of Kafka with Kafka's own tools, as an administrator, and those of Redis
    with redis-cli, with a password of its own in the place of PASSWORD. Topics must be made before,
    by `veilstream topics STUDY`.
    """
    task = live_task_of(study, "`veilstream study acls`").study
    servers = Settings.read().kafka or "HOST:PORT"
    found = {}
    for name in [role] if role else ROLES:
        who = user or f"{task.name}-{name}"
        found[name] = {
            "kafka": kafka_commands(task, name, who, servers),
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
