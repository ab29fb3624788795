"""`veilstream topics`: a study's topics before anything runs, and which revision runs."""

from __future__ import annotations

from pathlib import Path

import click

from infra.local import connected
from infra.topics import announce, check_copies, ensure_topics, keep_for
from pipeline.cli.context import AS_JSON, STUDY, live_task_of, put, say
from pipeline.messages.spend import ledger_topic
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
@click.option(
    "--retention", "keeps", is_flag=True,
    help="Make topics that exist keep releases and estimates for stream.retention, too. Kafka "
    "removes what is older.",
)  # fmt: skip
def topics(study: Path, as_json: bool, replace: bool, keeps: bool) -> None:
    """Make the topics of STUDY, and write its revision for clients to compare theirs with.

    The topic of all ledgers is made with them. Clients and workers also make topics, if they have
    the right; a worker also writes the revision. Without --retention existing topics are not
    changed.
    """
    task = live_task_of(study, "`veilstream topics`")
    settings = connected(Settings.read())
    own = Topics.of(task.study, release_bytes(task))
    wanted = [*own.all(), ledger_topic(task.study, settings)]
    created = ensure_topics(settings, wanted)
    changed = keep_for(settings, [own.releases, own.estimates]) if keeps else []
    for warning in check_copies(settings, wanted):
        say(f"WARNING: {warning}")
    announce(task, settings, overrule=replace, say=say)
    if as_json:
        put(
            {
                "study": task.study.name,
                "revision": task.revision,
                "created": created,
                "changed": changed,
            }
        )
        return
    for topic in wanted:
        done = "made" if topic.name in created else "is there"
        kept = f", keeps records for {task.study.stream.retention} now"
        click.echo(f"{topic.name}: {done}{kept if topic.name in changed else ''}")
    click.echo(f"the running revision is {task.revision}")
