"""What must hold among liars, told without a single MAC: who has truly sent what is known here."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from pipeline.messages.envelope import header
from pipeline.messages.release import read
from pipeline.messages.topics import partition_of
from pipeline.release.task import form_of
from pipeline.stream.fold import OFFLINE, Reducer
from pipeline.stream.in_process import OfflineRecord
from pipeline.stream.partition import Partition, differences
from tests.simulation.byzantine import MALLORY, Byzantine
from tests.simulation.checks import accounts


@dataclass(slots=True)
class Truth:
    """What one partition should have come to.

    Attributes
    ----------
    state
        The fold of the releases that count, without MACs.
    repeats, letters
        How many came again; offsets of records that are none of these.
    """

    state: Partition
    repeats: int = 0
    letters: set[int] = field(default_factory=set)


def truth(world: Byzantine, number: int) -> Truth:
    """Return what a partition should have come to, by who has truly sent what."""
    found = Truth(Partition.empty(world.task))
    known, seen = dict[str, tuple[int, bool]](), set[tuple[str, int]]()
    counted: list[OfflineRecord] = []
    for record in world.servers.records(world.topics.releases.name, number):
        client, value = record.key.decode(), record.value
        if value in world.words:
            who, serial, admitted = world.words[value]
            if serial > known.get(who, (0, False))[0]:
                known[who] = serial, admitted
            continue
        sent = value in world.broker.sent.get(record.key, set())
        here = partition_of(record.key, world.topics.releases.partitions) == number
        if not (sent and here and known.get(client, (0, False))[1]):
            found.letters.add(record.offset)
        elif (client, seq := read(world.task, value).header.seq) in seen:
            found.repeats += 1
        else:
            seen.add((client, seq))
            counted.append(OfflineRecord(len(counted), record.key, bare(world, value)))
    assert Reducer(world.task, trust=OFFLINE).fold(found.state, counted) == []
    return found


def bare(world: Byzantine, payload: bytes) -> bytes:
    """Return a release as one of an open study."""
    row = np.frombuffer(payload, form_of(world.task).dtype).copy()
    for name in ("reserved", "ticket", "mac"):
        row[name] = 0
    return row.tobytes()


def faults_among_liars(world: Byzantine, counts: dict[str, int]) -> list[str]:
    """Return what is wrong.

    Parameters
    ----------
    counts
        How many records each client's file has.
    """
    faults, task, topics = list(world.faults), world.task, world.topics
    letters = {
        (header(r.headers, "veil_dlq_partition"), header(r.headers, "veil_dlq_offset"))
        for r in world.servers.records(topics.dead_letters.name, 0)
    }
    wanted, folded, missing = set(), 0, 0
    for number in range(topics.releases.partitions):
        state, right = world.store.load(number), truth(world, number)
        head = state.head
        if state.sums.encode() != right.state.sums.encode():
            faults.append(f"the sums of partition {number} are not those of what counts")
        if state.clients != right.state.clients:
            faults.append(f"the clients of partition {number} are not where they should be")
        if (head.folded, head.duplicates, head.dead_letters, head.missing) != (
            right.state.head.folded, right.repeats, len(right.letters), right.state.head.missing
        ):  # fmt: skip
            faults.append(f"the counters of partition {number} are wrong: {head}")
        wanted |= {(str(number).encode(), str(at).encode()) for at in right.letters}
        log = world.servers.records(topics.releases.name, number)
        for size in (1, 7, len(log)):
            again = Partition.empty(task, number=number)
            reducer = Reducer(task, trust=world.authority())
            for start in range(0, len(log), size):
                reducer.fold(again, log[start : start + size])
            if differences(state, again):
                faults.append("a state is not the fold of its log")
        folded, missing = folded + head.folded, missing + head.missing
    if letters != wanted:
        faults.append(f"{len(letters)} dead letters, and {len(wanted)} belong there")
    if (newest := world.newest) is None or newest.releases != folded:
        faults.append("the newest estimate does not rest on every release that counts")
    for client, records in counts.items():
        faults += accounts(world, client, -(-records // task.slots), records)
    return faults + points(world)


def points(world: Byzantine) -> list[str]:
    """Return which clients were led to a point that the study has not published."""
    published = {(0, world.task.first_model.lattice.tobytes())}
    published |= {(model.version, model.lattice.tobytes()) for model in world.models}
    faults = []
    for client, sent in world.broker.sent.items():
        for payload in sent if client != MALLORY.encode() else ():
            release = read(world.task, payload)
            if (release.header.version, release.point.tobytes()) not in published:
                faults.append(f"{client!r} released at a point that nobody has published")
    return faults
