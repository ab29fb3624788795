"""`veilstream state forget`: take all releases of one client out of the state."""

from __future__ import annotations

from pathlib import Path

import click

from agents.refold import refold
from infra.addresses import connected
from pipeline.cli.context import ACCEPT_LOSS, STUDY, live_task_of, say
from pipeline.errors import OffsetGap, StateError
from pipeline.reducer import Partition, holds_releases
from pipeline.release.task import Task
from pipeline.settings import Settings
from state import RedisStore
from state.connection import redis_client

REMAINS = """\
What this does not undo:
- estimates and models that have been published, and files saved from them;
- the client's releases in the Kafka log, until retention removes them (stream.retention), and those
  that were set aside as dead letters, which stay;
- releases of other clients that were computed at models which this client had influenced;
- the privacy budget that the client has spent.
Releases of this client that come from now on change nothing; stop its producer."""


@click.command()
@STUDY
@click.argument("client")
@ACCEPT_LOSS
@click.confirmation_option(
    "--yes", prompt="All workers of this study must be stopped. Take the client out of its state?"
)
def forget(study: Path, client: str, accept_loss: bool) -> None:
    """Take all releases of CLIENT out of the state of STUDY, for good.

    The log is folded again without them; `state verify` and `state rebuild` leave them out too.
    """
    task, settings = live_task_of(study, "`veilstream state`"), connected(Settings.read())
    store = RedisStore(redis_client(settings), task)
    if client in store.erased():
        say(f"{client} has been taken out before")
        return
    states = without(task, settings, store, client, accept_loss=accept_loss)
    store.erase(states, client)
    passed = sum(state.head.erased for state in states.values())
    say(f"{client}: taken out; {passed} releases of erased clients, in all, count nowhere now")
    if not holds_releases(states.values()):
        say(
            "No release of any client is left: a worker of this study publishes an estimate that "
            "says so in place of the last one, and no new model."
        )
    say(REMAINS)


def without(
    task: Task, settings: Settings, store: RedisStore, client: str, *, accept_loss: bool
) -> dict[int, Partition]:
    """Return all partitions as they would be if the client's releases had been passed over.

    Only those that know the client are folded again, up to their watermarks. Raises StateError if
    no partition knows the client; OffsetGap if the log no longer holds all that such a partition
    was folded from.
    """
    stored = {number: store.load(number) for number in range(task.study.stream.partitions)}
    if not any(client in state.clients for state in stored.values()):
        raise StateError(
            f"the state of study {task.study.name!r} knows no client {client!r}: see to the "
            "spelling, and let a worker fold what is in the log, if its releases are still there"
        )
    erased = store.erased() | {client}
    for number, state in stored.items():
        if client not in state.clients:
            state.erased = erased
            continue
        end = state.head.next_offset
        try:
            stored[number] = refold(
                task, settings, number, until=end, accept_loss=accept_loss, erased=erased
            )
        except OffsetGap as error:
            raise OffsetGap(
                f"{client!r} cannot be taken out: {error}. The state holds sums, and what one "
                "client gave to the sums of releases that are gone cannot be told apart. "
                "With --accept-loss the partition is folded from what is left, without the "
                "client, and what is gone is lost for every client; or begin a new study"
            ) from None
    return stored
