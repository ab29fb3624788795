"""`veilstream doctor connect`: what a study needs around it, one line for each part."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import cast

import click

from agents.surroundings import Finding, findings, look
from infra.addresses import connected
from infra.rights import ROLES, Role
from pipeline.cli.context import AS_JSON, STUDY, live_task_of, put
from pipeline.release.task import Task
from pipeline.settings import Settings
from producers.source_look import look_at_source


@click.command()
@STUDY
@click.option("--source", help="A source, as `veilstream produce` takes it: its first records.")
@click.option(
    "--role", type=click.Choice(list(ROLES)),
    help="Whose rights are looked at; default: those of a client and of a worker. A client needs "
    "no Redis.",
)  # fmt: skip
@AS_JSON
def connect(study: Path, source: str | None, role: str | None, as_json: bool) -> None:
    """Look whether STUDY can run here: Kafka, topics and rights, Redis, clock, disk, a source.

    One line for each, with what is wrong and who must act. Nothing is spent, made or sent. The exit
    code is that of the first fault, or 0.
    """
    task = live_task_of(study, "`veilstream doctor connect`")
    settings = connected(Settings.read())
    roles = cast("list[Role]", [role] if role else ["client", "worker"])
    code, told = 0, []
    for found in _findings(task, settings, roles, source):
        code = code or (found.fault.exit_code if found.fault else 0)
        if as_json:
            told.append({"part": found.part, "ok": found.fault is None, "said": found.said})
        else:
            click.echo(f"{'ok' if found.fault is None else 'FAULT':6}{found.part}: {found.said}")
    if as_json:
        put({"study": task.study.name, "exit_code": code, "found": told})
    click.get_current_context().exit(code)


def _findings(
    task: Task, settings: Settings, roles: list[Role], source: str | None
) -> Iterator[Finding]:
    yield from findings(task, settings, roles)
    if source is not None:
        yield look("source", lambda: look_at_source(task, settings, source))
