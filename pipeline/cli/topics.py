"""`veilstream topics`: a study's topics before anything runs, and which revision runs."""

from __future__ import annotations

from pathlib import Path

import click

from infra.addresses import connected
from infra.topics import announce, check_copies, ensure_topics
from pipeline.cli.context import AS_JSON, STUDY, live_task_of, put, say
from pipeline.messages.spend import ledger_topics
from pipeline.messages.topics import Topics
from pipeline.release.task import release_bytes
from pipeline.settings import Settings


@click.command()
@STUDY
@AS_JSON
@click.option(
    "--replace", is_flag=True,
    help=(
        "Make this file the running one, in place of another revision. Releases of that revision "
        "then become dead letters."
    ),
)  # fmt: skip
def topics(study: Path, as_json: bool, replace: bool) -> None:
    """Make the topics of STUDY, and write its revision for clients to compare theirs with.

    The topic of all ledgers is made with them. Clients and workers also make topics, if they have
    the right; a worker also writes the revision. Existing topics are not changed.
    """
    task = live_task_of(study, "`veilstream topics`")
    settings = connected(Settings.read())
    wanted = [
        *Topics.of(task.study, release_bytes(task)).all(),
        *ledger_topics(task.study, settings),
    ]
    created = ensure_topics(settings, wanted)
    for warning in check_copies(settings, wanted):
        say(f"WARNING: {warning}")
    announce(task, settings, overrule=replace, say=say)
    if as_json:
        put({"study": task.study.name, "revision": task.revision, "created": created})
        return
    for topic in wanted:
        click.echo(f"{topic.name}: {'made' if topic.name in created else 'is there'}")
    click.echo(f"the running revision is {task.revision}")
