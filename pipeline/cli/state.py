"""`veilstream state`: look at the stored state, check it, make it anew, take a client out."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path

import click

from agents.announcing import store_of
from agents.folding import check_end
from agents.history import Interrupted, Shadow, log_ends, refold
from infra.dead_letters import Keeper
from infra.local import connected
from infra.process import Stopping
from infra.topics import check_running
from pipeline.cli.context import (
    ACCEPT_LOSS,
    AS_JSON,
    STUDY,
    Group,
    confirmed,
    live_task_of,
    put,
    say,
    seconds_of,
)
from pipeline.cli.progress import Bar
from pipeline.errors import OffsetGap, StateError
from pipeline.messages.topics import Topics
from pipeline.release.task import Task
from pipeline.settings import Settings
from pipeline.stream.merge import holds_releases
from pipeline.stream.partition import Partition, differences
from pipeline.words import counted
from state import RedisStore
from state.codec import REBUILD, RECOVER

DOING = "`veilstream state`"


@click.group(cls=Group)
def state() -> None:
    """Look at the stored state, check it against the log, make it anew, or forget a client."""


@state.command()
@STUDY
@AS_JSON
def show(study: Path, as_json: bool) -> None:
    """Print watermark and counters of each partition of STUDY."""
    task, _, store = _opened(study)
    rows = [_row(number, store.load(number)) for number in range(task.study.stream.partitions)]
    if as_json:
        put({"study": task.study.name, "revision": task.revision, "partitions": rows})
        return
    for row in rows:
        click.echo("  ".join(f"{name} {value}" for name, value in row.items()))


@state.command()
@STUDY
@AS_JSON
@ACCEPT_LOSS
@click.option(
    "--every", metavar="1h", help="Keep comparing, at low priority; a difference stops workers."
)
@click.option("--parent", type=int, hidden=True, help="Process to end with.")
def verify(
    study: Path, as_json: bool, accept_loss: bool, every: str | None, parent: int | None
) -> None:
    """Fold the log of STUDY from its start and compare with what is stored, bit by bit.

    Exits with 40 if they differ. It may run beside a live worker. With --every it keeps the second
    state and compares again and again. A difference is noted beside the stored state, and no worker
    continues with that state.
    """
    task, settings, _ = _opened(study)
    if every is not None:
        _keep_verifying(task, settings, seconds_of(every, "--every"), as_json, parent)
        return
    rows, ends, names = [], log_ends(task, settings), list[str]()
    with Bar("offsets folded") as bar:
        for number, end, found in _compared(
            task, settings, accept_loss=accept_loss, report=bar.report
        ):
            ahead, names = max(0, ends[number] - end), names + found
            rows.append(
                {"partition": number, "next_offset": end, "unfolded": ahead, "differences": found}
            )
    verified = not any(row["differences"] for row in rows)
    if as_json:
        put({"study": task.study.name, "verified": verified, "partitions": rows})
    else:
        for row in rows:
            click.echo(f"partition {row['partition']} up to {row['next_offset']}: {_verdict(row)}")
    if not verified:
        say(_advice(names))
        sys.exit(40)


@state.command()
@STUDY
@ACCEPT_LOSS
@confirmed("All workers of this study must be stopped. Overwrite its state?")
def rebuild(study: Path, accept_loss: bool) -> None:
    """Fold the log of STUDY from its start and store the result.

    Exits with 10 if the study runs under another revision, and with 40 if the state stands beyond
    the log's end: use `study recover` then.
    """
    task, settings, store = _opened(study)
    # to the file of another revision, all releases are dead letters
    check_running(task, settings)
    for number, end in log_ends(task, settings).items():
        try:
            watermark = store.watermark(number)
        except StateError:
            # what cannot be read is what a rebuild is for
            continue
        check_end(Topics.of(task.study).releases.name, number, watermark, end)
    erased, keeper = store.erased(), Keeper(task.study, settings)
    with Bar("offsets folded") as bar:
        for number in range(task.study.stream.partitions):
            folded = refold(
                task, settings, number,
                accept_loss=accept_loss, erased=erased, report=bar.report, set_aside=keeper.keep,
            )  # fmt: skip
            store.replace(number, folded)
            say(f"partition {number}: rebuilt up to {folded.head.next_offset}")
    if keeper.sent:
        say(f"{counted(keeper.sent, 'dead letter')} that no worker had set aside: `veilstream dlq`")


def _opened(study: Path) -> tuple[Task, Settings, RedisStore]:
    task, settings = live_task_of(study, DOING), connected(Settings.read(), redis=True)
    return task, settings, store_of(task, settings)


def _keep_verifying(
    task: Task, settings: Settings, every: float, as_json: bool, parent: int | None
) -> None:
    """Compare now and then, until a difference, a fault, a signal, or the end of the parent."""
    os.nice(19)
    stopping = Stopping()

    def stopped() -> bool:
        return stopping.asked or (parent is not None and os.getppid() != parent)

    shadow = Shadow(task, settings, stopped)
    with suppress(Interrupted):
        while not stopped():
            rows = [found._asdict() for found in shadow.compare()]
            verified = not any(row["differences"] for row in rows)
            if as_json:
                put({"study": task.study.name, "verified": verified, "partitions": rows})
            for row in rows:
                if row["differences"] or not as_json:
                    verdict = _verdict({"unfolded": 0, **row})
                    say(f"partition {row['partition']} up to {row['next_offset']}: {verdict}")
            if not verified:
                say(_advice(name for row in rows for name in row["differences"]))
                sys.exit(40)
            due = time.monotonic() + every
            while not stopped() and time.monotonic() < due:
                time.sleep(min(0.2, every))


def _advice(names: Iterable[str]) -> str:
    """Say what to do about fields of these names that differ."""
    if any(name.startswith("client.") for name in names):
        return (
            "the log has other releases of clients, or other admissions, than were folded: the "
            f"releases topic was made anew, or somebody else has written to Redis; {RECOVER}"
        )
    return f"the stored state is not what the log folds to; {REBUILD}"


def verified(task: Task, settings: Settings) -> bool:
    """Whether every stored partition equals a fold of the log up to its watermark, bit by bit."""
    return not any(found for *_, found in _compared(task, settings))


def _compared(
    task: Task, settings: Settings, *,
    accept_loss: bool = False, report: Callable[[int, int], None] = lambda *_: None,
) -> Iterator[tuple[int, int, list[str]]]:  # fmt: skip
    """Yield each partition with its watermark and what differs from a fold of the log up to it."""
    store = store_of(task, settings)
    for number in range(task.study.stream.partitions):
        stored = store.load(number, doubted=True)
        end = stored.head.next_offset
        folded = refold(
            task, settings, number,
            until=end, accept_loss=accept_loss, erased=stored.erased, report=report,
        )  # fmt: skip
        found = differences(stored, folded)
        if not found:
            store.doubt(number, None)
        yield number, end, found


def _row(number: int, partition: Partition) -> dict[str, object]:
    head = partition.head
    return {
        "partition": number,
        "next_offset": head.next_offset,
        "clients": len(partition.clients),
        "duplicates": head.duplicates,
        "dead_letters": head.dead_letters,
        "forgotten": head.forgotten,
        "erased": head.erased,
        "missing": sum(progress.missing for progress in partition.clients.values()),
    }


def _verdict(row: dict[str, object]) -> str:
    found, ahead = row["differences"], row["unfolded"]
    said = f"differs in {found}" if found else "equal, bit by bit"
    return (
        f"{said}; the log goes on for {ahead} offsets that no worker has folded" if ahead else said
    )


REMAINS = """\
What this does not undo:
- estimates and models that have been published, and files saved from them;
- the client's releases in the Kafka log, until retention removes them (stream.retention), and those
  that were set aside as dead letters, which stay;
- releases of other clients that were computed at models which this client had influenced;
- the privacy budget that the client has spent.
Releases of this client that come from now on change nothing; stop its producer."""


@state.command()
@STUDY
@click.argument("client")
@ACCEPT_LOSS
@confirmed("All workers of this study must be stopped. Take the client out of its state?")
def forget(study: Path, client: str, accept_loss: bool) -> None:
    """Take all releases of CLIENT out of the state of STUDY, for good.

    The log is folded again without them; `state verify` and `state rebuild` leave them out too.
    """
    task, settings, store = _opened(study)
    if client in store.erased():
        say(f"{client} has been taken out before")
        return
    states = without(task, settings, store, client, accept_loss=accept_loss)
    store.erase(states, client)
    passed = sum(state.head.erased for state in states.values())
    say(
        f"{client}: taken out; of erased clients, in all, "
        f"{counted(passed, 'release')} without effect now"
    )
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
