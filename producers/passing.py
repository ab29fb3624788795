"""Going on behind lost releases: every record that they can have held is passed over, durably.

How many slots a release can hold follows from those before it, so no record behind so many was in
one. They are owed from the transaction on that charges the lost releases, and nothing is released
while any are: the source may be shorter than what was lost, and its rest come days later.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from pipeline.errors import ConfigError, LedgerBehind
from pipeline.release.task import Task
from producers.client_store import ClientStore
from producers.reconcile import Lost
from producers.sources import Source

#: Slots that are read and dropped in one durable step.
STEP = 4096
#: How long one step waits for records, in seconds.
STEP_SECONDS = 0.2


def owe(task: Task, store: ClientStore, source: Source, name: str, lost: Lost, now: float) -> None:
    """Charge lost releases to a source of this name, and note the slots that they can have held.

    Raises ConfigError as `check_order`; LedgerBehind if the study drops windows: nobody knows how
    many lay between them.
    """
    check_order(source, name)
    if task.policy.discards:
        raise LedgerBehind(
            f"study {task.study.name!r} drops windows, so nobody can tell which records the "
            f"{len(lost.seqs)} lost releases held, and to continue could release some of them "
            "again: the operator must put the newest database back, or begin a study with "
            "another name on records that come from now on"
        )
    owed = largest_loss(task, store, len(lost.seqs))
    store.charge_lost(task, name, lost.seqs, owed=owed, sent=lost.sent, now=now)


def largest_loss(task: Task, store: ClientStore, releases: int) -> int:
    """Return how many record slots so many releases behind those of a database can have held.

    They were one after the other as large as windows may grow to.
    """
    held = first = store.standing(task.study.name).chain.slots
    for _ in range(releases):
        held += task.growth.next_window(held)
    return held - first


def check_order(source: Source, name: str) -> None:
    """Refuse to leave out lost records where nobody can say which they are; ConfigError."""
    if not source.repeats:
        raise ConfigError(
            f"--skip-lost: {name} has several partitions, so there is no order in which it could "
            "be read again, and nobody can say which of its records the lost releases held. The "
            "data owner must bring the newest copy of this client's database back, or have what "
            "is written from now on in a topic of its own"
        )


def pass_over(
    task: Task,
    store: ClientStore,
    source: Source,
    *,
    say: Callable[[str], None],
    stopped: Callable[[], bool],
    meanwhile: Callable[[], None] = lambda: None,
) -> bool:
    """Pass over the slots that are owed, as far as the source goes; return whether all are.

    say: Told how many there are, and how many remain.
    stopped: Whether this process has been asked to end: a source that grows may have to be waited
        for.
    meanwhile: Called between two steps.
    """
    study = task.study.name
    owed = store.peek(study).owed
    if not owed:
        return True
    say(f"passing over {owed} record slots that lost releases can have held")
    told = time.monotonic()
    while owed and not source.ended and not stopped():
        meanwhile()
        slots = source.read(min(owed, STEP), STEP_SECONDS)
        if slots:
            owed -= len(slots)
            store.pass_over(study, len(slots), source.anchored(slots[-1].position))
            source.forget(slots[-1].position)
        if time.monotonic() - told >= 10.0:
            told = time.monotonic()
            say(f"{owed} record slots are still to be passed over")
    if owed:
        say(
            f"{owed} record slots are still to be passed over, and nothing is released before: the "
            "next records of the source, now or at a later start, count as these slots"
        )
        return False
    say("done; the ledger counts what was lost as spent")
    return True
