"""What must hold when everything has come to rest, however many died on the way."""

from __future__ import annotations

from typing import Any

from pipeline.messages.estimate import read_estimate
from pipeline.messages.model import read_model
from pipeline.stream.fold import Reducer
from pipeline.stream.partition import Partition, differences
from tests.databases import sqlite_file
from tests.log_checks import noised_twice, payloads, shared_records
from tests.simulation.world import World


def faults_of(world: World, counts: dict[str, int]) -> list[str]:
    """Return what is wrong.

    Parameters
    ----------
    counts
        How many records each client's file has.
    """
    task, topics = world.task, world.topics
    every = range(topics.releases.partitions)
    logs = [world.servers.records(topics.releases.name, number) for number in every]
    log = [record for records in logs for record in records]
    found, faults = payloads(log), list(world.faults)
    faults += [f"{identity} has had two noises" for identity in noised_twice(found)]
    if not task.study.noised:
        faults += shared_records(task, found)
    for client, records in counts.items():
        windows = -(-records // task.slots)
        if sorted(seq for name, _, seq in found if name == client) != list(range(windows)):
            faults.append(f"{client}: not every window is in exactly one release")
        faults += accounts(world, client, windows, records)
    states = [world.store.load(number) for number in every]
    for state, records in zip(states, logs, strict=True):
        again = Partition.empty(task)
        if Reducer(task).fold(again, records) or differences(state, again):
            faults.append("a state is not the fold of its log")
    heads = [state.head for state in states]
    folded = sum(head.folded for head in heads)
    if (folded, sum(head.missing for head in heads)) != (len(found), 0):
        faults.append(f"{folded} releases were folded, and there are {len(found)}")
    newest = read_estimate(world.servers.records(topics.estimates.name, 0)[-1].value)
    if newest.releases != len(found):
        faults.append("the newest estimate does not rest on every release")
    return faults + _models(world)


def outcome(world: World) -> list[Any]:
    """Return sums and clients' progress, which crashes must not change."""
    every = range(world.topics.releases.partitions)
    states = [world.store.load(number) for number in every]
    return [
        (state.sums.encode(), {name: entry.encode() for name, entry in state.clients.items()})
        for state in states
    ]


def accounts(world: World, client: str, windows: int, records: int) -> list[str]:
    """Return what is wrong with a client's own books at the end of its file."""
    with sqlite_file(world.folder / f"{client}.db") as db:
        [held] = db.execute("SELECT next_seq, records + rejected FROM streams").fetchall()
        ledger = db.execute("SELECT seq FROM ledger ORDER BY seq").fetchall()
        waiting = db.execute("SELECT count(*) FROM outbox").fetchall()
    db.close()
    right = held == (windows, records) and ledger == [(seq,) for seq in range(windows)]
    return [] if right and waiting == [(0,)] else [f"{client}: its ledger does not add up: {held}"]


def _models(world: World) -> list[str]:
    """Where Redis kept what it was given, no version of a model is ever given twice."""
    versions: dict[int, set[bytes]] = {}
    for record in world.servers.records(world.topics.models.name, 0):
        versions.setdefault(read_model(world.task, record.value).version, set()).add(record.value)
    twice = [version for version, held in versions.items() if len(held) > 1]
    return [] if world.losses else [f"model {version} has two forms" for version in twice]
